"""One turn of a scenario of `slurm_versions`: a folder, a run in it, what it took, and which promises were broken."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.versions import steps
from tests.integration.conftest import Door, Run
from tests.integration.slurm_jobs import only_run
from tests.slurm_sandbox.cluster import Cluster, SandboxError, wait_until

NODES, LEFT = 4, 3
LEASE_S = 3
PATIENCE_S = 120
JOB = f"""\
name: versions
site: generic-slurm
nodes: {{min: {LEFT}, max: {NODES}}}
workers_per_node: 1
time: 10m
start: spawn
resources: {{cpus_per_worker: 1}}
signals: {{grace: 8s, restart_grace: 2s}}
elastic: {{lease: {LEASE_S}s}}
restart: {{max_restarts: 0}}
entrypoint: {{script: steps.py}}
"""


class BrokenPromiseError(Exception):
    """Something is not as it was promised."""


class Turn:
    """A turn, in a folder of its own.

    Args:
        slurm: where.
        folder: of this turn alone; it is made.
    """

    def __init__(self, slurm: Cluster, folder: Path) -> None:
        self.slurm = slurm
        self.stamps = folder / "stamps"
        self.stamps.mkdir(parents=True)
        environ = {**slurm.environment, "XDG_STATE_HOME": str(folder / "state")}
        self.door = Door(folder, environ, command=(sys.executable, "-m", "hpc_elastic"))
        self.seconds: dict[str, float] = {}
        self.broken: dict[str, str] = {}

    @contextmanager
    def promising(self, *rows: str) -> Iterator[None]:
        """What does not hold, or not in time, in this block is a broken promise of these rows."""
        try:
            yield
        except (BrokenPromiseError, AssertionError, SandboxError, subprocess.TimeoutExpired) as error:
            for row in rows:
                self.broken.setdefault(row, str(error))

    def took(self, row: str, since: float, until: float | None = None) -> None:
        """Notes the seconds between two moments, Unix seconds; the later one is now if nobody says."""
        self.seconds[row] = (time.time() if until is None else until) - since

    def write_job(self, *more: str) -> None:
        """The job file and its script; `more` are further lines."""
        environ = f"env: {{STAMPS: {json.dumps(str(self.stamps))}}}"
        self.door.write("job.yaml", JOB + "\n".join([environ, *more]) + "\n")
        self.door.write("steps.py", Path(steps.__file__).read_text())

    def start(self) -> Run:
        """A run whose four ranks have made their first step."""
        self.write_job()
        run = self.door.submit("job.yaml")
        self.wait_for_steps(run, 1, NODES)
        return run

    def start_watched(self, option: str) -> tuple[Run, subprocess.Popen[str]]:
        """The same, and the `submit` that still watches it."""
        self.write_job()
        watching = self.begin("submit", "job.yaml", option)
        wait_until(self.slurm.job_ids, "the job is there")
        run = only_run(self.door, self.slurm.job_ids()[0])
        self.wait_for_steps(run, 1, NODES)
        return run, watching

    def begin(self, *command: str) -> subprocess.Popen[str]:
        """A command of the user that goes on beside the scenario."""
        return self.door.start(*command)

    def wait_for_steps(self, run: Run, attempt: int, ranks: int) -> float:
        """When the last of so many ranks made its first step of an attempt; Unix seconds."""
        what = f"{ranks} ranks make a step of attempt {attempt}"
        wait_until(lambda: len(self._steps(attempt)) == ranks, what, within_s=PATIENCE_S, otherwise=run.story)
        sizes = {size for size, _ in self._steps(attempt)}
        promise(sizes == {ranks}, f"attempt {attempt} has {ranks} ranks, found {sizes}")
        return max(at for _, at in self._steps(attempt))

    def _steps(self, attempt: int) -> list[tuple[int, float]]:
        """World size and moment of each rank's first step of an attempt."""
        found = [path.read_text().split() for path in self.stamps.glob(f"{attempt}-*") if not path.suffix]
        return [(int(size), float(at)) for size, at in found]

    def stop(self, code: int = 0) -> None:
        """Lets every rank end with this exit code."""
        (self.stamps / "stop.new").write_text(str(code))
        (self.stamps / "stop.new").rename(self.stamps / "stop")

    def finish(self, run: Run, state: str = "SUCCEEDED", exit_code: int = 0) -> Any:
        """The result of a run that ended so; nothing of it is left on any node."""
        result = run.wait_until_over(within_s=PATIENCE_S)
        found = (result["state"], result["exit_code"])
        promise(found == (state, exit_code), f"the run ends as {state} with {exit_code}, found {found}\n{run.story()}")
        run.assert_nothing_left(within_s=40)
        return result

    def wait_for_job(self, run: Run, *states: str) -> None:
        """Slurm's own record of the job says so too, and the job leaves the queue."""
        self.slurm.wait_for_job(run.job_id, *states)
        wait_until(lambda: run.job_id not in self.slurm.job_ids(), "the job leaves the queue", otherwise=run.story)


def promise(holds: bool, what: str) -> None:
    """Takes note of a promise.

    Raises:
        BrokenPromiseError: it does not hold.
    """
    if not holds:
        raise BrokenPromiseError(what)


def written(run: Run) -> float:
    """When the result was written; Unix seconds."""
    return Path(run.layout.result).stat().st_mtime


def returns(*watching: subprocess.Popen[str]) -> list[float]:
    """When each of these commands returned; Unix seconds."""
    found: dict[int, float] = {}

    def have_all_returned() -> bool:
        for command in watching:
            if command.poll() is not None:
                found.setdefault(command.pid, time.time())
        return len(found) == len(watching)

    wait_until(have_all_returned, "the commands return", within_s=PATIENCE_S)
    return [found[command.pid] for command in watching]


def ended(watching: subprocess.Popen[str], code: int) -> str:
    """What a watching command printed; it has ended with this code, and without a traceback."""
    output, errors = watching.communicate(timeout=PATIENCE_S)
    promise(watching.returncode == code, f"exit code {code}, found {watching.returncode}\n{output}\n{errors}")
    promise("Traceback" not in errors and "internal error" not in errors, errors)
    return output
