"""What Slurm ends and the run survives, on the real Slurm: the time limit and preemption."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.arrays import submit as submit_array
from tests.integration.conftest import Door, Run
from tests.integration.slurm_jobs import (
    agent_outputs,
    assert_over,
    environment_of,
    events,
    only_run,
    script_output,
    wait_for_ranks,
    write_job,
)
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.tiers import variants

pytestmark = pytest.mark.slurm

# Rank 0 saves each step, and writes down which it did; all end when enough are done. A TERM ends it at once.
TRAINS = """
import os, pathlib, time
rank, saved = os.environ["RANK"], pathlib.Path("step")
step = int(saved.read_text()) if saved.exists() else 0
print("waiting, resumed at", step, flush=True)
while int(saved.read_text() if saved.exists() else 0) < {steps}:
    if rank == "0":
        step += 1
        pathlib.Path("step.new").write_text(str(step))
        with open("done", "a") as file:
            file.write(f"{{step}}\\n")
        os.replace("step.new", saved)
    time.sleep(0.1)
"""
# The same, until there is a file `finish`: however long it takes until Slurm ends the first allocation.
TRAINS_ON = TRAINS.replace(
    "int(saved.read_text() if saved.exists() else 0) < {steps}", "not pathlib.Path('finish').exists()"
).format()
LIMITED = "time: 1m\nsignals: {lead: 30s, grace: 30s, restart_grace: 2s}"  # stopped 31 s before the end


def write_limited(door: Door, script: str, *, more: str = LIMITED, nodes: str = "2") -> None:
    """Write a job whose time is short."""
    write_job(door, script, nodes=nodes, workers="1", more=more)
    job = door.folder / "job.yaml"
    job.write_text(job.read_text().replace("time: 10m\n", "", 1))


def steps_done(door: Door) -> list[int]:
    """The steps that rank 0 did, in their order."""
    path = door.folder / "done"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def has_done(door: Door, steps: int) -> bool:
    """Return whether rank 0 did so many steps."""
    return len(steps_done(door)) > steps


def assert_none_repeated(door: Door, steps: int) -> None:
    """Each step was done once, but for at most one a stop, which was done and not yet saved."""
    done = steps_done(door)
    assert sorted(set(done)) == list(range(1, steps + 1))
    assert len(done) <= steps + 2, done


def stops_of(run: Run) -> list[str]:
    """Why the run was stopped, in order."""
    found = [event for event in events(run) if event["name"] == "run.stopping"]
    return [event["metadata"]["reason"] for event in sorted(found, key=lambda event: event["time_ns"])]


def requeues_of(run: Run) -> list[tuple[Any, Any]]:
    """Allocation and reason of each requeue that a head has decided."""
    lines = (run.path / "requests.jsonl").read_text().splitlines()
    return [(line["allocation"], line["reason"]) for line in map(json.loads, lines) if line["kind"] == "requeue"]


@contextlib.contextmanager
def preempting(slurm: Cluster, *options: str) -> Iterator[str]:
    """Have the urgent partition take all nodes, until the block is over.

    A TERM that comes between the start of a job and that of its script is lost (24.11), and Slurm waits for KillWait.
    """
    with tempfile.TemporaryDirectory() as folder:
        begun = Path(folder, "begun")
        script = f"--wrap=touch {begun}; exec sleep 600"
        job_id = slurm.submit("--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null", *options, script)
        try:
            yield job_id
        finally:
            if slurm.run("scontrol", "hold", job_id, check=False).returncode == 0:
                # Held, it stays pending if it is.
                wait_until(
                    lambda: begun.exists() or slurm.job(job_id).get("JobState") in ("PENDING", None),
                    "the urgent job does not begin now",
                )
            slurm.run("scancel", job_id)


@pytest.mark.variant(of="test_a_preempted_run_goes_on_however_slurm_preempts")
@pytest.mark.mirrored
def test_a_training_longer_than_the_time_limit_finishes_over_requeues(slurm_door: Door, slurm: Cluster) -> None:
    write_limited(slurm_door, TRAINS.format(steps=400))
    waiting = slurm_door.start("submit", "job.yaml", "--wait")
    wait_until(slurm.job_ids, "the job is in the queue")
    (job_id,) = slurm.job_ids()
    run = only_run(slurm_door, job_id)
    output, errors = waiting.communicate(timeout=240)
    assert waiting.returncode == 0, output + errors + run.story()
    result = assert_over(run, "SUCCEEDED", 0)
    assert result["attempts"] >= 2, run.story()
    assert_none_repeated(slurm_door, 400)
    assert requeues_of(run)[0] == (1, "time_limit")
    assert stops_of(run)[0] == "time_limit"
    assert "the job's time limit was reached; the job is started again" in script_output(run)
    claim = run.read(run.layout.claim(2))
    assert claim["reason"].endswith("allocation 1 ended because the job's time limit was reached")
    assert claim["spend"]["restarts"] == 0


@pytest.mark.variant(of="test_a_preempted_run_goes_on_however_slurm_preempts")
@pytest.mark.mirrored
def test_a_run_that_is_preempted_twice_finishes_with_one_submit(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, TRAINS.format(steps=150), nodes="2", workers="1")
    waiting = slurm_door.start("submit", "job.yaml", "--wait")
    wait_until(slurm.job_ids, "the job is in the queue")
    (job_id,) = slurm.job_ids()
    run = only_run(slurm_door, job_id)
    for attempt in (1, 2):
        wait_for_ranks(run, 2, attempt=attempt)
        steps = len(steps_done(slurm_door)) + 5
        wait_until(partial(has_done, slurm_door, steps), "it trains", otherwise=run.story)
        with preempting(slurm) as urgent:
            slurm.wait_for_job(urgent, "RUNNING")
            assert not run.is_over(), run.story()
    output, errors = waiting.communicate(timeout=240)
    assert waiting.returncode == 0, output + errors + run.story()
    result = assert_over(run, "SUCCEEDED", 0)
    assert (result["attempts"], result["restarts"]) == (3, 0), run.story()
    assert_none_repeated(slurm_door, 150)
    assert stops_of(run) == ["preempted", "preempted"]
    assert requeues_of(run) == [(1, "preempted"), (2, "preempted")]


def test_a_run_whose_requeues_are_used_up_ends_for_what_ended_it(slurm_door: Door, slurm: Cluster) -> None:
    more = "requeue: {max: 0}\nsignals: {grace: 8s, restart_grace: 2s}"
    write_job(slurm_door, TRAINS.format(steps=10_000), nodes="2", workers="1", more=more)
    waiting = slurm_door.start("submit", "job.yaml", "--wait")
    wait_until(slurm.job_ids, "the job is in the queue")
    (job_id,) = slurm.job_ids()
    run = only_run(slurm_door, job_id)
    wait_for_ranks(run, 2)
    with preempting(slurm):
        output, errors = waiting.communicate(timeout=120)
    assert waiting.returncode == 7, output + errors + run.story()
    result = assert_over(run, "FAILED", 7)
    assert result["reason"] == "preempted"
    assert "requeue.max is 0" in result["cause"]


@contextlib.contextmanager
def preempting_by(slurm: Cluster, mode: str, grace_s: int) -> Iterator[None]:
    """Have jobs of the partition preempted in another way."""
    update = ("scontrol", "update", "PartitionName=batch")
    slurm.run(*update, f"PreemptMode={mode}", f"GraceTime={grace_s}")
    try:
        yield
    finally:
        slurm.run(*update, "PreemptMode=REQUEUE", "GraceTime=5")


@pytest.mark.every_slurm
@pytest.mark.parametrize(
    ("mode", "grace_s"),
    [
        ("CANCEL", 0),
        *variants(("CANCEL", 20), ("REQUEUE", 0), of="test_a_preempted_run_goes_on_however_slurm_preempts"),
    ],
)
def test_a_preempted_run_goes_on_however_slurm_preempts(
    slurm_door: Door, slurm: Cluster, mode: str, grace_s: int
) -> None:
    write_job(slurm_door, TRAINS_ON, nodes="2", workers="1")
    with preempting_by(slurm, mode, grace_s):
        run = slurm_door.submit("job.yaml")
        wait_for_ranks(run, 2)
        with preempting(slurm) as urgent:
            slurm.wait_for_job(urgent, "RUNNING")
            assert not run.is_over(), run.story()
        wait_for_ranks(run, 2, attempt=2)
        slurm_door.write("finish", "")
        result = assert_over(run, "SUCCEEDED", 0)
        # Slurm 24.11 remembers that a start before had a grace, and requeues the job as it ends where that is the mode.
        wait_until(lambda: not slurm.job_ids(), "the job has left", otherwise=run.story)
    assert (result["attempts"], result["restarts"]) == (2, 0), run.story()
    assert requeues_of(run)[0][0] == 1
    if mode == "CANCEL":
        assert requeues_of(run) == [(1, "preempted")]


@pytest.mark.every_slurm
@pytest.mark.variant(of="test_a_preempted_run_goes_on_however_slurm_preempts")
def test_a_preempted_run_goes_on_whose_script_alone_somebody_has_signalled_before(
    slurm_door: Door, slurm: Cluster
) -> None:
    """slurmstepd takes that TERM for the end of the job, and writes the line of a `scancel`; the run goes on."""
    write_job(slurm_door, TRAINS_ON, nodes="2", workers="1")
    with preempting_by(slurm, "CANCEL", 0):
        run = slurm_door.submit("job.yaml")
        wait_for_ranks(run, 2)
        slurm.run("scancel", "--batch", "--signal=TERM", run.job_id)
        wait_until(lambda: "the job runs on" in script_output(run), "the script tells of it", otherwise=run.story)
        assert "CANCELLED AT" in script_output(run)
        with preempting(slurm) as urgent:
            slurm.wait_for_job(urgent, "RUNNING")
            assert not run.is_over(), run.story()
        wait_for_ranks(run, 2, attempt=2)
        slurm_door.write("finish", "")
        assert_over(run, "SUCCEEDED", 0)
    assert requeues_of(run) == [(1, "preempted")]


# After the first TERM each rank saves until the test lets it go.
SAVES_LONG = """
import os, pathlib, signal, sys, time

