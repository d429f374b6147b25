"""`python -m tests.soak.limits [--slurm own|24.11|26.05]`: trainings of five minutes under a time limit of two.

On one Slurm, at the same time: a job that is requeued, one that is chained, and an array of four tasks of which one
fails for good. Each but that one has to finish with one `submit`, with no step repeated that was saved, and with its
budget untouched. It takes about ten minutes, most of them asleep.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.integration.arrays import SWEEP
from tests.integration.conftest import Door, Run
from tests.integration.slurm_jobs import assert_over, write_job
from tests.integration.test_slurm_requeue import ARRAY, CHAINING, TASK, TRAINS, steps_done
from tests.slurm_sandbox.cluster import Cluster

STEPS = 3000  # of 0.1 s
LIMIT = "time: 2m\nsignals: {lead: 30s, grace: 30s, restart_grace: 2s}"
ENDS_WITHIN_S = 1800.0


def write_requeued(door: Door) -> None:
    _write_training(door, "")


def write_chained(door: Door) -> None:
    door.write("chaining.yaml", CHAINING)
    _write_training(door, "site: ./chaining.yaml\n")


def _write_training(door: Door, site: str) -> None:
    write_job(door, TRAINS.format(steps=STEPS), nodes="1", workers="2", more=f"{site}{LIMIT}")
    job = door.folder / "job.yaml"
    text = job.read_text().replace("time: 10m\n", "", 1)
    job.write_text(text.replace("site: generic-slurm\n", "", 1) if site else text)


def write_array(door: Door) -> None:
    door.write("job.yaml", ARRAY.replace("time: 1m", "time: 2m"))
    door.write("train.py", TASK.replace("step < 330", f"step < {STEPS}"))


def check_training(door: Door, code: int, output: str) -> str:
    """Return what a training that was started again did; raise AssertionError if it is not what was promised."""
    run = Run.at(Path(json.loads(output)["run_dir"]))
    result = assert_over(run, "SUCCEEDED", 0)
    assert code == 0, f"submit --wait returned {code}\n{run.story()}"
    assert (result["attempts"] >= 3, result["restarts"]) == (True, 0), run.story()
    done = steps_done(door)
    assert sorted(set(done)) == list(range(1, STEPS + 1))
    repeated = len(done) - STEPS  # at each stop one step may have been done that was not saved
    assert repeated <= result["attempts"] - 1, done
    return f"{result['attempts']} allocations, {repeated} steps repeated of {STEPS}"


def check_array(door: Door, code: int, output: str) -> str:
    """Return what the tasks of the array did; raise AssertionError if it is not what was promised."""
    runs = [Run.at(Path(task["run_dir"])) for task in json.loads(output)["tasks"]]
    story = "\n".join(run.story() for run in runs)
    ended = [(run.result()["state"], run.result()["exit_code"]) for run in runs]
    assert ended == [("SUCCEEDED", 0), ("SUCCEEDED", 0), ("FAILED", 1), ("SUCCEEDED", 0)], story
    assert code == 1, f"submit --wait returned {code}"
    assert all(run.result()["restarts"] == 0 for run in runs), story
    return f"allocations of the tasks: {[len(run.attempts()) for run in runs]}"


SHAPES: dict[str, tuple[Callable[[Door], None], tuple[str, ...], Callable[[Door, int, str], str]]] = {
    "requeued": (write_requeued, (), check_training),
    "chained": (write_chained, (), check_training),
    "array": (write_array, SWEEP, check_array),
}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.limits", description=__doc__.splitlines()[0])
    parser.add_argument("--slurm", default="own", help="own (this machine's), 22.05, 24.11 or 26.05")
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES), help="only these")
    arguments = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all that was started ends, too
    folder = Path(tempfile.mkdtemp(prefix="soak-limits-"))
    slurm = Cluster.start(4, owner=os.getpid(), version=None if arguments.slurm == "own" else arguments.slurm)
    broken = 0
    try:
        os.environ.update(slurm.variables)
        doors: dict[str, tuple[Door, subprocess.Popen[str]]] = {}
        for name in arguments.only:
            (folder / name / "project").mkdir(parents=True)
            environment = {**slurm.environment, "XDG_STATE_HOME": str(folder / name / "state")}
            door = Door(folder / name / "project", environment)
            write, options, _ = SHAPES[name]
            write(door)
            doors[name] = (door, door.start("submit", "job.yaml", "--wait", "--json", *options))
        for name, (door, waiting) in doors.items():
            try:
                output, errors = waiting.communicate(timeout=ENDS_WITHIN_S)
                print(f"{name}: {SHAPES[name][2](door, waiting.returncode, output)}", flush=True)
            except subprocess.TimeoutExpired:
                broken += 1
                print(f"{name}: not over within {ENDS_WITHIN_S:.0f} s; see {door.folder}", flush=True)
            except AssertionError as error:
                broken += 1
                print(f"{name}: {error}\n{output}{errors}", flush=True)
            finally:
                waiting.kill()
    finally:
        slurm.down()
    if not broken:
        shutil.rmtree(folder)
    print(f"{len(arguments.only) - broken} of {len(arguments.only)} on Slurm {slurm.version} finished as promised")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
