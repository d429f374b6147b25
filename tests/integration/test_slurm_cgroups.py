"""A Slurm that tracks and confines processes by cgroups, as most do: nobody escapes, and what is given is seen."""

from __future__ import annotations

import os
import re
import signal
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.integration import greedy_trainer
from tests.integration.conftest import Door, Run
from tests.integration.images import needs_bubblewrap, write_image
from tests.integration.slurm_jobs import (
    DIES,
    HEARS,
    STUBBORN,
    WAITS,
    agent_pid,
    assert_over,
    have_told,
    start,
    wait_for_ranks,
    write_job,
)
from tests.integration.test_local_full_memory import LINE, begun
from tests.integration.test_slurm_requeue import SAVES, preempting, preempting_by
from tests.slurm_sandbox.cgroups import why_no_cgroups
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.slurm_sandbox.versions import why_impossible
from tests.tiers import variants

pytestmark = [pytest.mark.slurm, pytest.mark.cgroups, pytest.mark.xdist_group("cgroups")]

# Tells its cgroups and CPUs, and those of the process that it was forked from or started by.
TELLS = """
import os
print("cpus", sorted(os.sched_getaffinity(0)), os.environ.get("HPC_ELASTIC_ATTEMPT"), flush=True)
print("freezer", next(line.split(":")[2] for line in open("/proc/self/cgroup").read().split() if ":freezer:" in line))
"""
# Takes more than it is given, page by page.
GREEDY = """
import os
print("waiting", os.environ["RANK"], flush=True)
kept = [bytearray(os.urandom(1 << 20)) * 8 for _ in range(100)]
"""


@pytest.fixture(scope="module")
def confining_session() -> Iterator[Cluster]:
    """A Slurm with proctrack/cgroup, task/cgroup and task/affinity."""
    if reason := why_impossible() or why_no_cgroups():
        pytest.skip(reason)
    cluster = Cluster.start(2, owner=os.getpid(), cgroups=True)
    yield cluster
    cluster.down()
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{cluster.layout.login_interface}"))


@pytest.fixture
def confining(confining_session: Cluster) -> Iterator[Cluster]:
    """That Slurm, all nodes idle."""
    yield confining_session
    assert not confining_session.leftovers(within_s=15)


