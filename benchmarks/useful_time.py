"""How much of the time a training that loses ranks again and again spends on steps that it had not done before.

    python -m benchmarks.useful_time [--mean 60 15] [--kills 6] [--mebibytes 100] [--turns 1] [--json FILE]

Four ranks train with DistributedDataParallel; a drawn one of them gets SIGKILL at times that are drawn from an
exponential distribution, the same ones for each case: in four nodes of the local backend with the state in memory after
each step, and under torchrun, which starts four workers on one node, with a file at Young's interval. The runs take
turns.

The share is that of the wall time from the first step's begin to the last one's end. It is counted from what rank 0
noted of its steps; saves count as useful in one figure and as lost in the other. Beside it stands what our own meter
says, which counts the start of the run too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.elsewhere import busy_cores
from benchmarks.machine import describe
from benchmarks.state import killed
from benchmarks.state.shares import shares, steps_in
from tests.faults.play import prepare_door
from tests.slurm_sandbox.sandbox import wait_until
from tests.soak.campaign import kill_everything

RANKS = 4
OURS, TORCHRUN = "in memory, every step", "torchrun, a file at Young's interval"
BARS = {60.0: 0.97, 15.0: 0.94}
_BACK_WITHIN_S = 120
_JOB = """
name: useful
site: local
nodes: {ranks}
workers_per_node: 1
time: 2h
entrypoint: {{script: {script}, args: {arguments}}}
env: {{OMP_NUM_THREADS: 1}}
restart: {{max_restarts: 1000, no_progress_limit: 1000, backoff: {{first: 0s}}}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mean", type=float, nargs="+", default=[60.0, 15.0], help="seconds between kills")
    parser.add_argument("--kills", type=int, default=6, help="in each run")
    parser.add_argument("--mebibytes", type=int, default=100, help="of the state")
    parser.add_argument("--turns", type=int, default=1, help="runs of each case")
    parser.add_argument("--only", choices=["ours", "torchrun"], help="one of the cases")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    cases = {"ours": [OURS], "torchrun": [TORCHRUN], None: [OURS, TORCHRUN]}[arguments.only]
    report: dict[str, Any] = {"machine": describe(), "busy_cores_before": busy_cores(seconds=3)}
    report |= {"mebibytes": arguments.mebibytes, "kills": arguments.kills, "runs": []}
    with tempfile.TemporaryDirectory(prefix="hpc-elastic-useful-") as folder:
        for mean_s in arguments.mean:
            for turn in range(arguments.turns):
                for name in cases if turn % 2 == 0 else cases[::-1]:
                    own = Path(folder) / f"{mean_s}-{turn}-{cases.index(name)}"
                    own.mkdir()
                    play = _ours if name == OURS else _torchrun
                    found = play(own, _draw(mean_s, arguments.kills, turn), mean_s, arguments.mebibytes)
                    report["runs"].append({"case": name, "mean_s": mean_s, "turn": turn, **found})
                    print(json.dumps(report["runs"][-1]), flush=True)
    print("\n".join(table(report)))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")


def _draw(mean_s: float, count: int, turn: int) -> list[tuple[float, int]]:
    """Return after how many seconds which rank is killed, each counted from the one before."""
    dice = random.Random(f"{mean_s} {turn}")
    return [(dice.expovariate(1 / mean_s), dice.randrange(RANKS)) for _ in range(count)]


def _ours(folder: Path, kills: list[tuple[float, int]], mean_s: float, mebibytes: int) -> dict[str, Any]:
    door = prepare_door(folder)
    arguments = json.dumps([str(folder), str(mebibytes), "memory", str(mean_s)])
    (door.folder / "job.yaml").write_text(_JOB.format(ranks=RANKS, script=killed.__file__, arguments=arguments))
    run = door.submit("job.yaml")
    try:
        with _stopped_at_the_end(folder):
            _kill(folder, kills, run.story)
        wait_until(run.is_over, "the run is over", within_s=60, otherwise=run.story)
        result = json.loads(Path(run.layout.result).read_text())
    finally:
        kill_everything(run)
    # Two kills may fall into one restart, of ranks that are stopped anyway.
    assert result["state"] == "SUCCEEDED", result
    assert 0 < result["restarts"] <= len(kills), result
    meter = result["useful_time"]
    found = {**shares(folder), "killed": len(kills), "restarts": result["restarts"]}
    return {**found, "meter": round(meter["useful_share"], 4), "seconds": meter["seconds"]}


def _torchrun(folder: Path, kills: list[tuple[float, int]], mean_s: float, mebibytes: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command += ["--max-restarts=1000", killed.__file__, str(folder), str(mebibytes), "disk", str(mean_s)]
    output = folder / "torchrun.out"
    with output.open("wb") as file:
        # Sharing its own store with the workers, torchrun does not come back from most crashes (see recovery).
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environ)
    try:
        with _stopped_at_the_end(folder):
            _kill(folder, kills, lambda: output.read_text(errors="replace")[-3000:])
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    return {**shares(folder), "killed": len(kills)}


@contextmanager
def _stopped_at_the_end(folder: Path) -> Iterator[None]:
    try:
        yield
    finally:
        (folder / "stop").touch()


def _kill(folder: Path, kills: list[tuple[float, int]], story: Callable[[], str]) -> None:
    """Kill the ranks when it is time; one that is not back by then is killed as soon as it is."""
    dead = {""}
    wait_until(lambda: len(steps_in(folder)) > 3, "it trains", within_s=_BACK_WITHIN_S, otherwise=story)
    at = time.monotonic()
    for after_s, rank in kills:
        at = max(at + after_s, time.monotonic())
        time.sleep(max(0.0, at - time.monotonic()))
        path = folder / f"pid.{rank}"
        while True:
            wait_until(
                lambda: path.read_text() not in dead,  # noqa: B023
                f"rank {rank} is back",
                within_s=_BACK_WITHIN_S,
                otherwise=story,
            )
            pid = path.read_text()
            dead.add(pid)
            try:
                os.kill(int(pid), signal.SIGKILL)
                break
            except ProcessLookupError:  # stopped after the last kill, and its successor has not told its id yet
                continue
    ended = len(steps_in(folder))
    wait_until(lambda: len(steps_in(folder)) > ended + 3, "it trains on", within_s=_BACK_WITHIN_S, otherwise=story)


def table(report: Mapping[str, Any]) -> list[str]:
    """Return the figures as a table."""
    lines = [
        "| kills, mean s | case | killed | wall, s | useful | without saves | our meter | repeated | bar |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for run in report["runs"]:
        bar = BARS.get(run["mean_s"]) if run["case"] == OURS else None
        judged = "" if bar is None else f"{bar:.0%}: {'met' if run['useful'] >= bar else 'MISSED'}"
        cells_of_shares = [
            f"{run[name]:.2%}" if name in run else "" for name in ("useful", "useful_without_saves", "meter")
        ]
        cells = [run["mean_s"], run["case"], run["killed"], run["wall_s"], *cells_of_shares, run["repeated"], judged]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return [*lines, f"{report['machine']}; {report['busy_cores_before']} cores busy before."]


if __name__ == "__main__":
    main()
