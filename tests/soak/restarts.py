"""One run that crashes and restarts a thousand times, and must hold no more at the end than after its warm-up.

    python -m tests.soak.restarts --cycles 1000 [--nodes 2] [--workers 1] [--gloo] [--start spawn] [--states]

With --states the ranks save in memory, each node copies its states to the other one, and each attempt must go on at
the last step that all had saved.

It stands still at some attempts, all of whose ranks are there: then what it holds is read and compared. `readings`
has what must not grow.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.integration.conftest import Door, Run
from tests.slurm_sandbox.sandbox import wait_until
from tests.soak import crasher
from tests.soak.campaign import kill_everything
from tests.soak.patient import Patient
from tests.soak.readings import Reading, creeping, grown, read, uneven

MEMORY_GROWTH = 0.01
SETTLES_WITHIN_S = 60.0
IDLE_S = 4.0  # a fork server that has had nothing to do for 2 s puts its memory into huge pages, once
_JOB = """
name: restarts
site: local
nodes: {nodes}
workers_per_node: {workers}
time: 12h
start: {start}
entrypoint: {{script: {script}, args: {arguments}}}
env: {{OMP_NUM_THREADS: 1, TMPDIR: {folder}/temporary}}
restart: {{max_restarts: {most}, no_progress_limit: {most}, backoff: {{first: 0s}}}}
progress: {{file: {folder}/progress}}
signals: {{grace: 5s, restart_grace: 2s}}
state: {{replicas: {replicas}}}
"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How often what crashes. `warm_up`: cycles until the first reading that counts; `every`: between readings."""

    cycles: int = 1000
    warm_up: int = 50
    every: int = 95
    nodes: int = 2
    workers: int = 1
    with_gloo: bool = False
    with_states: bool = False
    start: str = "auto"
    memory_growth: float = MEMORY_GROWTH
    cycle_within_s: float = 60.0

    def moments(self) -> list[int]:
        """Return the numbers of cycles after which the run is held and read."""
        return sorted({*range(self.warm_up, self.cycles, self.every), self.cycles})


def play(door: Door, plan: Plan, *, say: Callable[[str], None] = print) -> list[Reading]:
    """Does the run, and checks it.

    Raises:
        AssertionError: something has grown, or is left, or the run did not do what was asked.
    """
    folder = door.folder
    for name in ("held", "released", "temporary"):
        (folder / name).mkdir()
    since = time.time()
    run = _submit(door, plan)
    try:
        readings: list[Reading] = []
        for cycle in plan.moments():
            readings.append(_stand_still(run, folder, plan, cycle, since, readings))
            say(str(readings[-1]))
            (folder / "released" / str(cycle + 1)).touch()
        result = run.wait_until_over(within_s=60)
        run.assert_nothing_left(within_s=30)
        assert (result["state"], result["attempts"]) == ("SUCCEEDED", plan.cycles + 1), run.story()
        limit = plan.memory_growth
        lost = (folder / "lost").read_text().splitlines() if (folder / "lost").exists() else []
        leaks = [
            *lost,
            *grown(readings[0], readings[-1], memory=limit),
            *creeping(readings, memory=limit),
            *uneven(readings),
        ]
        assert not leaks, "\n".join([*leaks, *map(str, (readings[0], readings[-1]))])
        return readings
    finally:
        kill_everything(run)


def _submit(door: Door, plan: Plan) -> Run:
    held = ",".join(str(cycle + 1) for cycle in plan.moments())
    arguments = [str(door.folder), str(plan.cycles), held, *(["--gloo"] if plan.with_gloo else [])]
    arguments += ["--states"] if plan.with_states else []
    text = _JOB.format(
        nodes=plan.nodes,
        workers=plan.workers,
        start=plan.start,
        script=crasher.__file__,
        arguments=[f"{argument}" for argument in arguments],
        folder=door.folder,
        most=2 * plan.cycles,
        replicas=int(plan.with_states),
    )
    door.write("job.yaml", text)
    return door.submit("job.yaml")


def _stand_still(run: Run, folder: Path, plan: Plan, cycle: int, since: float, readings: Sequence[Reading]) -> Reading:
    """Waits for the attempt after `cycle` and reads what there is, when what passes has passed."""
    ranks = plan.nodes * plan.workers
    bound_s = plan.cycle_within_s * (cycle - (readings[-1].cycle if readings else -1))

    def all_are_there() -> bool:
        return run.is_over() or len(list((folder / "held").glob(f"{cycle + 1}-*"))) == ranks

    wait_until(all_are_there, f"attempt {cycle + 1} stands still", within_s=bound_s, otherwise=run.story)
    assert not run.is_over(), run.story()
    first = readings[0] if readings else None
    seen: list[Reading] = []
    changed = time.monotonic()

    def is_settled() -> bool:
        """The store serves, by a thread, and all is as at the first reading; at that one nothing changes any more."""
        nonlocal changed
        seen.append(_read(run, folder, cycle, since))
        if len(seen) < 2 or _state(seen[-1]) != _state(seen[-2]):
            changed = time.monotonic()
        is_serving = seen[-1].threads["store host"] > 1
        is_still = first is not None or time.monotonic() - changed > IDLE_S
        return is_serving and is_still and (first is None or seen[-1].counts() == first.counts())

    try:
        wait_until(is_settled, "nothing is on its way any more", within_s=SETTLES_WITHIN_S)
    except AssertionError:
        return seen[-1]  # that is what it holds; whether it may is asked at the end
    return seen[-1]


def _state(reading: Reading) -> list[object]:
    return [*reading.counts(), reading.memory_kib["fork server"]]


def _read(run: Run, folder: Path, cycle: int, since: float) -> Reading:
    return read(cycle, root=Patient(run).script(), run=run.path, temporary=folder / "temporary", since=since)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.restarts", description=__doc__)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--warm-up", type=int, default=50)
    parser.add_argument("--every", type=int, default=95, help="cycles between readings")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1, help="of each node")
    parser.add_argument("--gloo", action="store_true", help="the workers are a process group")
    parser.add_argument("--states", action="store_true", help="the workers save states in memory")
    parser.add_argument("--start", default="auto", choices=["auto", "fork", "spawn"])
    arguments = parser.parse_args(words)
    plan = Plan(
        cycles=arguments.cycles,
        warm_up=arguments.warm_up,
        every=arguments.every,
        nodes=arguments.nodes,
        workers=arguments.workers,
        with_gloo=arguments.gloo,
        with_states=arguments.states,
        start=arguments.start,
    )
    folder = Path(tempfile.mkdtemp(prefix="restarts-"))
    (folder / "project").mkdir()
    door = Door(folder / "project", {**os.environ, "XDG_STATE_HOME": str(folder / "state")})
    began = time.monotonic()
    try:
        play(door, plan, say=lambda text: print(text, flush=True))
    except AssertionError as error:
        print(f"BROKEN after {time.monotonic() - began:.0f} s, see {folder}: {str(error)[:4000]}")
        return 1
    print(f"{plan.cycles} cycles without leak in {time.monotonic() - began:.0f} s ({plan})")
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
