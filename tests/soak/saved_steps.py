"""`python -m tests.soak.saved_steps --kills 200`: one training, whose ranks are killed at random and lose no step.

Each attempt must begin at the same step on all ranks: the last one that all of them had saved, or one that all had
saved since. In the end the weights of every rank must be those of a training that nobody has disturbed, bit by bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_elastic.state_memory import ALLOCATED, ATTEMPT, MEMORY_NAME, SLOTS, map_control, read_slots, slot_header
from tests.faults.play import prepare_door
from tests.integration.conftest import Door, Run
from tests.slurm_sandbox.sandbox import wait_until
from tests.soak import saver
from tests.soak.campaign import kill_everything

NODES, WORKERS = 2, 2
RANKS = range(NODES * WORKERS)
LONGEST_S = 0.5  # of an attempt, from its first step to the kill
STEPS_TO_THE_END = 200
MANY = 100  # kills, of which some come in the middle of a save: one in 12 did
_JOB = """
name: {name}
site: local
nodes: {nodes}
workers_per_node: {workers}
time: 10h
entrypoint: {{script: {script}, args: {arguments}}}
env: {{OMP_NUM_THREADS: 1}}
restart: {{max_restarts: {most}, no_progress_limit: {most}, backoff: {{first: 0s}}}}
signals: {{grace: 3s, restart_grace: 3s}}
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a campaign found: how many kills came while a state was half copied, and what was wrong, in lines."""

    kills: int
    end: int
    in_saves: int
    wrong: tuple[str, ...]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.saved_steps", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how many ranks are killed")
    parser.add_argument("--seed", type=int, default=0, help="which ranks, and when")
    parser.add_argument("--replicated", action="store_true", help="one rank a node keeps the state for all")
    parser.add_argument("--ddp", action="store_true", help="train with DistributedDataParallel")
    arguments = parser.parse_args(words)
    folder = Path(tempfile.mkdtemp(prefix="saved-steps-"))
    options = [f"--{name}" for name in ("replicated", "ddp") if getattr(arguments, name)]
    outcome = kill_savers(prepare_door(folder), arguments.kills, arguments.seed, options)
    print(f"{outcome.kills} kills, {outcome.in_saves} with a state half copied, {outcome.end} steps; {options}")
    for line in outcome.wrong:
        print(line)
    print("no step was lost, and the weights are the same" if not outcome.wrong else f"see {folder}")
    if not outcome.wrong:
        shutil.rmtree(folder)
    return 1 if outcome.wrong else 0


def kill_savers(door: Door, kills: int, seed: int, options: Sequence[str]) -> Outcome:
    """Train once with kills and once without, and return what differs from the promise."""
    dice = random.Random(seed)
    folder, reference = door.folder / "killed", door.folder / "undisturbed"
    folder.mkdir()
    reference.mkdir()
    run = _submit(door, "killed", folder, options, most=kills + 1)
    in_saves = 0
    try:
        for attempt in range(1, kills + 1):
            in_saves += _kill_one(run, folder, attempt, dice)
        _wait_until_begun(run, folder, kills + 1)
        end = max(_saved(folder, rank)[1] for rank in RANKS) + STEPS_TO_THE_END
        _write_whole(folder / "end", str(end))
        result = run.wait_until_over(within_s=300)
    finally:
        kill_everything(run)
    wrong = [] if (result["state"], result["attempts"]) == ("SUCCEEDED", kills + 1) else [f"{result}"]
    wrong += lost_steps(folder, kills)
    wrong += ["no kill came in the middle of a save"] if kills >= MANY and in_saves == 0 else []
    (reference / "end").write_text(str(end))
    undisturbed = _submit(door, "undisturbed", reference, options, most=1)
    try:
        assert undisturbed.wait_until_over(within_s=900)["state"] == "SUCCEEDED", undisturbed.story()
    finally:
        kill_everything(undisturbed)
    for rank in RANKS:
        if (folder / f"weights.{rank}").read_text() != (reference / f"weights.{rank}").read_text():
            wrong.append(f"rank {rank} has other weights than in a training that nobody has disturbed")
    return Outcome(kills=kills, end=end, in_saves=in_saves, wrong=tuple(wrong))


def _submit(door: Door, name: str, folder: Path, options: Sequence[str], *, most: int) -> Run:
    text = _JOB.format(
        name=name,
        nodes=NODES,
        workers=WORKERS,
        script=json.dumps(saver.__file__),
        arguments=json.dumps([str(folder), *options]),
        most=most,
    )
    door.write(f"{name}.yaml", text)
    return door.submit(f"{name}.yaml")


def _begun(folder: Path) -> list[dict[str, int]]:
    """What ranks have said at their begin: attempt, rank and the step from which they went on."""
    path = folder / "begun"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _saved(folder: Path, rank: int, until: int = 1 << 30) -> tuple[int, int]:
    """The attempt and step that a rank has saved last, in the attempts up to one."""
    path = folder / f"saved.{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    pairs = ((int(attempt), int(step)) for attempt, step in map(str.split, lines))
    return max((pair for pair in pairs if pair[0] <= until), default=(0, 0))


def _wait_until_begun(run: Run, folder: Path, attempt: int) -> None:
    wait_until(
        lambda: {each["rank"] for each in _begun(folder) if each["attempt"] == attempt} == set(RANKS),
        f"every rank of attempt {attempt} has begun",
        within_s=90,
        otherwise=run.story,
    )


def _kill_one(run: Run, folder: Path, attempt: int, dice: random.Random) -> bool:
    """Kill a rank at a random moment; return whether a slot of it was being written then."""
    _wait_until_begun(run, folder, attempt)
    rank = dice.choice(RANKS)
    pid = run.worker_pid(rank, attempt)
    time.sleep(dice.uniform(0, LONGEST_S))
    os.kill(pid, signal.SIGSTOP)
    is_in_save = _is_saving(pid)
    os.kill(pid, signal.SIGKILL)
    return is_in_save


def _is_saving(pid: int) -> bool:
    """Return whether the main thread of a stopped process copies a state."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if not os.readlink(link).startswith(f"/memfd:{MEMORY_NAME}"):
                continue
            descriptor = os.open(link, os.O_RDWR)
        except OSError:
            continue
        try:
            return is_half_copied(map_control(descriptor))
        finally:
            os.close(descriptor)
    return False


