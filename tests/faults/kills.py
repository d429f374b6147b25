"""`python -m tests.faults.kills --count 200 --seed 0`: random SIGKILLs among 8 ranks in a collective, in one long run.

Every attempt must name the rank that was killed, and no other one, in the claim of the attempt after it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.judge import Told
from tests.faults.play import prepare_door
from tests.integration.conftest import Door, Run
from tests.slurm_sandbox.cluster import wait_until
from tests.soak.campaign import kill_everything
from tests.soak.patient import Patient

NODES, WORKERS = 2, 4
SCRIPTS = Path(__file__).with_name("scripts")
_JOB = f"""
name: job
site: local
nodes: {NODES}
workers_per_node: {WORKERS}
entrypoint: {{script: job.py}}
start: fork
env: {{OMP_NUM_THREADS: 1}}
restart: {{max_restarts: 1000000}}
signals: {{grace: 3s, restart_grace: 3s}}
"""


@dataclass(frozen=True, slots=True)
class Kill:
    """One rank that was killed, and what the next claim says of it; `seconds` from the kill to that claim."""

    attempt: int
    rank: int
    told: Told
    observed_first: int | None
    seconds: float

    @property
    def is_right(self) -> bool:
        """Return whether root cause and line both name the killed rank."""
        return self.told.rank == self.rank and f"rank {self.rank} " in self.told.line


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kills", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="how many ranks are killed")
    parser.add_argument("--seed", type=int, default=0, help="which ranks, and when")
    arguments = parser.parse_args(words)
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    kills = kill_ranks(prepare_door(folder), arguments.count, arguments.seed)
    wrong = [kill for kill in kills if not kill.is_right]
    for kill in wrong:
        print(f"attempt {kill.attempt}: killed rank {kill.rank}, told rank {kill.told.rank}: {kill.told.line[:300]}")
    classes = Counter(kill.told.failure_class for kill in kills)
    first = sum(kill.observed_first not in (None, kill.rank) for kill in kills)
    print(f"{len(kills) - len(wrong)} of {len(kills)} attempts name the killed rank; classes {dict(classes)}")
    print(f"another rank was heard of first: {first}")
    took = [kill.seconds for kill in kills]
    median, most = statistics.median(took), max(took)
    print(f"from the kill to the claim: median {median:.2f} s, most {most:.2f} s; seed {arguments.seed}")
    if wrong:
        print(f"see {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if wrong else 0


def kill_ranks(door: Door, count: int, seed: int) -> list[Kill]:
    """Start a run, kill a random rank of each attempt, and return what the claims say.

    Raises:
        AssertionError: the run did not go on after a kill.
    """
    dice = random.Random(seed)
    (door.folder / "job.yaml").write_text(_JOB)
    shutil.copy(SCRIPTS / "trains.py", door.folder / "job.py")
    for name in ("common.py", "group.py"):
        shutil.copy(SCRIPTS / name, door.folder)
    run = door.submit("job.yaml")
    try:
        return [_kill_one(run, attempt, dice) for attempt in range(1, count + 1)]
    finally:
        kill_everything(run)


def _kill_one(run: Run, attempt: int, dice: random.Random) -> Kill:
    """Kills one rank of this attempt while all are in a collective, and waits for the next claim."""
    wait_until(
        lambda: all("here" in run.stdout(attempt, rank) for rank in range(NODES * WORKERS)),
        f"every rank of attempt {attempt} is at work",
        within_s=90,
        otherwise=run.story,
    )
    rank = dice.randrange(NODES * WORKERS)
    pid = run.worker_pid(rank, attempt)
    time.sleep(dice.uniform(0, 0.05))  # at any moment of a step
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: Path(run.layout.claim(attempt + 1)).exists(),
        f"attempt {attempt + 1} is claimed",
        within_s=90,
        otherwise=run.story,
    )
    seconds = time.monotonic() - began
    claim = Patient(run).claims()[attempt]
    told = Told.of(claim, claim["reason"], {})
    first = (claim.get("root_cause") or {}).get("observed_first")
    return Kill(attempt, rank, told, first, seconds)


if __name__ == "__main__":
    sys.exit(main())
