"""Trainings under every launcher in turn: the cold start, then a rank that raises and one that is killed."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.loss.steps import NotInTimeError
from benchmarks.restart.faults import Recovery, crash, kill
from benchmarks.restart.jobs import Job
from benchmarks.restart.launchers import DEFAULT, Launcher
from benchmarks.restart.moments import Group, Stamps, now
from tests.slurm_sandbox.cluster import Cluster

NODES = 4
STARTS_WITHIN_S = 90
SETTLES_S = 0.5  # what goes on around a start is over then
LEAVES_WITHIN_S = 20

Fault = Callable[[Cluster, Job, Stamps, Group], tuple[Recovery, Group]]


@dataclass
class Tries:
    """What one launcher did in one case: by turn the seconds that it took, and how often it did not at all."""

    turns: list[list[float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)

    def is_hopeless(self, give_up: int) -> bool:
        """Whether so many tries failed and none worked; 0: never."""
        return 0 < give_up <= len(self.failures) and not any(self.turns)

    def begin_turn(self) -> None:
        self.turns.append([])

    def took(self, seconds: float, detail: dict[str, Any] | None = None) -> None:
        self.turns[-1].append(round(seconds, 4))
        if detail is not None:
            self.details.append(detail)


Table = dict[str, dict[str, Tries]]  # by case and launcher


def take_turns(
    slurm: Cluster, folder: Path, launchers: Sequence[Launcher], *, number: int, peer: int, repeats: int, give_up: int
) -> Table:
    """Every launcher once a turn, another one first in each.

    Args:
        slurm: where.
        folder: for the jobs' own folders.
        launchers: which.
        number: how many turns.
        peer: in how many of them, from the first on, torchrun takes part.
        repeats: how many crashes, and kills, a job of ours has.
        give_up: after so many tries that failed, with none that worked, a fault is not tried any more; 0: never.
    """
    table: Table = defaultdict(lambda: defaultdict(Tries))
    for turn in range(number):
        for place in range(len(launchers)):
            launcher = launchers[(turn + place) % len(launchers)]
            for case in ("cold start", "crash", "kill"):
                table[case][launcher.name].begin_turn()
            for number_of_job, faults in enumerate(jobs(launcher, repeats)):
                tried = [fault for fault in faults if not table[fault[0]][launcher.name].is_hopeless(give_up)]
                if tried and (launcher.is_ours or turn < peer):
                    own = folder / f"{turn}-{place}-{number_of_job}"
                    own.mkdir()
                    train(slurm, own, launcher, table, tried)
                    slurm.leftovers(within_s=LEAVES_WITHIN_S)
    return table


def train(slurm: Cluster, folder: Path, launcher: Launcher, table: Table, faults: Sequence[tuple[str, Fault]]) -> None:
    """One job, with its faults one after the other until the training does not come back from one."""
    stamps = Stamps(folder / "stamps", NODES)
    at = now()
    job = Job(slurm, folder, stamps.folder, NODES, launcher)
    case = "cold start"
    try:
        group = stamps.next_group(STARTS_WITHIN_S, story=job.story)
        table[case][launcher.name].took(group.last("stepped") - at)
        say(launcher, case, f"{group.last('stepped') - at:.2f} s")
        for case, fault in faults:
            time.sleep(SETTLES_S)
            recovery, group = fault(slurm, job, stamps, group)
            table[case][launcher.name].took(recovery.recovered_s, recovery.as_json())
            say(launcher, case, f"{recovery.recovered_s:.3f} s")
    except (NotInTimeError, LookupError) as error:
        table[case][launcher.name].failures.append(give_up_on(slurm, launcher, case, error))
    job.stop()


def jobs(launcher: Launcher, repeats: int) -> list[list[tuple[str, Fault]]]:
    """The faults of each job in a turn; one that torchrun's default mode does not survive must not hide the other."""
    both: list[tuple[str, Fault]] = [("crash", crash), ("kill", kill)]
    if launcher is DEFAULT:
        return [[fault] for fault in both]
    return [both * repeats if launcher.is_ours else both]


def give_up_on(slurm: Cluster, launcher: Launcher, case: str, error: Exception) -> str:
    """Ends a job that has failed a try; gives why in a line, and says all that is known if it is ours."""
    why, _, story = str(error).partition("\n")
    say(launcher, case, f"{why}\n{story}" if launcher.is_ours else why)
    slurm.run("scancel", "--user=root")
    return why


def say(launcher: Launcher, case: str, text: str) -> None:
    print(f"{launcher.name}, {case}: {text}", file=sys.stderr)
