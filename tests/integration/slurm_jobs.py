"""Jobs of plain Python for the tests on the real Slurm, and questions about their processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpc_elastic.rundir.layout import RunLayout
from tests.integration.conftest import Door, Run, whole_lines
from tests.slurm_sandbox.cluster import Cluster, wait_until

JOB = """\
name: probe
site: generic-slurm
nodes: {nodes}
time: 10m
resources: {{cpus_per_worker: 1}}
entrypoint: {{script: train.py}}
"""
# Writes a line for each TERM, and ends a moment after the first: long enough for a second one to be seen.
WAITS = """
import os, signal, sys, time

told = []

def stopped(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    told.append(number)

signal.signal(signal.SIGTERM, stopped)
print("waiting", os.environ["RANK"], flush=True)
while not told:  # not by a pause, before which the signal may come
    time.sleep(0.02)
time.sleep(1)
print("saved", flush=True)
sys.exit(1)
"""
# Writes a line for each USR2 and, on rank 0 alone, USR1, each of which would end what the rank has started.
HEARS = """
import os, pathlib, signal, subprocess, sys, time

def heard(number, frame):
    print("got", signal.Signals(number).name, flush=True)

helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
signal.signal(signal.SIGUSR2, heard)
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGUSR1, heard)
print("waiting", os.environ["RANK"], flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.02)
print("helper", helper.poll(), flush=True)
helper.kill()
"""
# Writes a line for each USR1.
COUNTS_SIGNALS = """
import os, pathlib, signal, time
signal.signal(signal.SIGUSR1, lambda number, frame: print("got USR1", flush=True))
print("waiting", os.environ["RANK"], flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.02)
"""
# As a plain script: dies of a TERM.
DIES = 'import os, signal\nprint("waiting", os.environ["RANK"], flush=True)\nsignal.pause()\n'
# Ignores TERM, and leaves a grandchild with a session and an environment of its own.
STUBBORN = """
import os, signal, subprocess

signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "12345"], env={"PATH": os.environ["PATH"]}, start_new_session=True)
subprocess.Popen(["sleep", "12345"], start_new_session=True)
print("waiting", os.environ["RANK"], flush=True)
while True:
    signal.pause()
"""
WAITING = "waiting"


def write_job(
    door: Door,
    script: str = WAITS,
    *,
    nodes: str = "4",
    workers: str = "2",
    more: str = "",
    job: str = "job.yaml",
) -> None:
    """Writes a job file and its script; `more` are lines that follow, and the signals' times are short."""
    text = JOB.format(nodes=nodes) + f"workers_per_node: {workers}\n{more}\n"
    if "signals:" not in more:
        text += "signals: {grace: 8s, restart_grace: 2s}\n"
    if "requeue:" not in more:  # a run that ends for lost nodes is to end
        text += "requeue: {on: [preempted, time_limit]}\n"
    door.write(job, text)
    door.write("train.py", script)


def start(door: Door, script: str = WAITS, *, ranks: int = 8, **options: Any) -> Run:
    """Submits a job and waits until each rank waits."""
    write_job(door, script, **options)
    run = door.submit("job.yaml")
    wait_for_ranks(run, ranks)
    return run


def wait_for_ranks(run: Run, ranks: int = 8, *, attempt: int = 1) -> None:
    """Waits until each rank of an attempt waits."""
    for rank in range(ranks):
        run.wait_for_output(WAITING, attempt=attempt, rank=rank)
    run.wait_until_started(attempt)


def assert_over(run: Run, state: str, exit_code: int, *, killed: Collection[str] = ()) -> Any:
    """The result of a run that ended so, and left nothing; `killed` are nodes whose agent or power was cut off."""
    result = run.wait_until_over()
    assert (result["state"], result["exit_code"]) == (state, exit_code), f"{result}\n{run.story()}"
    run.assert_nothing_left(within_s=40)
    run.assert_records_valid(killed=killed)
    return result


def environment_of(pid: int) -> dict[str, str]:
    """The variables that a process was started with; none if it is gone."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(entry).split("=", 1) for entry in entries if b"=" in entry)


def agent_pid(run: Run, node: str) -> int:
    """The agent of a node; srun, its guard and its store host have other command lines."""
    for pid, command in run.agents().items():
        is_agent = "launch.py hpc_elastic.agent.main" in command and not command.startswith("srun")
        if is_agent and environment_of(pid).get("SLURMD_NODENAME") == node:
            return pid
    raise AssertionError(f"no agent runs on {node}: {run.agents()}\n{run.story()}")


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Freeze a process during the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def sleepers(slurm: Cluster, *nodes: str) -> list[str]:
    """The grandchildren of STUBBORN that are alive on these nodes."""
    return [f"{node}: {pid}" for node in nodes for pid, line in slurm.processes(node).items() if line == "sleep 12345"]


def assert_no_sleepers(slurm: Cluster, *nodes: str) -> None:
    """No grandchild of STUBBORN stays on these nodes, not even one without the run's variables."""
    names = nodes or slurm.nodes
    wait_until(
        lambda: not sleepers(slurm, *names),
        "no grandchild is left",
        within_s=30,
        otherwise=lambda: sleepers(slurm, *names),
    )


def assert_left_slurm(slurm: Cluster, run: Run, state: str, exit_code: str) -> None:
    """The job has left the queue, as Slurm's own record of it says too."""
    job = slurm.wait_for_job(run.job_id, state)
    assert job["ExitCode"] == exit_code, job
    wait_until(lambda: run.job_id not in slurm.job_ids(), "the job has left the queue", otherwise=run.story)


def script_output(run: Run, job_id: str | None = None) -> str:
    """What the batch script of a job wrote."""
    path = Path(run.layout.script_output(job_id or run.job_id))
    return path.read_text() if path.exists() else ""


def agent_outputs(run: Run) -> str:
    """What all agents wrote."""
    return "".join(path.read_text() for path in sorted(run.path.glob("agents/*.out")))


def have_told(run: Run, text: str, times: int) -> bool:
    """Return whether agents have written this so often."""
    return agent_outputs(run).count(text) == times


def events(run: Run) -> list[Mapping[str, Any]]:
    """The events of all nodes."""
    lines = [line for path in run.path.glob("nodes/*/events.jsonl") for line in whole_lines(path)]
    return [json.loads(line) for line in lines]


def only_run(door: Door, job_id: str) -> Run:
    """Return the one run in the user's folder."""
    (path,) = (door.folder / "hpc-elastic-runs").iterdir()
    return Run(job_id=job_id, layout=RunLayout(str(path)))
