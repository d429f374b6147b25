"""`python -m tests.soak.notices --notices 50 [--slurm own]`: runs of 8 ranks on 4 nodes that save together on a notice.

The ranks run apart by many steps and meet only in the save, which takes part in a collective: if one of them heard of
the notice at another step than the others, or not at all, the save would not end, or would gather different steps.
A notice comes at a random moment, some while ranks still start, and is followed by a second one or not.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_elastic.rundir.records import NOTICE_REASONS, NoticeReason
from tests.faults.play import prepare_door
from tests.integration.conftest import Door, Run
from tests.integration.test_local_notices import SAVES, give_notice
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.soak.campaign import kill_everything

NODES, WORKERS = 4, 2
RANKS = range(NODES * WORKERS)
ENDS: dict[NoticeReason, str] = {"operator": "notice_taken", "preemption": "preempted", "time_limit": "time_limit"}
MOST_DELAY_S = 1.5
OVER_WITHIN_S = 180.0  # a deadlock ends with the notice's time, long after this
LEFT_S = 600.0
_JOB = """
name: notices
site: {site}
nodes: {nodes}
workers_per_node: {workers}
time: 2h
entrypoint: {{script: train.py, args: ['{number}']}}
resources: {{cpus_per_worker: 1}}
env: {{OMP_NUM_THREADS: 1}}
signals: {{grace: 5s, restart_grace: 2s}}
requeue: {{max: 0}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One notice, drawn from a seed."""

    reason: NoticeReason
    after: int  # is given when so many ranks are ready
    delay_s: float
    again_s: float | None  # a second one follows after this time

    @classmethod
    def draw(cls, seed: int) -> Notice:
        dice = random.Random(seed)
        return cls(
            reason=dice.choice(NOTICE_REASONS),
            after=dice.choice([1, len(RANKS), len(RANKS)]),
            delay_s=dice.uniform(0, MOST_DELAY_S),
            again_s=dice.choice([None, 0.0, dice.uniform(0, 0.1)]),
        )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.notices", description=__doc__)
    parser.add_argument("--notices", type=int, default=50, help="how many runs get one")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--slurm", help="own (this machine's), 22.05, 24.11 or 26.05; without it on this machine")
    arguments = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all that was started ends, too
    if arguments.slurm is None:
        return _play_all(arguments, prepare_door, "local")
    version = None if arguments.slurm == "own" else arguments.slurm
    slurm = Cluster.start(NODES, owner=os.getpid(), version=version)
    try:
        os.environ.update(slurm.variables)
        return _play_all(arguments, lambda folder: _door_on(slurm, folder), "generic-slurm")
    finally:
        slurm.down()


def _door_on(slurm: Cluster, folder: Path) -> Door:
    (folder / "project").mkdir()
    return Door(folder / "project", {**slurm.environment, "XDG_STATE_HOME": str(folder / "state")})


def _play_all(arguments: argparse.Namespace, make_door: Callable[[Path], Door], site: str) -> int:
    failed = 0
    for seed in range(arguments.first, arguments.first + arguments.notices):
        folder = Path(tempfile.mkdtemp(prefix=f"notices-{seed}-"))
        began = time.monotonic()
        wrong = play(make_door(folder), seed, site)
        print(f"{seed}: {wrong or 'all saved at the same step'}, {time.monotonic() - began:.1f} s", flush=True)
        failed += bool(wrong)
        if wrong:
            print(f"see {folder}", flush=True)
        else:
            shutil.rmtree(folder)
    print(f"{arguments.notices - failed} of {arguments.notices} saved together and ended")
    return 1 if failed else 0


def play(door: Door, seed: int, site: str = "local") -> str:
    """Give the notice of a seed to a run of its own, and return what is wrong about what it did; "" if nothing is."""
    notice = Notice.draw(seed)
    door.write("train.py", SAVES)
    door.write("job.yaml", _JOB.format(site=site, nodes=NODES, workers=WORKERS, number=seed))
    run = door.submit("job.yaml")
    try:
        wait_until(lambda: _ready(run) >= notice.after, "ranks are ready", within_s=120, otherwise=run.story)
        time.sleep(notice.delay_s)
        give_notice(run, notice.reason, LEFT_S)
        if notice.again_s is not None:
            time.sleep(notice.again_s)
            give_notice(run, notice.reason, LEFT_S)
        result = run.wait_until_over(within_s=OVER_WITHIN_S)
        return what_is_wrong(result, [run.stdout(1, rank).splitlines() for rank in RANKS], notice.reason)
    except AssertionError as error:
        return f"{notice}: {error}"
    finally:
        if site == "local":
            kill_everything(run)
        else:
            door.run("cancel", run.job_id, "--yes", exit_code=None)


def _ready(run: Run) -> int:
    return sum("ready" in run.stdout(1, rank) for rank in RANKS)


def what_is_wrong(result: dict[str, object], said: Sequence[Sequence[str]], reason: NoticeReason) -> str:
    """Return what differs from one save of all ranks at the same step; "" if nothing does."""
    ended = (result["restarts"], result["attempts"], result["reason"])
    if ended != (0, 1, ENDS[reason]):
        return f"ended otherwise: {ended}, {result['cause']}"
    if any(list(each) != list(said[0]) for each in said):
        return f"the ranks did not do the same: {said}"
    if list(said[0]) not in (["ready", *called, f"saved for {reason} alike"] for called in ([], ["called alike"])):
        return f"not what was to be done: {said[0]}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