def stopped(number, frame):
    print("saving", flush=True)
    while not pathlib.Path("saved").exists():
        time.sleep(0.05)
    sys.exit(0)

signal.signal(signal.SIGTERM, stopped)
print("waiting", os.environ["RANK"], flush=True)
while not pathlib.Path("saved").exists():
    time.sleep(0.05)
"""


def kill_script(run: Run) -> None:
    """Kill the batch script alone: what else is left of its step is then Slurm's to kill."""
    output = Path(run.layout.script_output(run.job_id)).resolve()
    killed = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if b"/slurm_script" in (entry / "cmdline").read_bytes() and (entry / "fd/1").resolve() == output:
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(entry.name)
    assert killed, run.story()


def write_saving(door: Door, *, is_chained: bool = False) -> None:
    """Write a job whose workers take as long to save as the test likes."""
    more = "signals: {lead: 60s, grace: 50s}"
    if is_chained:
        write_chaining(door, SAVES_LONG, more)
    else:
        write_job(door, SAVES_LONG, nodes="2", workers="1", more=more)


def lose_script_while_saving(door: Door, run: Run) -> None:
    """Kill the batch script while the workers save, then let them leave with their agents."""
    for rank in range(2):
        run.wait_for_output("saving", rank=rank)
    kill_script(run)
    door.write("saved", "")
    wait_until(lambda: not run.agents(), "all agents have left", otherwise=run.story)


