"""Random stops of runs on a real Slurm: what ends each, whether a record says so, and what `submit --wait` returns.

    python -m tests.soak.stops --stops 100 [--first 0] [--seed 17] [--slurm own|22.05|24.11|26.05]

One sandbox of four nodes; run after run, each stopped once, at a moment and in a way drawn from its seed. A run that
Slurm starts again must succeed then; any other ends as who stopped it wanted, or has succeeded before. In each case
`submit --wait` returns in time with the exit code that `result.json` has, `status` says the same, and nothing is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from hpc_elastic.errors import ExitCode
from tests.integration.conftest import Door, Run
from tests.integration.slurm_jobs import environment_of, write_job
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.soak.patient import send

MOST_BROKEN = 5
MOST_DELAY_S = 7.0  # from the job's start: before the agents run until after the work is done
ENDS_WITHIN_S = 240.0
# Saves each step, so that a job that is started again goes on; 40 steps are 4 s of work.
_TRAINS = """
import os, pathlib, time
saved = pathlib.Path("step")
print("waiting, resumed", flush=True)
while int(saved.read_text() if saved.exists() else 0) < 40:
    if os.environ["RANK"] == "0":
        step = int(saved.read_text() if saved.exists() else 0) + 1
        pathlib.Path("step.new").write_text(str(step))
        os.replace("step.new", saved)
    time.sleep(0.1)
"""
_LIMITED = "time: 1m\nsignals: {lead: 30s, grace: 30s, restart_grace: 2s}"
_TRAINS_LONG = _TRAINS.replace("< 40", "< 350")


class Kind(Enum):
    """What stops the run."""

    CANCEL = "hpc-elastic cancel"
    STOP = "hpc-elastic stop"
    STOP_REQUEUE = "hpc-elastic stop --requeue"
    SCANCEL = "scancel"
    SCANCEL_BATCH = "scancel --batch --signal=TERM"
    PREEMPTED = "preemption"
    REQUEUED = "scontrol requeue"
    SCRIPT_KILLED = "SIGKILL of the batch script"
    AGENTS_KILLED = "SIGKILL of all agents"
    TIME_LIMIT = "time limit"
    FAILS = "a rank that fails for good"
    CONTROLLER = "slurmctld stopped for some seconds"


_STOPPED = (("CANCELLED", ExitCode.STOPPED),)
_SUCCEEDED = (("SUCCEEDED", ExitCode.SUCCESS),)
_NEVER_STARTED = ("FAILED", ExitCode.SETUP)  # the agents had claimed nothing yet
# How a run may end that was stopped; it may also have succeeded before.
ENDS: dict[Kind, Sequence[tuple[str, ExitCode]]] = {
    Kind.CANCEL: _STOPPED,
    Kind.STOP: _STOPPED,
    Kind.STOP_REQUEUE: _SUCCEEDED,
    Kind.SCANCEL: _STOPPED,
    Kind.SCANCEL_BATCH: _STOPPED,
    Kind.PREEMPTED: _SUCCEEDED,
    Kind.REQUEUED: _SUCCEEDED,
    # Nobody is left who could ask Slurm for another start, so the run ends, and who is left writes that down.
    Kind.SCRIPT_KILLED: (*_STOPPED, ("FAILED", ExitCode.NODE_LOST), ("UNKNOWN", ExitCode.NODE_LOST), _NEVER_STARTED),
    # One after the other: the last one may still hear that the others are gone, and say so.
    Kind.AGENTS_KILLED: (("UNKNOWN", ExitCode.NODE_LOST), ("FAILED", ExitCode.NODE_LOST), _NEVER_STARTED),
    Kind.TIME_LIMIT: _SUCCEEDED,
    Kind.FAILS: (("FAILED", ExitCode.WORKERS_FAILED),),
    Kind.CONTROLLER: _SUCCEEDED,
}
_WEIGHTS = {Kind.TIME_LIMIT: 1, Kind.SCRIPT_KILLED: 4}


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop, `delay_s` after the job's start; `lasts_s` is for what goes by again."""

    seed: int
    kind: Kind
    delay_s: float
    lasts_s: float

    @classmethod
    def draw(cls, seed: int, kinds: Sequence[Kind] = ()) -> Stop:
        """Draw the stop of a seed, of these kinds only or of all."""
        dice = random.Random(seed)
        drawn = kinds or list(Kind)
        (kind,) = dice.choices(drawn, [_WEIGHTS.get(each, 3) for each in drawn])
        return cls(seed, kind, dice.uniform(0, MOST_DELAY_S), dice.choice([2.0, 6.0]))


