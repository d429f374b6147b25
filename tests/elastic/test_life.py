"""A run goes through what torch's own tests ask of its agent's `run`: success, restarts, the end of the budget."""

from __future__ import annotations

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import ClaimAttempt
from hpc_elastic.rundir.records import RunState
from tests.membership.script import HeadScript, a_restart_plan, of_kind, the_cause, the_result


def restart_after_a_failure(script: HeadScript) -> bool:
    """Node 0 fails and both stop; whether another attempt starts."""
    script.fail(0)
    actions = [*script.stopped(0), *script.stopped(1), *script.pass_time(0)]
    if not of_kind(actions, ClaimAttempt):
        return False
    script.claimed()
    return True


def test_happy_path_uses_no_restart() -> None:
    script = HeadScript(2, restart=a_restart_plan(max_restarts=10))
    script.run()
    script.finish(0)
    result = the_result(script.finish(1))
    assert (result.state, result.restarts, result.attempts) == (RunState.SUCCEEDED, 0, 1)
    assert not result.is_failed()


def test_a_run_that_always_fails_has_one_attempt_more_than_restarts() -> None:
    script = HeadScript(2, restart=a_restart_plan(max_restarts=3))
    script.run()
    attempts = 1
    while attempts <= 3:
        assert restart_after_a_failure(script)
        attempts += 1
    script.fail(0)
    script.stopped(0)
    result = the_result(script.stopped(1))
    assert (result.state, result.restarts, result.attempts) == (RunState.FAILED, 3, 4)
    assert result.is_failed()
    assert list(result.failures) == ["0"]
    assert result.return_values == {}


def test_a_node_that_joins_while_others_work_is_no_restart() -> None:
    """torch restarts all workers at once for it, though it is no retry there either."""
    script = HeadScript(3, min_nodes=2, max_nodes=3, restart=a_restart_plan(max_restarts=1))
    script.join(0, 1)
    script.pass_time(600)
    script.claimed()
    script.join(2)
    script.finish(0)
    result = the_result(script.finish(1))
    assert (result.state, result.restarts, result.attempts) == (RunState.SUCCEEDED, 0, 1)


def test_a_worker_group_in_an_unknown_state_is_not_retried() -> None:
    """torch's agent ends with an exception; here such an agent is gone, and its node counts as lost."""
    script = HeadScript(2, restart=a_restart_plan(max_restarts=100))
    script.run()
    script.lose(1)
    reason, code = the_cause(script.stopped(0))
    assert (reason, code) == ("node_lost", ExitCode.NODE_LOST)