@pytest.mark.every_slurm
@pytest.mark.parametrize(
    "is_chained",
    [
        pytest.param(False, id="requeued"),
        *variants(
            True,
            of="test_a_preempted_run_goes_on_if_slurm_kills_the_script_before_the_agents_have_left",
            ids=["chained"],
        ),
    ],
)
def test_a_preempted_run_goes_on_if_slurm_kills_the_script_before_the_agents_have_left(
    slurm_door: Door, slurm: Cluster, is_chained: bool
) -> None:
    """Both have KillWait, which each node counts for itself, and the script asks Slurm only when they have left."""
    write_saving(slurm_door, is_chained=is_chained)
    with slurm.configured(KillWait=90), preempting_by(slurm, "CANCEL", 0):
        run = slurm_door.submit("job.yaml")
        wait_for_ranks(run, 2)
        with preempting(slurm) as urgent:
            lose_script_while_saving(slurm_door, run)
            assert requeues_of(run) == [(1, "preempted")]
            (follower,) = chained_jobs(run) if is_chained else [run.job_id]
            wait_until(
                lambda: sorted(slurm.job_ids()) == sorted([follower, urgent]), "one job follows", otherwise=run.story
            )
        result = assert_over(run, "SUCCEEDED", 0)
    assert (result["attempts"], result["restarts"]) == (2, 0), run.story()
    assert len(list(Path(run.layout.allocations).glob("*.json"))) == 2, run.story()


@pytest.mark.every_slurm
def test_a_run_whose_job_a_person_cancels_is_over_if_its_script_is_killed_before_the_agents_have_left(
    slurm_door: Door, slurm: Cluster
) -> None:
    write_saving(slurm_door)
    with slurm.configured(KillWait=90):
        run = slurm_door.submit("job.yaml")
        wait_for_ranks(run, 2)
        slurm.run("scancel", run.job_id)
        lose_script_while_saving(slurm_door, run)
        assert_over(run, "CANCELLED", 10)
        wait_until(lambda: not slurm.job_ids(), "no job is left", otherwise=run.story)
    assert not requeues_of(run)


@pytest.mark.mirrored
@pytest.mark.parametrize("is_script_killed", [True, False], ids=["script killed", "script lives"])
def test_a_run_whose_job_a_person_cancels_within_the_grace_of_a_preemption_is_over(
    slurm_door: Door, slurm: Cluster, is_script_killed: bool
) -> None:
    """Slurm keeps the time of the preemption: it is no longer why the job ends."""
    write_saving(slurm_door)
    with slurm.configured(KillWait=90), preempting_by(slurm, "CANCEL", 90):
        run = slurm_door.submit("job.yaml")
        wait_for_ranks(run, 2)
        with preempting(slurm):
            for rank in range(2):
                run.wait_for_output("saving", rank=rank)
            slurm.run("scancel", run.job_id)
            slurm.wait_for_job(run.job_id, "COMPLETING")
            if is_script_killed:
                kill_script(run)
            slurm_door.write("saved", "")
            wait_until(lambda: not run.agents(), "all agents have left", otherwise=run.story)
        wait_until(lambda: not slurm.job_ids(), "no job is left", otherwise=run.story)
        slurm_door.run("status", run.job_id)  # which makes the result
        assert_over(run, "CANCELLED", 10)
    assert len(list(Path(run.layout.allocations).glob("*.json"))) == 1, run.story()


# Needs some seconds to save after a TERM.
SAVES = """
import os, signal, sys, time

def stopped(number, frame):
    print("saving", flush=True)
    time.sleep(3)
    print("saved", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, stopped)
print("waiting", os.environ["RANK"], flush=True)
while True:
    signal.pause()
"""


