"""What the reports of a world's members add up to."""

from __future__ import annotations

from hpc_elastic.membership import messages
from hpc_elastic.membership.tally import Tally
from tests.membership.script import a_failure


def test_a_rank_that_ended_with_another_exit_code_than_it_failed_with_is_counted_once_as_it_ended() -> None:
    tally = Tally()
    tally.record(messages.Failed(attempt=1, failure=a_failure(3, exitcode=1)), 1.0)
    ended = a_failure(3, exitcode=42)
    tally.record(messages.Stopped(attempt=1, failures=(ended,), unkillable=(), store_port=1), 2.0)
    assert tally.failures == {"3": ended}


def test_a_stop_without_failures_takes_none_back() -> None:
    tally = Tally()
    failure = a_failure(3)
    tally.record(messages.Failed(attempt=1, failure=failure), 1.0)
    tally.record(messages.Stopped(attempt=1, failures=(), unkillable=(), store_port=1), 2.0)
    assert tally.failures == {"3": failure}
