"""Whole starts of a job, lost, stopped or doubted on the real Slurm: one run goes on, in one world at a time."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Door, Run
from tests.integration.digits_runs import NODES, Training, is_alive, workers_on
from tests.integration.slurm_jobs import (
    agent_outputs,
    agent_pid,
    only_run,
    script_output,
    start,
    wait_for_ranks,
    write_job,
)
from tests.integration.test_slurm_survival import is_srun_stopped, slurmd_start
from tests.slurm_sandbox.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm

Note = Callable[[str, object], None]

# Each rank writes down when it began to work and, twenty times a second, that it still does.
WITNESS = """
import json, os, pathlib, time
node, attempt, rank = (os.environ[name] for name in ("HPC_ELASTIC_NODE", "HPC_ELASTIC_ATTEMPT", "RANK"))
path = pathlib.Path(f"witness-{attempt}-{rank}")
began = time.monotonic()
print("waiting", rank, flush=True)
while not pathlib.Path("finish").exists():
    path.write_text(json.dumps([node, began, time.monotonic()]))
    time.sleep(0.05)
"""
# Waits in its first allocation, and has nothing to do in the next.
WAITS_ONCE = """
import os, signal
if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
    print("waiting", os.environ["RANK"], flush=True)
    signal.pause()
"""
OWN_TEMPLATE = """{% extends "slurm/job.sh.j2" %}
{% block after %}
echo "all agents have ended"
{% endblock %}
"""
OWN_SCRIPT = """#!/bin/bash
srun --overlap --nodes=1 --ntasks=1 sleep 600 &
{line}
echo "ended $?"
srun --overlap --nodes=2 --ntasks=2 hostname
kill %1
"""
MORE = "elastic: {lease: 3s, join_timeout: 60s}\nsignals: {grace: 2s, restart_grace: 2s}"


def worked(folder: Path) -> dict[int, list[tuple[str, float, float]]]:
    """By attempt: of each rank its node, when it began to work and when it was last seen, all by one clock."""
    found: dict[int, list[tuple[str, float, float]]] = {}
    for path in folder.glob("witness-*"):
        if text := path.read_text():  # a write may be under way
            node, began, last = json.loads(text)
            found.setdefault(int(path.name.split("-")[1]), []).append((node, began, last))
    return found


def works_in(run: Run, folder: Path, allocation: int) -> bool:
    """Whether workers of an attempt of this allocation have been seen at work."""
    return any(run.read(run.layout.claim(attempt))["allocation"] == allocation for attempt in worked(folder))


def assert_no_overlap(folder: Path) -> float:
    """No worker of an attempt worked when one of a later attempt had begun; returns the shortest time between them."""
    attempts = worked(folder)
    gaps = []
    for earlier, later in zip(sorted(attempts), sorted(attempts)[1:], strict=False):
        ended = max(last for _, _, last in attempts[earlier])
        began = min(began for _, began, _ in attempts[later])
        assert ended < began, f"attempts {earlier} and {later} overlap by {ended - began:.2f} s: {attempts}"
        gaps.append(began - ended)
    return min(gaps)


def off_for_4_s(slurm: Cluster, node: str) -> None:
    off = time.monotonic()
    slurm.kill(node)
    wait_until(lambda: time.monotonic() > off + 4, "four seconds without power")
    slurm.boot(node)


@pytest.mark.variant(of="test_a_node_that_is_back_before_slurm_has_given_it_up_ends_nobodys_run")
@pytest.mark.parametrize("order", [NODES, tuple(reversed(NODES))], ids=["batch-host-first", "batch-host-last"])
def test_every_node_goes_off_and_comes_back_in_turn_and_the_run_succeeds(
    slurm_door: Door, slurm: Cluster, order: tuple[str, ...]
) -> None:
    """All agents of the first start die one after the other; Slurm requeues a job whose batch host was away."""
    training = Training.submit(slurm_door)
    slurm.wait_for_job(training.run.job_id, "RUNNING")
    age = time.monotonic()
    training.wait_until_held(1, 4)
    wait_until(lambda: time.monotonic() > age + 12, "Slurm has no patience with a new job any more")
    for node in order:
        off_for_4_s(slurm, node)
    wait_until(
        lambda: Path(training.run.layout.allocation(2)).exists() or training.run.is_over(),
        "the job has started again",
        within_s=120,
        otherwise=lambda: training.story() + slurm.controller_log(),
    )
    training.go()
    result = training.run.wait_until_over()
    assert result["state"] == "SUCCEEDED", training.story()
    training.assert_completed(slurm)


@pytest.mark.variant(of="test_a_requeued_job_goes_on_in_the_next_allocation")
def test_a_node_whose_slurmd_died_works_no_more_when_the_requeued_job_does(
    slurm_door: Door, slurm: Cluster, record_property: Note
) -> None:
    """Its agent, workers and disk live on, and nobody can reach it: neither Slurm nor the other agents."""
    write_job(slurm_door, WITNESS, nodes="{min: 1, max: 4}", workers="1", more=MORE)
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 4)
    with slurm.configured(SlurmdTimeout=10):
        slurm.run_on("node1", "pkill", "-9", "slurmd")
        slurm.cut("node1")
        wait_until(lambda: slurm.node_states()["node1"].startswith("down"), "Slurm has given node1 up", within_s=90)
        slurm.run("scontrol", "requeue", run.job_id)  # with --no-kill it does not do that by itself
        assert any(is_alive(pid) for pid in workers_on(run, "node1")), run.story()
        wait_until(
            lambda: Path(run.layout.allocation(2)).exists(),
            "the job has started again",
            within_s=150,
            otherwise=lambda: run.story() + slurm.controller_log(),
        )
        wait_until(lambda: works_in(run, slurm_door.folder, 2), "the new start works", otherwise=run.story)
        record_property("between the worlds", f"{assert_no_overlap(slurm_door.folder):.2f} s")
        slurm_door.write("finish", "")
        result = run.wait_until_over()
        assert result["state"] == "SUCCEEDED", run.story()
        assert_no_overlap(slurm_door.folder)
        slurm.kill("node1")  # what is left on it has no slurmd that could end it
        slurm.boot("node1")
    slurm.wait_for_job(run.job_id, "COMPLETED", within_s=90)


@pytest.mark.variant(of="test_a_node_that_is_back_before_slurm_has_given_it_up_ends_nobodys_run")
@pytest.mark.mirrored
@pytest.mark.parametrize("seconds", [2, 15])
def test_a_job_that_slurm_suspends_and_resumes_goes_on(slurm_door: Door, slurm: Cluster, seconds: float) -> None:
    """Nobody could have gone on meanwhile: all nodes stand still, for less than a lease or for several."""
    training = Training.start(slurm_door)
    slurm.run("scontrol", "suspend", training.run.job_id)
    slurm.wait_for_job(training.run.job_id, "SUSPENDED")
    stopped = time.monotonic()
    wait_until(lambda: time.monotonic() > stopped + seconds, "it stands still")
    slurm.run("scontrol", "resume", training.run.job_id)
    training.go()
    result = training.run.wait_until_over()
    assert (result["state"], result["restarts"]) == ("SUCCEEDED", 0), training.story()
    training.assert_completed(slurm)


@pytest.mark.variant(of="test_a_node_that_is_back_before_slurm_has_given_it_up_ends_nobodys_run")
@pytest.mark.mirrored
def test_a_resume_after_a_node_was_lost_and_came_back_ends_nobodys_run(slurm_door: Door, slurm: Cluster) -> None:
    """A resume lets srun go on, which was stopped, and it would end the step for the node that is back.

    The script waits for the run without it, before what a site's own template does when every agent has ended.
    """
    slurm_door.write("own.sh.j2", OWN_TEMPLATE)
    training = Training.start(slurm_door, more="template: own.sh.j2")
    started = slurmd_start(slurm, "node3")
    with slurm.configured(SlurmdTimeout=300):
        slurm.kill("node3")
        training.wait_until_held(2, 3)
        slurm.boot("node3")
        wait_until(lambda: slurmd_start(slurm, "node3") != started, "slurmctld knows of the new slurmd", within_s=90)
        suspend_and_resume(slurm, training)
        training.go()
        result = training.run.wait_until_over()
        assert (result["state"], result["restarts"]) == ("SUCCEEDED", 0), training.story()
        assert "SUCCEEDED" in slurm_door.run("status", training.run.layout.root).stdout
        training.assert_completed(slurm)
    written = script_output(training.run)
    assert "srun is ended" in written
    assert written.index("every rank exited 0") < written.index("all agents have ended")


def boot_a_node_and_kill_the_agent_beside_srun(training: Training, slurm: Cluster) -> None:
    """Have node3 start again before Slurm has given it up, then kill the agent of node1; others go on each time."""
    started = slurmd_start(slurm, "node3")
    slurm.kill("node3")
    training.wait_until_held(2, 3)
    slurm.boot("node3")
    wait_until(lambda: slurmd_start(slurm, "node3") != started, "slurmctld knows of the new slurmd", within_s=90)
    os.kill(agent_pid(training.run, "node1"), signal.SIGKILL)
    training.wait_until_held(3, 2)


@pytest.mark.mirrored
@pytest.mark.variant(of="test_a_node_that_is_back_before_slurm_has_given_it_up_ends_nobodys_run")
def test_the_agent_beside_srun_dies_after_a_node_came_back_and_the_others_go_on(
    slurm_door: Door, slurm: Cluster
) -> None:
    """Nobody could tell a stopped srun that all agents have ended, and one that goes on would end the step itself."""
    training = Training.start(slurm_door)
    wait_until(lambda: is_srun_stopped(slurm, "node1"), "srun is stopped")
    with slurm.configured(SlurmdTimeout=300):
        boot_a_node_and_kill_the_agent_beside_srun(training, slurm)
        assert "RUNNING" in slurm_door.run("status", training.run.layout.root).stdout
        training.finish(4, 3, 2)
        training.assert_completed(slurm)
    assert "srun is ended" in script_output(training.run)


@pytest.mark.variant(of="test_a_node_that_is_back_before_slurm_has_given_it_up_ends_nobodys_run")
@pytest.mark.mirrored
def test_the_agent_beside_the_srun_of_an_own_batch_script_dies_and_its_next_line_comes_after_the_run(
    slurm_door: Door, slurm: Cluster
) -> None:
    """`hpc-elastic run` is one line of it, as in a shell of salloc on a node; another step is at work beside it."""
    Training.write_job(slurm_door, nodes="{min: 2, max: 4}")
    slurm_door.write("own.sh", OWN_SCRIPT.format(line=shlex.join([*slurm_door.command, "run", "job.yaml"])))
    options = ("--parsable", "--no-kill", "--nodes=4", "--cpus-per-task=2", "--time=10", "--output=own.out", "own.sh")
    job_id = slurm.run("sbatch", *options, environment=slurm_door.environ, cwd=slurm_door.folder).stdout.strip()
    folder = slurm_door.folder / "hpc-elastic-runs"
    wait_until(lambda: folder.exists() and list(folder.iterdir()), "there is a run")
    training = Training(run=only_run(slurm_door, job_id), folder=slurm_door.folder)
    training.wait_until_held(1, 4)
    wait_until(lambda: is_srun_stopped(slurm, "node1"), "srun is stopped")
    with slurm.configured(SlurmdTimeout=300):
        boot_a_node_and_kill_the_agent_beside_srun(training, slurm)
        training.finish(4, 3, 2)
        slurm.wait_for_job(job_id, "COMPLETED", within_s=90)
    assert "srun is ended" in script_output(training.run)
    written = (slurm_door.folder / "own.out").read_text().splitlines()
    assert "ended 0" in written
    assert len([name for name in written if name in NODES]) == 2, written


@pytest.mark.variant(of="test_a_node_that_is_back_before_slurm_has_given_it_up_ends_nobodys_run")
@pytest.mark.mirrored
@pytest.mark.parametrize("after_s", [0.0, 1.2])
def test_a_node_comes_back_after_the_agent_beside_srun_died_and_the_others_go_on(
    slurm_door: Door, slurm: Cluster, after_s: float
) -> None:
    """Whether they open the next attempt at once, or when the script has begun to count the seconds."""
    training = Training.start(slurm_door)
    wait_until(lambda: is_srun_stopped(slurm, "node1"), "srun is stopped")
    started = slurmd_start(slurm, "node3")
    others = [agent_pid(training.run, node) for node in NODES[1:]]
    with slurm.configured(SlurmdTimeout=300):
        for agent in others:
            os.kill(agent, signal.SIGSTOP)
        os.kill(agent_pid(training.run, "node1"), signal.SIGKILL)
        killed = time.monotonic()
        wait_until(lambda: time.monotonic() >= killed + after_s, "they have stood still")
        for agent in others:
            os.kill(agent, signal.SIGCONT)
        training.wait_until_held(2, 3)
        wait_until(lambda: "srun is ended" in script_output(training.run), "srun is ended", otherwise=training.story)
        slurm.kill("node3")
        training.wait_until_held(3, 2)
        slurm.boot("node3")
        wait_until(lambda: slurmd_start(slurm, "node3") != started, "slurmctld knows of the new slurmd", within_s=90)
        training.finish(4, 3, 2)
        training.assert_completed(slurm)


@pytest.mark.variant(of="test_a_step_that_is_killed_whole_has_a_result_from_its_script_at_once")
@pytest.mark.mirrored
def test_the_job_ends_if_all_agents_die_after_a_restart(
    slurm_door: Door, slurm: Cluster, record_property: Note
) -> None:
    training = Training.start(slurm_door)
    wait_until(lambda: is_srun_stopped(slurm, "node1"), "srun is stopped")
    os.kill(agent_pid(training.run, "node3"), signal.SIGKILL)
    training.wait_until_held(2, 3)
    agents = [agent_pid(training.run, node) for node in NODES if node != "node3"]
    for agent in agents:  # one that outlived another for a moment would write the result
        os.kill(agent, signal.SIGSTOP)
    killed = time.time()
    for agent in agents:
        os.kill(agent, signal.SIGKILL)
    result = training.run.wait_until_over()
    assert (result["state"], result["written_by"]) == ("UNKNOWN", "script"), training.story()
    record_property("result", f"after {Path(training.run.layout.result).stat().st_mtime - killed:.2f} s")
    slurm.wait_for_job(training.run.job_id, "FAILED")


def suspend_and_resume(slurm: Cluster, training: Training) -> None:
    wait_until(lambda: is_srun_stopped(slurm, "node1"), "srun is stopped")
    slurm.run("scontrol", "suspend", training.run.job_id)
    slurm.wait_for_job(training.run.job_id, "SUSPENDED")
    slurm.run("scontrol", "resume", training.run.job_id)


@pytest.mark.variant(of="test_a_node_that_is_back_before_slurm_has_given_it_up_ends_nobodys_run")
@pytest.mark.mirrored
def test_the_job_ends_if_all_agents_die_after_a_suspend(slurm_door: Door, slurm: Cluster) -> None:
    """No srun tells the script, which was ended; Slurm, which it asks, has no step any more."""
    training = Training.start(slurm_door)
    suspend_and_resume(slurm, training)
    for node in NODES:
        # Not the srun beside them, whose command names their module: the script ends it, now or soon.
        slurm.run_on(node, "pkill", "-KILL", "-f", r"^[^ ]*python[^ ]* .*hpc_elastic\.agent\.main")
    result = training.run.wait_until_over()
    assert (result["state"], result["written_by"]) == ("UNKNOWN", "script"), training.story()
    slurm.wait_for_job(training.run.job_id, "FAILED")


@pytest.mark.variant(of="test_a_requeued_job_goes_on_in_the_next_allocation")
@pytest.mark.mirrored
def test_a_requeue_whose_controller_is_away_for_a_minute_is_no_cancel(slurm_door: Door, slurm: Cluster) -> None:
    """The agents get the TERM of the requeue, and nobody can tell them that it is one."""
    with slurm.configured(UnkillableStepTimeout=300):  # else a step that cannot report its end drains its node
        training = Training.start(slurm_door)
        slurm.run("scontrol", "requeue", training.run.job_id)
        wait_until(lambda: "got SIGTERM" in agent_outputs(training.run), "the agents have their TERM")
        with slurm.frozen_slurmctld():
            away = time.monotonic()
            wait_until(lambda: time.monotonic() > away + 60, "a minute without a controller", within_s=70)
            assert not training.run.is_over(), training.story()
        wait_until(
            lambda: Path(training.run.layout.allocation(2)).exists(),
            "the job has started again",
            within_s=150,
            otherwise=lambda: training.story() + slurm.controller_log(),
        )
        training.go()
        result = training.run.wait_until_over()
        assert (result["state"], result["restarts"]) == ("SUCCEEDED", 0), training.story()
        training.assert_completed(slurm)


def refusing(slurm: Cluster, node: str) -> contextlib.AbstractContextManager[None]:
    """A node whose slurmd cannot start the program that runs a step."""
    program = shutil.which("slurmstepd", path=slurm.environment["PATH"])
    assert program
    return slurm.mounted(node, "/bin/false", os.path.realpath(program))


@pytest.mark.mirrored
def test_a_node_that_refuses_the_agents_is_left_out_at_the_next_start(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, WITNESS, nodes="{min: 2, max: 4}", more=f"{MORE}\nrequeue: {{max: 2}}")
    with refusing(slurm, "node3"):
        run = slurm_door.submit("job.yaml")
        wait_for_ranks(run, 6)
        Path(slurm_door.folder, "finish").touch()
        result = run.wait_until_over()
    assert (result["state"], result["nodes"]) == ("SUCCEEDED", ["node1", "node2", "node4"]), run.story()
    assert "srun could not start the agents on node3 (" in script_output(run)


@pytest.mark.mirrored
@pytest.mark.variant(of="test_a_node_that_refuses_the_agents_is_left_out_at_the_next_start")
def test_a_job_that_needs_a_node_that_refuses_the_agents_ends_with_its_name(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, WITNESS, more=f"{MORE}\nrequeue: {{max: 1}}")
    with refusing(slurm, "node3"):
        done = slurm_door.run("submit", "job.yaml", "--wait", exit_code=7)
    assert "FAILED (exit code 7): srun could not start the agents on node3 (" in done.stderr
    (output,) = slurm_door.folder.glob("hpc-elastic-runs/*/slurm-*.out")
    assert output.read_text().count("hpc_elastic: run directory ") == 2


@pytest.mark.every_slurm
@pytest.mark.variant(of="test_a_requeued_job_goes_on_in_the_next_allocation")
def test_an_agent_that_a_requeue_has_not_reached_does_not_end_the_run_for_want_of_nodes(
    slurm_door: Door, slurm: Cluster
) -> None:
    """Its slurmd stands still, so that it gets no TERM; and `requeue.on` starts nothing again for a lost node."""
    run = start(slurm_door, WAITS_ONCE, ranks=2, nodes="2", workers="1", more=MORE)
    host, other = run.read(run.layout.allocation(1))["nodes"]
    with slurm.configured(SlurmdTimeout=300):
        with slurm.frozen_slurmd(other):
            slurm.kill(host)
            slurm.run("scontrol", "requeue", run.job_id)
            requeued = "the scheduler has requeued the job; the run goes on when it starts again"
            wait_until(lambda: requeued in agent_outputs(run), "its head leaves", within_s=40, otherwise=run.story)
        slurm.boot(host)
        result = run.wait_until_over()
    assert result["state"] == "SUCCEEDED", run.story()
    assert run.read(run.layout.claim(result["attempts"]))["allocation"] == 2
    slurm.wait_for_job(run.job_id, "COMPLETED", within_s=60)