def test_cancel_during_the_grace_of_a_preemption_ends_the_run(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, SAVES, nodes="2", workers="1")
    with preempting_by(slurm, "REQUEUE", 30):
        run = slurm_door.submit("job.yaml")
        wait_for_ranks(run, 2)
        with preempting(slurm):
            run.wait_for_output("saving")
            slurm_door.run("cancel", run.job_id)
        result = assert_over(run, "CANCELLED", 10)
    assert result["reason"] == "stop_requested", run.story()
    assert [run.stdout(1, rank).split()[-1] for rank in range(2)] == ["saved", "saved"]
    assert run.attempts() == [1]


@pytest.mark.mirrored
@pytest.mark.parametrize(
    ("how", "saves_s", "grace_s"),
    [
        ("scancel", 7, 12),  # longer than the sandbox's own KillWait
        *variants(
            ("scancel", 20, 30), ("preemption", 20, 30), of="test_a_handler_finishes_where_slurm_gives_it_as_long"
        ),
    ],
)
def test_a_handler_finishes_where_slurm_gives_it_as_long(
    slurm_door: Door, slurm: Cluster, how: str, saves_s: int, grace_s: int
) -> None:
    script = SAVES.replace("time.sleep(3)", f"time.sleep({saves_s})").replace(
        'print("waiting"', 'os.environ["HPC_ELASTIC_ATTEMPT"] == "1" or sys.exit(0)\nprint("waiting"'
    )
    signals = f"signals: {{lead: {2 * grace_s}s, grace: {grace_s}s, restart_grace: 2s}}"
    write_job(slurm_door, script, nodes="2", workers="1", more=signals)
    with slurm.configured(KillWait=40), preempting_by(slurm, "REQUEUE", 40):
        assert "Slurm kills" not in slurm_door.run("check", "job.yaml").stderr
        run = slurm_door.submit("job.yaml")
        wait_for_ranks(run, 2)
        if how == "scancel":
            slurm.run("scancel", run.job_id)
            assert_over(run, "CANCELLED", 10)
        else:
            with preempting(slurm) as urgent:
                slurm.wait_for_job(urgent, "RUNNING", within_s=90)
            assert_over(run, "SUCCEEDED", 0)
    assert [run.stdout(1, rank).split()[-1] for rank in range(2)] == ["saved", "saved"], run.story()


@pytest.mark.variant(of="test_a_blamed_node_is_excluded_from_the_next_start")
@pytest.mark.mirrored
def test_a_run_that_loses_too_many_nodes_goes_on_in_another_allocation(slurm_door: Door, slurm: Cluster) -> None:
    more = "requeue: {on: [node_loss]}\nelastic: {lease: 3s}\nsignals: {grace: 8s, restart_grace: 2s}"
    write_job(slurm_door, TRAINS.format(steps=150), nodes="2", workers="1", more=more)
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 2)
    slurm.kill("node2")
    wait_for_ranks(run, 2, attempt=2)
    slurm.boot("node2")
    result = assert_over(run, "SUCCEEDED", 0, killed=["node2"])
    assert (result["attempts"], result["restarts"]) == (2, 0)
    assert requeues_of(run) == [(1, "node_lost")]


ARRAY = """\
name: probe
site: generic-slurm
nodes: 1
time: 1m
resources: {cpus_per_worker: 1}
restart: {max_restarts: 0}
signals: {lead: 30s, grace: 30s, restart_grace: 2s}
entrypoint: {script: train.py, args: ["${lr}${seed}"]}
"""
TASK = """
import os, pathlib, sys, time
saved = pathlib.Path("step" + sys.argv[1])
step = int(saved.read_text()) if saved.exists() else 0
if sys.argv[1] == "20" and step > 50:
    sys.exit("this one fails for good")
while step < 330:
    step += 1
    saved.with_suffix(".new").write_text(str(step))
    os.replace(saved.with_suffix(".new"), saved)
    time.sleep(0.1)
"""


@pytest.mark.variant(of="test_a_preempted_run_goes_on_however_slurm_preempts")
def test_tasks_of_an_array_go_on_over_time_limits_and_one_fails_for_good(slurm_door: Door, slurm: Cluster) -> None:
    slurm_door.write("job.yaml", ARRAY)
    slurm_door.write("train.py", TASK)
    array = submit_array(slurm_door, "--wait", exit_code=1)
    states = [(run.result()["state"], run.result()["exit_code"]) for run in array.runs]
    assert states == [("SUCCEEDED", 0), ("SUCCEEDED", 0), ("FAILED", 1), ("SUCCEEDED", 0)], array.story()
    assert [len(run.attempts()) for run in array.runs] == [2, 2, 2, 2], array.story()
    assert [requeues_of(run) for run in array.runs] == [[(1, "time_limit")]] * 4
    for run in array.runs:
        run.assert_nothing_left(within_s=40)
        run.assert_records_valid()