def is_half_copied(numbers: memoryview) -> bool:
    """Return whether a slot of a rank's memory is being written.

    Each slot that has memory is complete once this attempt has saved; before, one may be empty that nobody writes.
    """
    used = sum(slot_header(numbers, slot)[ALLOCATED] > 0 for slot in range(SLOTS))
    complete = read_slots(numbers)
    return len(complete) < used and any(state.attempt == numbers[ATTEMPT] for state in complete)


def lost_steps(folder: Path, kills: int) -> list[str]:
    """Return what is wrong with the steps at which the attempts began, in lines."""
    wrong, begun = [], _begun(folder)
    counts = Counter((each["attempt"], each["rank"]) for each in begun)
    wrong += [f"attempt {attempt}: rank {rank} began {n} times" for (attempt, rank), n in counts.items() if n != 1]
    before = 0
    for attempt in range(1, kills + 2):
        firsts = {each["first"] for each in begun if each["attempt"] == attempt}
        if len(firsts) != 1:
            wrong.append(f"attempt {attempt} began at several steps: {sorted(firsts)}")
            continue
        (first,) = firsts
        if attempt > 1 and not before <= first <= before + 1:
            wrong.append(f"attempt {attempt} began at step {first}, and all ranks had saved {before}")
        before = max(first, min(_saved_in(folder, rank, attempt, first) for rank in RANKS))
    return wrong


def _saved_in(folder: Path, rank: int, attempt: int, first: int) -> int:
    """The last step that a rank has saved in an attempt; the one that it began at if it has saved none."""
    found = _saved(folder, rank, attempt)
    return found[1] if found[0] == attempt else first


def _write_whole(path: Path, text: str) -> None:
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


if __name__ == "__main__":
    sys.exit(main())
