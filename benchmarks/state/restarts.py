"""From a rank that raises to the next step of all ranks: with the state in memory, without one, and under torchrun."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import ratio_of_medians, summary
from benchmarks.state import training
from tests.faults.play import prepare_door
from tests.slurm_sandbox.sandbox import wait_until
from tests.soak.campaign import kill_everything

CASES = ("in memory", "without a state", "torchrun, from a file")
WHERE = {"in memory": "memory", "without a state": "nowhere"}
_JOB = """
name: state
site: local
nodes: {nodes}
workers_per_node: 1
time: 1h
entrypoint: {{script: {script}, args: {arguments}}}
env: {{OMP_NUM_THREADS: 1}}
restart: {{max_restarts: 1000, no_progress_limit: 1000, backoff: {{first: 0s}}}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is trained: `nodes` of one rank each on this machine, with `mebibytes` of state each, on a device."""

    nodes: int
    mebibytes: int
    device: str = "cpu"

    def arguments(self, folder: Path, where: str) -> list[str]:
        """Return those of the training."""
        return [str(folder), str(self.mebibytes), where, self.device]


def measure_restarts(setting: Setting, turns: int, crashes: int) -> dict[str, Any]:
    """Return the seconds from a rank that raises to the next step of all ranks; the cases take turns.

    Args:
        crashes: in each run of ours; one of torchrun has a quarter of them.
    """
    taken: dict[str, list[list[float]]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory(prefix="hpc-elastic-state-") as folder:
        for turn in range(turns):
            for name in CASES if turn % 2 == 0 else CASES[::-1]:
                own = Path(folder) / f"{turn}-{CASES.index(name)}"
                own.mkdir()
                if name in WHERE:
                    taken[name].append(_crash_ours(setting, own, WHERE[name], crashes))
                else:
                    taken[name].append(_crash_torchrun(setting, own, max(1, crashes // 4)))
    found: dict[str, Any] = {
        name: summary([each for turn in series for each in turn]) for name, series in taken.items()
    }
    found["turns"] = taken
    medians = {name: statistics.median(each for turn in taken[name] for each in turn) for name in CASES}
    found["longer_s"] = round(medians["in memory"] - medians["without a state"], 4)
    found["to torchrun"] = str(ratio_of_medians(taken["in memory"], taken["torchrun, from a file"]))
    return found


def restart_table(restart: dict[str, Any]) -> list[str]:
    """Return the figures as a table."""
    lines = ["| crash to next step | n | median, s | most, s |", "|---|---|---|---|"]
    return lines + [
        f"| {name} | {restart[name]['n']} | {restart[name]['median']} | {restart[name]['most']} |" for name in CASES
    ]


def _crash_ours(setting: Setting, folder: Path, where: str, crashes: int) -> list[float]:
    door = prepare_door(folder)
    arguments = json.dumps(setting.arguments(folder, where))
    job = _JOB.format(nodes=setting.nodes, script=training.__file__, arguments=arguments)
    (door.folder / "job.yaml").write_text(job)
    run = door.submit("job.yaml")
    try:
        return _crash_again_and_again(folder, setting.nodes, crashes, run.story)
    finally:
        (folder / "stop").touch()
        wait_until(run.is_over, "the run is over", within_s=60)
        kill_everything(run)


def _crash_torchrun(setting: Setting, folder: Path, crashes: int) -> list[float]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={setting.nodes}"]
    command += [f"--max-restarts={crashes + 1}", training.__file__, *setting.arguments(folder, "disk")]
    with (folder / "torchrun.out").open("wb") as output:
        # Sharing its own store with the workers, torchrun does not come back from most crashes (see recovery).
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environ)
    try:
        story: Callable[[], str] = lambda: (folder / "torchrun.out").read_text()[-3000:]  # noqa: E731
        return _crash_again_and_again(folder, setting.nodes, crashes, story)
    finally:
        (folder / "stop").touch()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def _crash_again_and_again(folder: Path, nodes: int, crashes: int, story: Callable[[], str]) -> list[float]:
    taken = []
    for number in range(crashes + 1):
        wait_until(lambda: len(_first_steps(folder, nodes, number)) == nodes, "all step", within_s=180, otherwise=story)  # noqa: B023
        firsts = _first_steps(folder, nodes, number)
        if number:
            taken.append(max(firsts) - _raised(folder, nodes)[number - 1])
        # In step, and with some saves behind them.
        wait_until(lambda: min(_steps(folder, nodes)) >= 5 * (number + 1), "some steps", within_s=60, otherwise=story)  # noqa: B023
        if number < crashes:
            (folder / "crash").touch()
    return taken


def _lines(folder: Path, rank: int) -> list[list[str]]:
    path = folder / f"moments.{rank}"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def _steps(folder: Path, nodes: int) -> list[int]:
    return [sum(line[0] == "stepped" for line in _lines(folder, rank)) for rank in range(nodes)]


def _raised(folder: Path, nodes: int) -> list[float]:
    return [float(line[2]) for line in _lines(folder, nodes - 1) if line[0] == "raised"]


def _first_steps(folder: Path, nodes: int, number: int) -> list[float]:
    """The first step of each rank in an attempt, counted from 0, as far as there is one."""
    found = []
    for rank in range(nodes):
        firsts: dict[str, float] = {}
        for line in _lines(folder, rank):
            if line[0] == "stepped":
                firsts.setdefault(line[1], float(line[2]))
        if len(firsts) > number:
            found.append(list(firsts.values())[number])
    return found