# Each allocation is told to end after 20 steps, and saves then.
TASK_IN_PARTS = """
import os, pathlib, sys, time
from hpc_elastic.worker import notice_received
saved = pathlib.Path("step" + sys.argv[1])
step = int(saved.read_text()) if saved.exists() else 0
print("waiting, resumed at", step, flush=True)
if sys.argv[1] == "20" and step:
    sys.exit("this one fails for good")
while not notice_received() and step < 2000:
    step += 1
    time.sleep(0.05)
    if pathlib.Path("finish").exists():
        sys.exit(0)
saved.write_text(str(step))
sys.exit(75)
"""


@pytest.mark.variant(of="test_a_chained_job_goes_on_where_the_site_forbids_requeues")
def test_tasks_of_an_array_go_on_in_chained_jobs_and_one_fails_for_good(slurm_door: Door, slurm: Cluster) -> None:
    slurm_door.write("chaining.yaml", CHAINING)
    slurm_door.write("job.yaml", ARRAY.replace("site: generic-slurm", "site: ./chaining.yaml").replace("1m", "10m"))
    slurm_door.write("train.py", TASK_IN_PARTS)
    array = submit_array(slurm_door)
    for task in range(4):
        wait_for_ranks(array.runs[task], 1)
    for attempt in (2, 3):
        tasks = [task for task in range(4) if not array.runs[task].is_over()]
        for task in tasks:
            may_fail = task == 2  # it goes on and fails before the command has seen that, or before it is asked
            code = None if may_fail else 0
            slurm_door.run("stop", "--requeue", "--lead", "20s", f"{array.job_id}_{task}", exit_code=code)
        for task in tasks:
            run = array.runs[task]
            wait_until(
                lambda run=run, attempt=attempt: run.is_over() or attempt in run.attempts(),  # type: ignore[misc]
                "it goes on",
                within_s=150,
                otherwise=array.story,
            )
        for task in tasks:
            if task != 2:
                wait_for_ranks(array.runs[task], 1, attempt=attempt)
    (slurm_door.folder / "finish").touch()
    for run in array.runs:
        run.wait_until_over()
        run.assert_nothing_left(within_s=40)
        run.assert_records_valid()
    states = [(run.result()["state"], run.result()["exit_code"]) for run in array.runs]
    assert states == [("SUCCEEDED", 0), ("SUCCEEDED", 0), ("FAILED", 1), ("SUCCEEDED", 0)], array.story()
    assert [len(run.attempts()) for run in array.runs] == [3, 3, 2, 3], array.story()
    assert [len(chained_jobs(run)) for run in array.runs] == [2, 2, 1, 2], array.story()


CHAINING = """\
name: chaining
contact: nobody
last_checked: 2026-11-23
scheduler: slurm
requeue: chain
"""


def write_chaining(door: Door, script: str, more: str = "") -> None:
    """Write a job for a site where a new submission takes the place of a requeue."""
    door.write("chaining.yaml", CHAINING)
    write_job(door, script, nodes="2", workers="1", more=f"site: ./chaining.yaml\n{more}")
    job = door.folder / "job.yaml"
    job.write_text(job.read_text().replace("site: generic-slurm\n", "", 1))


@pytest.mark.mirrored
def test_a_chained_job_goes_on_where_the_site_forbids_requeues(slurm_door: Door, slurm: Cluster) -> None:
    write_chaining(slurm_door, TRAINS_ON)
    waiting = slurm_door.start("submit", "job.yaml", "--wait")
    wait_until(slurm.job_ids, "the job is in the queue")
    (job_id,) = slurm.job_ids()
    run = only_run(slurm_door, job_id)
    wait_for_ranks(run, 2)
    with preempting(slurm) as urgent:
        slurm.wait_for_job(urgent, "RUNNING")
        shown = json.loads(slurm_door.run("status", str(run.path), "--json").stdout)
        assert (shown["state"], shown["job_id"] != job_id) == ("REQUEUED", True), shown
    wait_for_ranks(run, 2, attempt=2)
    wait_until(partial(has_done, slurm_door, len(steps_done(slurm_door)) + 5), "it trains on", otherwise=run.story)
    slurm_door.write("finish", "")
    output, errors = waiting.communicate(timeout=240)
    assert waiting.returncode == 0, output + errors + run.story()
    result = assert_over(run, "SUCCEEDED", 0)
    assert (result["attempts"], result["restarts"]) == (2, 0)
    first, second = (run.read(run.layout.allocation(number)) for number in (1, 2))
    assert first["job_id"] == job_id != second["job_id"] == shown["job_id"]
    assert chained_jobs(run) == [second["job_id"]], run.story()
    assert_none_repeated(slurm_door, max(steps_done(slurm_door)))