@pytest.fixture
def confined_door(confining: Cluster, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Door:
    """The command on its login node."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Door(folder, {**confining.environment, "XDG_STATE_HOME": str(tmp_path / "state")})


def only_slurm_is_left(cluster: Cluster) -> None:
    """No process of a job is left on any node, by whatever parent or session."""
    wait_until(
        lambda: not any(cluster.processes(node) for node in cluster.nodes),
        "no process is left",
        within_s=30,
        otherwise=lambda: {node: cluster.processes(node) for node in cluster.nodes},
    )


def test_workers_have_the_cpus_of_the_whole_job_on_their_node(confined_door: Door, confining: Cluster) -> None:
    """task/affinity would bind the step's one task, the agent; all workers are in the job's cgroup."""
    write_job(confined_door, TELLS, nodes="2", workers=str(os.cpu_count()))
    run = confined_door.submit("job.yaml", wait=True)
    for rank in range(2 * (os.cpu_count() or 1)):
        told = run.stdout(1, rank)
        assert f"cpus {sorted(range(os.cpu_count() or 1))}" in told, run.story()
        assert f"/job_{run.job_id}/step_0" in told, told
    only_slurm_is_left(confining)


@pytest.mark.variant(of="test_workers_have_the_cpus_of_the_whole_job_on_their_node")
def test_workers_share_one_cpu_if_the_job_has_one(confined_door: Door, confining: Cluster) -> None:
    write_job(confined_door, TELLS, nodes="2", workers="1")
    run = confined_door.submit("job.yaml", wait=True)
    assert [run.stdout(1, rank).count("cpus [0]") + run.stdout(1, rank).count("cpus [1]") for rank in (0, 1)] == [1, 1]


@pytest.mark.parametrize(
    "start_by", ["spawn", *variants("fork", of="test_a_crash_is_followed_by_a_restart_in_the_same_step")]
)
def test_a_crash_is_followed_by_a_restart_in_the_same_step(
    confined_door: Door, confining: Cluster, start_by: str
) -> None:
    crash = "import os, sys\nif os.environ['HPC_ELASTIC_ATTEMPT'] == '1' and os.environ['RANK'] == '1': sys.exit(3)\n"
    write_job(confined_door, crash + TELLS, nodes="2", workers="1", more=f"start: {start_by}")
    run = confined_door.submit("job.yaml", wait=True)
    assert run.attempts() == [1, 2]
    assert f"/job_{run.job_id}/step_0" in run.stdout(2, 1), run.story()
    only_slurm_is_left(confining)


@pytest.mark.variant(of="test_slurm_ends_what_a_killed_agent_has_left")
def test_a_cancelled_run_leaves_no_process_not_even_with_a_session_and_variables_of_its_own(
    confined_door: Door, confining: Cluster
) -> None:
    run = start(confined_door, STUBBORN, ranks=2, nodes="2", workers="1")
    confining.run("scancel", run.job_id)  # whoever ignores TERM is killed after KillWait, and so are the agents
    confining.wait_for_job(run.job_id, "CANCELLED")
    only_slurm_is_left(confining)
    assert '"CANCELLED"' in confined_door.run("status", run.layout.root, "--json", exit_code=None).stdout


def test_workers_get_one_term_though_slurm_tells_the_agents_alone(confined_door: Door, confining: Cluster) -> None:
    """proctrack/cgroup sends it to the task alone, which is the agent (cgroup.conf, SignalChildrenProcesses=no)."""
    run = start(confined_door, WAITS, ranks=2, nodes="2", workers="1")
    confining.run("scancel", run.job_id)
    assert_over(run, "CANCELLED", 10)
    assert [run.stdout(1, rank) for rank in (0, 1)] == [f"waiting {rank}\ngot SIGTERM\nsaved\n" for rank in (0, 1)]
    only_slurm_is_left(confining)


@needs_bubblewrap
@pytest.mark.parametrize(
    "more",
    [
        "",
        *variants(
            "--unshare-pid",
            of="test_workers_in_an_image_get_one_term_though_slurm_tells_the_shell_outside_alone",
        ),
    ],
)
def test_workers_in_an_image_get_one_term_though_slurm_tells_the_shell_outside_alone(
    confined_door: Door, confining: Cluster, more: str
) -> None:
    run = start(confined_door, ranks=2, nodes="2", workers="1", more=write_image(confined_door.folder, more=more))
    confining.run("scancel", run.job_id)
    result = assert_over(run, "CANCELLED", 10)
    assert (result["written_by"], result["reason"]) == ("node1", "terminated")
    assert [run.stdout(1, rank) for rank in (0, 1)] == [f"waiting {rank}\ngot SIGTERM\nsaved\n" for rank in (0, 1)]
    only_slurm_is_left(confining)


def assert_passed_on(run: Run, door: Door, cluster: Cluster) -> None:
    """What `scancel --signal` sends reaches each rank with a handler, each time, and nothing that it has started."""
    for times in (1, 2):
        cluster.run("scancel", "--signal=USR1", run.job_id)
        told = "got SIGUSR1: not to rank 1, which it would end for want of a handler"
        wait_until(partial(have_told, run, told, times), "rank 1 is spared", otherwise=run.story)
        wait_until(partial(have_told, run, "got SIGUSR1: sent to rank 0", times), "rank 0 has it", otherwise=run.story)
    cluster.run("scancel", "--signal=USR2", run.job_id)
    for rank in (0, 1):
        run.wait_for_output("got SIGUSR2", rank=rank)
    door.write("go", "")
    assert_over(run, "SUCCEEDED", 0)
    assert run.stdout(1, 0).splitlines() == ["waiting 0", *["got SIGUSR1"] * 2, "got SIGUSR2", "helper None"]
    assert run.stdout(1, 1).splitlines() == ["waiting 1", "got SIGUSR2", "helper None"]
    only_slurm_is_left(cluster)


def test_workers_get_a_users_signal_though_slurm_tells_the_agents_alone(
    confined_door: Door, confining: Cluster
) -> None:
    run = start(confined_door, HEARS, ranks=2, nodes="2", workers="1")
    assert_passed_on(run, confined_door, confining)


@needs_bubblewrap
@pytest.mark.variant(of="test_workers_in_an_image_get_one_term_though_slurm_tells_the_shell_outside_alone")
def test_workers_in_an_image_get_a_users_signal_though_slurm_tells_the_shell_outside_alone(
    confined_door: Door, confining: Cluster
) -> None:
    image = write_image(confined_door.folder)
    run = start(confined_door, HEARS, ranks=2, nodes="2", workers="1", more=image)
    assert_passed_on(run, confined_door, confining)


def assert_saves_beyond_the_grace(door: Door, cluster: Cluster, *, more: str = "") -> None:
    """Workers have GraceTime and KillWait: Slurm's second TERM, at the end of the first, is no order to hurry."""
    script = SAVES.replace("time.sleep(3)", "time.sleep(20)").replace(
        'print("waiting"', 'os.environ["HPC_ELASTIC_ATTEMPT"] == "1" or sys.exit(0)\nprint("waiting"'
    )
    signals = "signals: {lead: 60s, grace: 30s, restart_grace: 2s}\n"
    write_job(door, script, nodes="2", workers="1", more=signals + more)
    with cluster.configured(KillWait=30), preempting_by(cluster, "REQUEUE", 5):
        run = door.submit("job.yaml")
        wait_for_ranks(run, 2)
        with preempting(cluster, "--nodes=2") as urgent:
            cluster.wait_for_job(urgent, "RUNNING", within_s=90)
        assert_over(run, "SUCCEEDED", 0)
    assert [run.stdout(1, rank) for rank in (0, 1)] == [f"waiting {rank}\nsaving\nsaved\n" for rank in (0, 1)]
    only_slurm_is_left(cluster)


@pytest.mark.variant(of="test_a_handler_finishes_where_slurm_gives_it_as_long")
def test_workers_may_save_beyond_the_grace_of_a_preemption_until_slurm_kills(
    confined_door: Door, confining: Cluster
) -> None:
    assert_saves_beyond_the_grace(confined_door, confining)


@needs_bubblewrap
@pytest.mark.variant(of="test_a_handler_finishes_where_slurm_gives_it_as_long")
def test_workers_in_an_image_may_save_beyond_the_grace_of_a_preemption(confined_door: Door, confining: Cluster) -> None:
    assert_saves_beyond_the_grace(confined_door, confining, more=write_image(confined_door.folder))


def test_slurm_ends_what_a_killed_agent_has_left(confined_door: Door, confining: Cluster) -> None:
    """Also a grandchild that has thrown the run's variables away, which only cgroups find."""
    run = start(confined_door, STUBBORN, ranks=2, nodes="2", workers="1")
    os.kill(agent_pid(run, "node2"), signal.SIGKILL)
    result = run.wait_until_over()
    assert (result["state"], result["exit_code"], result["reason"]) == ("FAILED", 7, "node_lost"), result
    confining.wait_for_job(run.job_id, "FAILED")
    only_slurm_is_left(confining)


@pytest.mark.variant(of="test_two_workers_killed_together_are_one_restart")
def test_two_killed_workers_are_one_restart(confined_door: Door, confining: Cluster) -> None:
    run = start(confined_door, DIES, ranks=2, nodes="2", workers="1", more="start: spawn\nrestart: {max_restarts: 2}")
    for pid in [run.worker_pid(rank) for rank in (0, 1)]:  # looked up before the first one's end stops the other
        os.kill(pid, signal.SIGKILL)
    wait_for_ranks(run, 2, attempt=2)
    confined_door.run("cancel", run.layout.root)
    assert_over(run, "CANCELLED", 10)
    only_slurm_is_left(confining)


def test_a_worker_over_its_memory_is_killed_and_its_agent_lives_to_tell(
    confined_door: Door, confining: Cluster
) -> None:
    """The kernel kills the process that takes most of the step's memory; the cause says so, and what the limit was."""
    more = "start: spawn\nrestart: {max_restarts: 0}"
    write_job(confined_door, GREEDY, nodes="2", workers="1", more=more)
    run = confined_door.submit("job.yaml", "--set", "resources.memory_per_node=200M", wait=True, exit_code=1)
    result = run.result()
    assert (result["state"], result["reason"]) == ("FAILED", "restarts_used_up"), result
    assert re.search(r"rank \d on node\d was killed by the out-of-memory killer: .* of 200(\.0)? MiB", result["cause"])
    assert result["root_cause"]["class"] == "out_of_memory"
    only_slurm_is_left(confining)


@pytest.mark.variant(of="test_a_training_that_fits_only_without_states_goes_on_without_them")
def test_states_that_fill_the_memory_of_a_job_cost_one_restart_a_node(confined_door: Door, confining: Cluster) -> None:
    """Each node has a cgroup of its own, whose limit is the job's; the agent and the keeper in it live on.

    Mostly both nodes have no memory left in the same moment; one may be stopped before it is as far as the other.
    """
    more = "start: spawn\nrestart: {max_restarts: 3}\nstate: {replicas: 1, limit: 60%}"
    write_job(confined_door, nodes="2", workers="1", more=more)
    arguments = ["--set", "resources.memory_per_node=500M"]
    script = f"{{script: {greedy_trainer.__file__}, args: [{confined_door.folder}, 1]}}"
    run = confined_door.submit("job.yaml", "--set", f"entrypoint={script}", *arguments, wait=True)
    full = sum(LINE in path.read_text() for path in run.path.glob("agents/*.out"))
    assert 1 <= len(run.attempts()) - 1 <= full, run.story()
    first, second = begun(confined_door.folder)[:2]
    assert first == (1, 0, False)
    assert second in [(2, greedy_trainer.GREEDY_FROM - back, True) for back in (0, 1)]
    only_slurm_is_left(confining)


@pytest.mark.variant(of="test_a_requeued_job_goes_on_in_the_next_allocation")
def test_a_requeued_run_goes_on(confined_door: Door, confining: Cluster) -> None:
    once = "import os, sys\nif os.environ.get('SLURM_RESTART_COUNT', '0') != '0': sys.exit(0)\n"
    run = start(confined_door, once + WAITS, ranks=2, nodes="2", workers="1")
    confining.run("scontrol", "requeue", run.job_id)
    assert_over(run, "SUCCEEDED", 0)
    only_slurm_is_left(confining)


def test_the_null_device_can_be_used_by_workers(confined_door: Door, confining: Cluster) -> None:
    """The sandbox's GPUs are copies of it: were devices confined, no job could write there."""
    assert stat.S_ISCHR(os.stat(confining.layout.path("gpu0")).st_mode)
    write_job(confined_door, "open('/dev/null', 'w').write('x')\n", nodes="2", workers="1")
    confined_door.submit("job.yaml", wait=True)