class Stopped:
    """A run on a sandbox that is stopped once."""

    def __init__(self, slurm: Cluster, door: Door, stop: Stop) -> None:
        self._slurm, self._door, self._stop = slurm, door, stop
        self._job_id = ""

    def play(self) -> str:
        """Submit, stop, and check how the run has ended; returns that in a few words.

        Raises:
            AssertionError: something is not as it must be.
        """
        door, kind = self._door, self._stop.kind
        is_long = kind is Kind.TIME_LIMIT
        write_job(door, _TRAINS_LONG if is_long else _TRAINS, nodes="2", workers="1", more=_LIMITED if is_long else "")
        job = door.folder / "job.yaml"
        text = job.read_text()
        if is_long:
            text = text.replace("time: 10m\n", "", 1)
        if kind is Kind.FAILS:
            door.write("train.py", f"import time\ntime.sleep({self._stop.delay_s})\nraise ValueError('bad batch')\n")
            text += "restart: {max_restarts: 1, backoff: {first: 0s}}\n"
        job.write_text(text)
        waiting = door.start("submit", "job.yaml", "--wait")
        try:
            wait_until(self._slurm.job_ids, "the job is in the queue")
            (self._job_id,) = self._slurm.job_ids()
            self._slurm.wait_for_job(self._job_id, "RUNNING", within_s=120)
            time.sleep(self._stop.delay_s)  # the moment is what is drawn
            self._do()
            output, errors = waiting.communicate(timeout=ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"submit --wait does not return\n{self.story()}") from None
        finally:
            waiting.kill()
        return self._check(waiting.returncode, output + errors)

    def story(self) -> str:
        """Return what was done, and what the run says."""
        run = self._run()
        return "\n".join([repr(self._stop), run.story() if run else "no run directory", self._slurm.controller_log()])

    def _do(self) -> None:
        slurm, job_id = self._slurm, self._job_id
        actions: dict[Kind, Callable[[], object]] = {
            Kind.CANCEL: lambda: self._door.run("cancel", job_id, "--yes", exit_code=None),
            Kind.STOP: lambda: self._door.run("stop", "--lead", "1s", job_id, exit_code=None),
            Kind.STOP_REQUEUE: lambda: self._door.run("stop", "--requeue", "--lead", "1s", job_id, exit_code=None),
            Kind.SCANCEL: lambda: slurm.run("scancel", job_id, check=False),
            Kind.SCANCEL_BATCH: lambda: slurm.run("scancel", "--batch", "--signal=TERM", job_id, check=False),
            Kind.PREEMPTED: self._preempt,
            Kind.REQUEUED: lambda: slurm.run("scontrol", "requeue", job_id, check=False),
            Kind.SCRIPT_KILLED: self._kill_script,
            Kind.AGENTS_KILLED: lambda: self._kill("launch.py hpc_elastic.agent.main"),
            Kind.CONTROLLER: self._stop_controller,
        }
        actions.get(self._stop.kind, lambda: None)()

    def _preempt(self) -> None:
        slurm = self._slurm
        urgent = slurm.submit(
            "--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null", f"--wrap=sleep {self._stop.lasts_s}"
        )
        slurm.wait_for_job(urgent, "RUNNING", "COMPLETED", within_s=120)

    def _stop_controller(self) -> None:
        with self._slurm.frozen_slurmctld():
            time.sleep(self._stop.lasts_s * 5)  # how long it lasts

    def _kill_script(self) -> None:
        """Kill the script's own shell, and not the one that watches over srun, which Slurm ends with the job."""
        scripts = set(self._pids("slurm_script"))
        for pid in scripts:
            with contextlib.suppress(OSError):
                if int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1]) not in scripts:
                    send(pid, signal.SIGKILL)

    def _kill(self, command: str) -> None:
        for pid in list(self._pids(command)):
            send(pid, signal.SIGKILL)

    def _pids(self, command: str) -> Iterator[int]:
        """Yield the job's processes with this in their command; sandboxes side by side have jobs of the same id."""
        for entry in Path("/proc").iterdir():
            environ = environment_of(int(entry.name)) if entry.name.isdigit() else {}
            is_here = any(str(self._door.folder) in value for value in environ.values())
            if is_here and environ.get("SLURM_JOB_ID") == self._job_id:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if command in words and not words.startswith("srun"):
                    yield int(entry.name)

    def _run(self) -> Run | None:
        (path, *_) = [*self._door.folder.glob("hpc-elastic-runs/*/submission.json"), None]
        return Run.at(path.parent) if path else None

    def _check(self, code: int, output: str) -> str:
        run = self._run()
        assert run is not None, output
        run.assert_nothing_left(within_s=60)
        assert run.is_over(), f"no final record\n{output}\n{self.story()}"
        result = run.result()
        ended = (result["state"], result["exit_code"])
        allowed = [*ENDS[self._stop.kind], *_SUCCEEDED]
        assert ended in [(state, int(number)) for state, number in allowed], f"{ended}\n{output}\n{self.story()}"
        assert code == result["exit_code"], f"submit --wait returned {code}, the record has {ended}\n{output}"
        said: dict[str, Any] = json.loads(self._door.run("status", self._job_id, "--json", exit_code=None).stdout)
        assert (said["state"], said["exit_code"]) == ended, f"status says {said}\n{self.story()}"
        return f"{self._stop.kind.value} after {self._stop.delay_s:.1f} s: {ended[0]}, exit code {ended[1]}"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.stops", description=__doc__.splitlines()[0])
    parser.add_argument("--stops", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed; the next run has the next one")
    parser.add_argument("--seed", type=int, help="the run of this seed alone")
    parser.add_argument("--kinds", nargs="+", default=[], metavar="NAME", help="only these, by enum names")
    parser.add_argument("--slurm", default="own", help="own (this machine's), 22.05, 24.11 or 26.05")
    arguments = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all that was started ends, too
    kinds = [Kind[name] for name in arguments.kinds]
    folder = Path(tempfile.mkdtemp(prefix="soak-stops-"))
    seeds = (
        [arguments.seed] if arguments.seed is not None else range(arguments.first, arguments.first + arguments.stops)
    )
    done = broken = 0
    slurm = Cluster.start(4, owner=os.getpid(), version=None if arguments.slurm == "own" else arguments.slurm)
    try:
        os.environ.update(slurm.variables)
        for seed in seeds:
            here = folder / f"seed-{seed}"
            (here / "project").mkdir(parents=True)
            door = Door(here / "project", {**slurm.environment, "XDG_STATE_HOME": str(here / "state")})
            try:
                print(f"seed {seed}: {Stopped(slurm, door, Stop.draw(seed, kinds)).play()}", flush=True)
                done += 1
                shutil.rmtree(here)
            except AssertionError as error:
                broken += 1
                (here / "story").write_text(str(error))
                first = str(error).partition("\n")[0]
                print(f"seed {seed}: {Stop.draw(seed, kinds).kind.value}: {first}; see {here}/story", flush=True)
            finally:
                slurm.leftovers(within_s=0)
            if broken >= MOST_BROKEN:
                break
    finally:
        slurm.down()
    print(f"{done} of {done + broken} stops on Slurm {slurm.version} are told as they were")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