@pytest.mark.mirrored
@pytest.mark.variant(of="test_a_preempted_run_goes_on_however_slurm_preempts")
def test_a_run_is_stopped_in_time_before_its_reservation_ends_and_goes_on_without_it(
    slurm_door: Door, slurm: Cluster
) -> None:
    """Its own time limit is far. Slurm kills a job with its reservation, and holds one that waits in it then."""
    options = ("ReservationName=course", "StartTime=now", "Duration=1", "Users=root", "Nodes=node[1-2]")
    more = "signals: {lead: 25s, grace: 10s, restart_grace: 2s}\nsbatch: {reservation: course}"
    write_job(slurm_door, TRAINS_ON, nodes="2", workers="1", more=more)
    slurm.run("scontrol", "create", "reservation", *options)
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 2)
    wait_until(lambda: requeues_of(run), "it is stopped before the reservation ends", within_s=90, otherwise=run.story)
    shown = slurm_door.run("status", run.job_id).stdout
    assert "the job's reservation course ended" in " ".join(shown.split()), shown
    wait_for_ranks(run, 2, attempt=2)
    slurm_door.write("finish", "")
    assert_over(run, "SUCCEEDED", 0)
    assert [reason for _, reason in requeues_of(run)] == ["time_limit"]
    output = script_output(run)
    assert "notice: the workers will be stopped in about" in output
    assert "CANCELLED" not in output.partition("the job's reservation course ended")[0], output
    assert f"the next start, job {run.job_id}, is without the reservation course" in output, output


@pytest.mark.variant(of="test_a_chained_job_goes_on_where_the_site_forbids_requeues")
@pytest.mark.mirrored
def test_a_chained_job_goes_on_though_the_reservation_of_its_script_is_over(slurm_door: Door, slurm: Cluster) -> None:
    """Its second start has left the reservation in time; the third would ask for it again."""
    options = ("ReservationName=course", "StartTime=now", "Duration=2", "Users=root", "Nodes=node[1-2]")
    write_chaining(slurm_door, TRAINS_ON, "sbatch: {reservation: course}")
    slurm.run("scontrol", "create", "reservation", *options)
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 2)
    slurm_door.run("stop", "--requeue", "--lead", "1s", run.job_id)
    wait_for_ranks(run, 2, attempt=2)
    slurm.run("scontrol", "delete", "ReservationName=course")
    second = run.read(run.layout.allocation(2))["job_id"]
    slurm_door.run("stop", "--requeue", "--lead", "1s", second)
    wait_for_ranks(run, 2, attempt=3)
    slurm_door.write("finish", "")
    assert_over(run, "SUCCEEDED", 0)
    third = run.read(run.layout.allocation(3))["job_id"]
    told = f"the next start, job {third}, is without the reservation that the job asks for, which is over"
    assert told in script_output(run, second)


@pytest.mark.every_slurm
@pytest.mark.variant(of="test_a_chained_job_goes_on_where_the_site_forbids_requeues")
def test_a_job_that_slurm_never_requeues_goes_on_as_another_job(slurm_door: Door, slurm: Cluster) -> None:
    """A site's job_submit plugin, or an administrator, has it so: nobody knew of it at the submission."""
    write_job(slurm_door, TRAINS_ON, nodes="2", workers="1", more="requeue: {on: [preempted, time_limit]}")
    waiting = slurm_door.start("submit", "job.yaml", "--wait")
    wait_until(slurm.job_ids, "the job is in the queue")
    (job_id,) = slurm.job_ids()
    run = only_run(slurm_door, job_id)
    wait_for_ranks(run, 2)
    slurm.run("scontrol", "update", f"JobId={job_id}", "Requeue=0")
    slurm_door.run("stop", "--requeue", "--lead", "1s", job_id)
    wait_for_ranks(run, 2, attempt=2)
    (chained,) = chained_jobs(run)
    assert json.loads(slurm_door.run("status", str(run.path), "--json").stdout)["job_id"] == chained != job_id
    slurm_door.write("finish", "")
    output, errors = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, output + errors + run.story()
    result = assert_over(run, "SUCCEEDED", 0)
    assert (result["attempts"], result["restarts"]) == (2, 0)
    assert "another job is to take its place" in script_output(run, job_id)


# Slurm accepts the first job that waits for another one, and its answer gets lost.
SILENT_SBATCH = """#!/bin/bash
if [[ "$*" == *--dependency* && "$*" != *--test-only* ]] && mkdir {folder}/lost 2> /dev/null; then
    {sbatch} "$@" > {folder}/lost/job
    exec sleep 100
fi
exec {sbatch} "$@"
"""


@pytest.mark.variant(of="test_a_chained_job_goes_on_where_the_site_forbids_requeues")
@pytest.mark.mirrored
@pytest.mark.parametrize("state", ["DRAIN", "INACTIVE"])
def test_a_chained_job_that_is_refused_for_now_is_asked_for_again(state: str, slurm_door: Door, slurm: Cluster) -> None:
    write_chaining(slurm_door, TRAINS_ON)
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 2)
    with changed_partition(slurm, State=state):
        slurm_door.start("stop", "--requeue", "--lead", "1s", run.job_id)
        refused = "Slurm refuses the next job for now; asking again while this one has the time: sbatch refused the job"
        wait_until(lambda: refused in script_output(run), "it says that it asks again", otherwise=run.story)
        assert not run.is_over()
    wait_for_ranks(run, 2, attempt=2)
    slurm_door.write("finish", "")
    assert_over(run, "SUCCEEDED", 0)
    assert script_output(run).count("asking again") == 1


