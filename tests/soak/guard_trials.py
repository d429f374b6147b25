"""Agents that are frozen, killed, or lose their guard while they start workers, which must not outlive their deadline.

    python -m tests.soak.guard_trials [--trials 1000] [--first 0] [--processes 10000] [--start spawn|fork]

Each trial, drawn from its seed, is one agent with its guard, its two workers and a process that each of these starts.
All of them write down until when they ran (`beater`). The agent is frozen or killed before any line of the start; or it
is a member that fences, and its guard is killed, or it is frozen, and wakes up when its lease is over. The standard
error that both write to may be blocked. No beat may be later than `BOUND_S` after the deadline, and no process may be
left then. With --processes as many others sleep on the node.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import random
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from hpc_elastic.agent.system.processes import Marks, find_workers, signal_all
from hpc_elastic.clock import now
from hpc_elastic.deadline import Deadline
from hpc_elastic.membership.timing import AGENT
from tests.soak.guarded_agent import NODE, Orders, be_agent

BOUND_S = 0.25
LOOKS_ON_S = 0.2  # so long after the bound it is read what the workers wrote
TURN_S = 0.05  # a machine whose processes wait for longer than that may have had no processor for the guard
TRIES = 5
STARTS_WITHIN_S = 60.0
MOST_BROKEN = 10
STARTS = ["spawn", "fork"]
PROCESSES = 4  # two workers, and one that each of them starts


class Fault(Enum):
    """What befalls the agent."""

    FROZEN = "agent frozen"
    WOKEN = "agent frozen, then woken"
    KILLED = "agent killed"
    GUARD_KILLED = "guard killed"
    UNGUARDED = "guard killed, agent frozen"  # nobody is left to kill: only to show that a trial can fail


FENCES = (Fault.GUARD_KILLED, Fault.WOKEN)  # the agent is a member


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial, drawn from a seed.

    `step`: before which of the start's lines the agent is frozen or killed. `wakes_s`: how long after the bound it
    wakes up, if it does.
    """

    seed: int
    fault: Fault
    step: int
    deadline_s: float
    kills_guard_s: float
    is_blocked: bool
    wakes_s: float = 0.0

    @classmethod
    def draw(cls, seed: int, steps: int, start: str = "spawn") -> Trial:
        """Draw a trial of a start that has so many lines."""
        chance = random.Random(seed)
        fault = chance.choices([Fault.FROZEN, Fault.WOKEN, Fault.KILLED, Fault.GUARD_KILLED], [4, 3, 2, 2])[0]
        # An agent that can fence does so before its guard's deadline, and starts no worker after that.
        deadline_s = chance.uniform(2 * AGENT.guard_s if fault in FENCES else 0.02, 1.0)
        return cls(
            seed=seed,
            fault=fault,
            step=chance.randint(1, steps),
            deadline_s=deadline_s,
            kills_guard_s=chance.uniform(0, deadline_s),
            # The process that workers are forked from writes torch's warnings there before it is ready.
            is_blocked=chance.random() < 0.5 and start == "spawn",
            wakes_s=chance.uniform(0, 0.5),
        )

    def orders(self, run_dir: Path, start: str) -> Orders:
        """Return what the agent of this trial does."""
        return Orders(
            run_dir=run_dir,
            start=start,
            deadline_s=self.deadline_s,
            step=0 if self.fault is Fault.GUARD_KILLED else self.step,
            signal=signal.SIGKILL if self.fault is Fault.KILLED else signal.SIGSTOP,
            kills_guard_s=self.kills_guard_s if self.fault is Fault.GUARD_KILLED else None,
            fences=self.fault in FENCES,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a trial showed.

    `late_s`: how long after the deadline the last process ran that a worker's code ran in; None if none ever did.
    `left`: the process ids of those that were still there at the bound. `waited_s`: how long processes of this machine
    waited for a processor from the deadline to the bound. `tries`: how often it was done, the last one being this.
    """

    trial: Trial
    late_s: float | None
    left: tuple[int, ...]
    words: tuple[str, ...]
    waited_s: float
    tries: int = 1

    @property
    def is_broken(self) -> bool:
        """Whether a worker outlived its deadline by more than the bound."""
        return bool(self.left) or (self.late_s is not None and self.late_s > BOUND_S)

    @property
    def is_sound(self) -> bool:
        """Whether the machine was not too busy to tell anything of a guard that was late, by no more than it was."""
        too_late_s = (self.late_s or 0.0) - BOUND_S
        return self.waited_s <= max(TURN_S, too_late_s)

    @property
    def is_telling(self) -> bool:
        """Whether a worker ran until its deadline or beyond, so that somebody had to end it then."""
        return self.late_s is not None and self.late_s > -0.05


def play(trial: Trial, folder: Path, *, start: str = "spawn") -> Outcome:
    """Do one trial in a new folder; nothing of it is left afterwards."""
    run_dir = folder / f"trial-{trial.seed}"
    (run_dir / "beats").mkdir(parents=True)
    marks = Marks(run_dir=str(run_dir), node=NODE)
    deadline = Deadline.create()
    with _agent(trial.orders(run_dir, start), deadline, is_blocked=trial.is_blocked) as told:
        words = [told.read_word()]
        guard, over = int(words[0].split()[1]), float(words[0].split()[2])  # a member may move the deadline
        if trial.fault is Fault.UNGUARDED:  # the guard after the agent, which would start another one
            while words[-1] != "frozen":
                words.append(told.read_word())
            os.kill(guard, signal.SIGKILL)
        _sleep_until(over)
        waits_s = waits_for_processors_s()
        _sleep_until(over + BOUND_S)
        waited_s = waits_for_processors_s() - waits_s
        left = tuple(pid for pid in find_workers(marks) if _has_beaten(run_dir, pid))
        if trial.fault is Fault.WOKEN:
            _sleep_until(over + BOUND_S + trial.wakes_s)
            os.kill(told.pid, signal.SIGCONT)
            while "searches" not in words:  # then no worker is left, nor can one be started
                words.append(told.read_word())
        _sleep_until(over + BOUND_S + LOOKS_ON_S)
        words += told.read_rest()
    while found := find_workers(marks):
        signal_all(found.values(), signal.SIGKILL)
    beats = [struct.unpack("d", path.read_bytes())[0] for path in (run_dir / "beats").iterdir() if path.suffix == ""]
    shutil.rmtree(run_dir)
    deadline.close()
    return Outcome(
        trial=trial,
        late_s=max(beats) - over if beats else None,
        left=left,
        words=tuple(words),
        waited_s=waited_s,
    )


def play_soundly(trial: Trial, folder: Path, *, start: str = "spawn") -> Outcome:
    """Do a trial again where it is broken on a machine that was too busy; return the last one, sound or not."""
    for tries in range(1, TRIES + 1):
        outcome = replace(play(trial, folder, start=start), tries=tries)
        if not outcome.is_broken or outcome.is_sound:
            break
    return outcome


def measure_start(folder: Path, *, start: str = "spawn") -> tuple[int, float]:
    """Return how many lines a start has that nothing disturbs, and after how many seconds all of its processes beat."""
    run_dir = folder / "undisturbed"
    beats = run_dir / "beats"
    beats.mkdir(parents=True)
    orders = Orders(run_dir=run_dir, start=start, deadline_s=2 * STARTS_WITHIN_S)
    deadline = Deadline.create()
    with _agent(orders, deadline, is_blocked=False) as told:
        told.read_word()
        began = now()
        started = told.read_word()
        while len([path for path in beats.iterdir() if path.suffix == ""]) < PROCESSES:
            if now() > began + STARTS_WITHIN_S:
                raise TimeoutError("the workers do not beat")
            time.sleep(0.01)
        beat_s = now() - began
    while found := find_workers(Marks(run_dir=str(run_dir), node=NODE)):
        signal_all(found.values(), signal.SIGKILL)
    deadline.close()
    shutil.rmtree(run_dir)
    return int(started.removeprefix("started ")), beat_s


class _Told:
    """An agent, and what it says, a line each."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self._descriptor = descriptor
        self._text = ""

    def read_word(self) -> str:
        """Waits for the next line."""
        while "\n" not in self._text:
            if not select.select([self._descriptor], [], [], STARTS_WITHIN_S)[0]:
                raise TimeoutError("the agent has not said how far it is")
            data = os.read(self._descriptor, 4096)
            if not data:
                raise EOFError("the agent has ended before it said how far it is")
            self._text += data.decode()
        line, _, self._text = self._text.partition("\n")
        return line

    def read_rest(self) -> list[str]:
        """Return the lines that are there."""
        while select.select([self._descriptor], [], [], 0)[0] and (data := os.read(self._descriptor, 4096)):
            self._text += data.decode()
        return self._text.splitlines()


@contextlib.contextmanager
def _agent(orders: Orders, deadline: Deadline, *, is_blocked: bool) -> Iterator[_Told]:
    """An agent in a process of its own, which is gone afterwards, as its guard is."""
    reader, writer = os.pipe()
    errors = _blocked_pipe() if is_blocked else (os.open(os.devnull, os.O_WRONLY),)
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(errors[-1], 2)
            be_agent(orders, deadline, lambda word: void(os.write(writer, f"{word}\n".encode())))
        finally:
            os._exit(1)
    os.close(writer)
    told = _Told(pid, reader)
    try:
        yield told
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for descriptor in (reader, *errors):
            os.close(descriptor)


def void(_: object) -> None:
    """Drops a value."""


def _blocked_pipe() -> tuple[int, int]:
    """Return the two ends of a pipe that takes no more bytes."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, b"x" * 4096)
    return reader, writer


def _has_beaten(run_dir: Path, pid: int) -> bool:
    """Whether this process has run the workers' code; one that has not yet sees its deadline before it does."""
    return (run_dir / "beats" / str(pid)).exists()


def _sleep_until(moment: float) -> None:
    while (left := moment - now()) > 0:
        time.sleep(left)


def waits_for_processors_s() -> float:
    """Return for how long, since this machine began, some process could have run and had no processor.

    This process sleeps, and is therefore given a processor at once when it wakes up: that it is on time does not say
    that the guard, which works, could go on. Where the kernel keeps no account (CONFIG_PSI, psi=1) the answer is always
    0: then every broken trial counts.
    """
    try:
        some = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except OSError:
        return 0.0
    return int(some.rpartition("total=")[2]) / 1e6


@contextlib.contextmanager
def others(count: int) -> Iterator[None]:
    """So many processes on the node that are none of the run's."""
    sleeping = [subprocess.Popen(["sleep", "86400"], env={"HOME": "/"}) for _ in range(count)]
    try:
        yield
    finally:
        for process in sleeping:
            process.kill()
        for process in sleeping:
            process.wait()


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.guard_trials", description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed; the next trial has the next one")
    parser.add_argument("--processes", type=int, default=0, help="how many others sleep on the node meanwhile")
    parser.add_argument("--start", choices=STARTS, help="how workers start; without it, one way after the other")
    arguments = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all that was started ends, too
    folder = Path(tempfile.mkdtemp(prefix="guard-"))
    outcomes: list[Outcome] = []
    broken = 0
    try:
        starts = [arguments.start] if arguments.start else STARTS
        steps = {start: measure_start(folder, start=start)[0] for start in starts}
        with others(arguments.processes):
            for seed in range(arguments.first, arguments.first + arguments.trials):
                start = starts[seed % len(starts)]
                outcome = play_soundly(Trial.draw(seed, steps[start], start), folder, start=start)
                outcomes.append(outcome)
                if outcome.is_broken:
                    broken += 1
                    print(outcome, flush=True)
                    if broken == MOST_BROKEN:
                        break
    finally:
        shutil.rmtree(folder)
    lines = " or ".join(f"{count} lines ({start})" for start, count in steps.items())
    print(f"{len(outcomes)} trials of a start with {lines}, {arguments.processes} other processes; {broken} broken")
    print(_summary(outcomes))
    return 1 if broken else 0


def _summary(outcomes: Sequence[Outcome]) -> str:
    """Return how long after their deadline workers ran, where somebody had to end them then."""
    lines = []
    if again := sum(outcome.tries > 1 for outcome in outcomes):
        lines.append(f"{again} done again, because they were broken while processes waited for a processor")
    counts = Counter(outcome.trial.fault for outcome in outcomes)
    for fault in Fault:
        late = [o.late_s for o in outcomes if o.trial.fault is fault and o.is_telling and o.late_s is not None]
        if late:
            middle, worst = 1000 * statistics.median(late), 1000 * max(late)
            told = f"{len(late)} of {counts[fault]} had workers at the deadline"
            lines.append(f"{fault.value}: {told}, gone {middle:.0f} ms after it in the median, {worst:.0f} ms at most")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