@pytest.mark.variant(of="test_a_chained_job_goes_on_where_the_site_forbids_requeues")
@pytest.mark.mirrored
def test_a_chained_job_that_is_refused_for_good_ends_the_run_at_once_with_slurms_words(
    slurm_door: Door, slurm: Cluster
) -> None:
    write_chaining(slurm_door, TRAINS_ON)
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 2)
    with changed_partition(slurm, MaxTime="5"):
        slurm_door.start("stop", "--requeue", "--lead", "1s", run.job_id)
        result = assert_over(run, "FAILED", 7)
    assert "sbatch refused the job" in result["cause"], result
    assert "Requested time limit is invalid" in result["cause"], result
    assert "asking again" not in script_output(run)
    told = " ".join(slurm_door.run("explain", run.job_id).stdout.split())
    assert "`sinfo --format='%P %l'` lists the limits; ask for less `time`, or another partition" in told, told


@contextlib.contextmanager
def changed_partition(slurm: Cluster, **changes: str) -> Iterator[None]:
    """Have an administrator change the partition, until the block is over."""
    update = ("scontrol", "update", "PartitionName=batch")
    slurm.run(*update, *(f"{key}={value}" for key, value in changes.items()))
    try:
        yield
    finally:
        slurm.run(*update, "State=UP", "MaxTime=INFINITE")


@pytest.mark.variant(of="test_a_chained_job_goes_on_where_the_site_forbids_requeues")
def test_two_chained_jobs_of_one_allocation_do_not_run_side_by_side(slurm_door: Door, slurm: Cluster) -> None:
    """The script asks again after 30 s; then two jobs wait for the same one, and both start when it ends.

    They do not share nodes: on a shared one the agent that leaves takes what it finds of its run for left behind, and
    kills it.
    """
    folder, sbatch = slurm_door.folder, shutil.which("sbatch", path=slurm_door.environ["PATH"])
    (folder / "bin").mkdir()
    slurm_door.write("bin/sbatch", SILENT_SBATCH.format(folder=folder, sbatch=sbatch)).chmod(0o700)
    slurm_door.environ["PATH"] = f"{folder}/bin:{slurm_door.environ['PATH']}"
    write_chaining(slurm_door, TRAINS.format(steps=200), "sbatch: {exclusive: true}")
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 2)
    slurm_door.run("stop", "--requeue", "--lead", "1s", run.job_id)
    wait_until(lambda: len(slurm.job_ids()) >= 2, "two jobs wait for it", within_s=90, otherwise=run.story)
    result = assert_over(run, "SUCCEEDED", 0)
    assert (result["attempts"], result["restarts"]) == (2, 0), run.story()
    lost = (folder / "lost" / "job").read_text().split()[-1]
    second = run.read(run.layout.allocation(2))["job_id"]
    assert len(list(Path(run.layout.allocations).glob("*.json"))) == 2, run.story()
    wait_until(lambda: not slurm.job_ids(), "both jobs have left", within_s=90, otherwise=run.story)
    refused = [job for job in (lost, *chained_jobs(run)) if job != second]
    assert len(refused) == 1, (lost, second, run.story())
    output = Path(run.layout.script_output(refused[0])).read_text()
    assert f"job {second}, is still alive" in output or "the run is over" in output, output
    assert_none_repeated(slurm_door, 200)


def chained_jobs(run: Run) -> list[str]:
    """The jobs that are recorded as waiting for an allocation of a run."""
    requests = [json.loads(line) for line in Path(run.layout.requests).read_text().splitlines() if line]
    return [each["id"] for each in requests if each["kind"] == "chain"]


@pytest.mark.variant(of="test_a_chained_job_goes_on_where_the_site_forbids_requeues")
def test_a_chained_job_that_is_killed_without_a_term_ends_the_run_for_all_who_watch_it(
    slurm_door: Door, slurm: Cluster
) -> None:
    """Nobody is left who could submit another job."""
    write_chaining(slurm_door, TRAINS.format(steps=10_000))
    waiting = slurm_door.start("submit", "job.yaml", "--wait")
    wait_until(slurm.job_ids, "the job is in the queue")
    (job_id,) = slurm.job_ids()
    run = only_run(slurm_door, job_id)
    wait_for_ranks(run, 2)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and environment_of(int(entry.name)).get("SLURM_JOB_ID") == job_id:
            with contextlib.suppress(OSError):  # jobs of other clusters on this machine may have the same id
                if (entry / "cwd").readlink().is_relative_to(slurm_door.folder):
                    os.kill(int(entry.name), signal.SIGKILL)
    output, errors = waiting.communicate(timeout=120)
    result = run.result()
    assert (waiting.returncode, result["exit_code"]) == (7, 7), output + errors + run.story()
    assert result["state"] in ("FAILED", "UNKNOWN"), result
    assert json.loads(slurm_door.run("status", job_id, "--json", exit_code=None).stdout)["state"] == result["state"]
    assert (chained_jobs(run), slurm.job_ids()) == ([], [])
    run.assert_nothing_left(within_s=40)


def test_cancel_ends_the_chained_job_too(slurm_door: Door, slurm: Cluster) -> None:
    write_chaining(slurm_door, TRAINS.format(steps=10_000))
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 2)
    with preempting(slurm) as urgent:
        slurm.wait_for_job(urgent, "RUNNING")
        slurm_door.run("cancel", str(run.path))
        assert slurm.job_ids() == [urgent]
    assert_over(run, "CANCELLED", 10)


@pytest.mark.variant(of="test_a_preempted_run_goes_on_however_slurm_preempts")
def test_a_preempted_run_whose_batch_host_is_gone_is_started_again_by_an_agent(
    slurm_door: Door, slurm: Cluster
) -> None:
    more = "elastic: {lease: 3s}\nsignals: {grace: 8s, restart_grace: 2s}"
    write_job(slurm_door, TRAINS.format(steps=250), nodes="{min: 1, max: 2}", workers="1", more=more)
    with preempting_by(slurm, "REQUEUE", 30):
        run = slurm_door.submit("job.yaml")
        wait_for_ranks(run, 2)
        slurm.kill(slurm.job(run.job_id)["BatchHost"])
        wait_for_ranks(run, 1, attempt=2)
        slurm.submit("--partition=urgent", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 5")
        wait_until(lambda: requeues_of(run) == [(1, "preempted")], "the requeue is recorded", otherwise=run.story)
        wait_until(lambda: slurm.job(run.job_id).get("Restarts") == "1", "it is requeued", otherwise=run.story)
        slurm.mend()
        result = assert_over(run, "SUCCEEDED", 0, killed=slurm.nodes)
    assert result["restarts"] == 0
    assert "having job" in agent_outputs(run)


@pytest.mark.every_slurm
def test_check_warns_where_slurm_kills_before_the_grace_is_over(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, TRAINS.format(steps=1), more="signals: {grace: 8s, restart_grace: 2s}")
    with preempting_by(slurm, "REQUEUE", 2):
        told = slurm_door.run("check", "job.yaml").stderr
    assert "Slurm kills 5 s after the TERM of scancel (KillWait)" in told
    assert "preempted in partition batch is killed after 7 s" in told


@pytest.mark.variant(of="test_a_preempted_run_goes_on_however_slurm_preempts")
def test_a_preemption_that_only_signals_the_batch_shell_is_noticed_in_time(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, TRAINS.format(steps=400), nodes="2", workers="1", more="signals: {grace: 3s}")
    with slurm.configured(SlurmctldParameters="preempt_send_user_signal"), preempting_by(slurm, "REQUEUE", 40):
        run = slurm_door.submit("job.yaml")
        wait_for_ranks(run, 2)
        with preempting(slurm) as urgent:
            slurm.wait_for_job(urgent, "RUNNING", within_s=90)
        result = assert_over(run, "SUCCEEDED", 0)
    assert (result["attempts"], result["restarts"]) == (2, 0), run.story()
    assert requeues_of(run) == [(1, "preempted")]
    given = [event["message"] for event in events(run) if "notice" in event["name"]]
    assert given, run.story()


# In the first attempt a file system fails on rank 0's node; later all save and leave when they hear of the notice.
MOUNT_FAILS = """
import errno, os, pathlib, sys, time
from hpc_elastic.worker import notice_received
print("waiting", os.environ["RANK"], flush=True)
start = 2 if pathlib.Path("saved").exists() else 1
pathlib.Path(f"ran-{start}-{os.environ['SLURMD_NODENAME']}").touch()
if os.environ["HPC_ELASTIC_ATTEMPT"] == "1" and os.environ["RANK"] == "0":
    raise OSError(errno.ESTALE, "Stale file handle", "/data/train")
while start == 1:
    time.sleep(0.02)
    if notice_received():
        pathlib.Path("saved").touch()
        sys.exit(75)
"""


@pytest.mark.mirrored
@pytest.mark.parametrize("by", ["requeue", *variants("chain", of="test_a_blamed_node_is_excluded_from_the_next_start")])
def test_a_blamed_node_is_excluded_from_the_next_start(by: str, slurm_door: Door, slurm: Cluster) -> None:
    more = "sbatch: {exclude: node4}\nrestart: {backoff: {first: 0s}}"
    if by == "chain":
        write_chaining(slurm_door, MOUNT_FAILS, more)
    else:
        write_job(slurm_door, MOUNT_FAILS, nodes="2", workers="1", more=more)
    waiting = slurm_door.start("submit", "job.yaml", "--wait")
    wait_until(slurm.job_ids, "the job is in the queue")
    run = only_run(slurm_door, slurm.job_ids()[0])
    wait_until(lambda: len(list(run.path.glob("attempts/0002/ranks/*"))) == 2, "the second attempt is at work")
    slurm_door.run("stop", "--requeue", "--lead", "60s", run.job_id)
    output, errors = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, output + errors + run.story()
    nodes = {path.name.removeprefix("ran-") for path in slurm_door.folder.glob("ran-*")}
    assert nodes == {"1-node1", "1-node2", "2-node2", "2-node3"}
    assert ", is kept from node1" in script_output(run)
