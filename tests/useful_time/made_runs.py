"""Histories of runs that are made up, with what each second of them was spent on, and the records that tell of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hpc_elastic.rundir.records import utc_text
from hpc_elastic.useful_time.division import TimeUse
from hpc_elastic.useful_time.history import RunRecords

BEGIN = 1_790_000_000.0


@dataclass(frozen=True, kw_only=True)
class MadeAttempt:
    """An attempt: how long its parts took in seconds, and how it ended.

    It goes on from the latest save, and does `steps` steps. `end` is `failed`, `stalled`, or `stopped` (saved first).
    `lost_s` is what came after its last step; `stop_s` and `wait_s` follow its end.
    """

    open_s: float = 1.0
    load_s: float = 2.0
    steps: int = 10
    end: str = "failed"
    lost_s: float = 0.0
    stop_s: float = 0.5
    wait_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MadeAllocation:
    """An allocation; it is left in order, or cut off."""

    queue_s: float = 30.0
    script_s: float = 1.0
    gather_s: float = 3.0
    attempts: tuple[MadeAttempt, ...] = (MadeAttempt(),)
    leave_s: float = 0.5


@dataclass(frozen=True, kw_only=True)
class MadeRun:
    """A run; `ahead` is how many seconds a node's clock is ahead, `save_every` counts steps.

    `clock_set`: so many seconds after the beginning each head's clock is set by so many seconds.
    """

    allocations: tuple[MadeAllocation, ...]
    step_s: float = 0.5
    save_every: int = 4
    beats: bool = True
    ahead: Mapping[str, float] = field(default_factory=dict)
    heads: tuple[str, ...] = ("a",)
    clock_set: tuple[float, float] | None = None


class Telling:
    """Tells a made run as records, and keeps what its time was truly spent on."""

    def __init__(self, run: MadeRun) -> None:
        self.run = run
        self.at = BEGIN
        self.truth = dict.fromkeys(TimeUse, 0.0)
        self.queued_s = 0.0
        self.best = self.saved = self.number = 0
        self.events: list[dict[str, Any]] = []
        self.allocations: list[dict[str, Any]] = []
        self.attempts: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.cause: dict[str, Any] | None = None
        self.has_noted_clock, self.allocation = False, 0
        for number, allocation in enumerate(run.allocations, start=1):
            self._allocate(number, allocation, is_last=number == len(run.allocations))
        self.end = self.at

    def records(self) -> RunRecords:
        head = self._head(len(self.run.allocations))
        result = {"ended": utc_text(self._clock(head)), "written_by": head, "root_cause": self.cause}
        return RunRecords(
            plan={"roles": [{"name": "default"}]},
            submission={"submitted": utc_text(BEGIN)},
            allocations=self.allocations,
            attempts=self.attempts,
            events=self.events,
            requests=self.requests,
            result=result,
        )

    def _spend(self, seconds: float, use: TimeUse) -> None:
        begin, self.at = self.at, self.at + seconds
        if self.run.clock_set is not None and begin < BEGIN + self.run.clock_set[0] <= self.at:
            self.has_noted_clock, end, self.at = True, self.at, BEGIN + self.run.clock_set[0]
            for head in self.run.heads:
                self._note("node.clock_set", self.allocation, head, node=head, step_s=self.run.clock_set[1])
            self.at = end
        self.truth[use] += seconds

    def _head(self, allocation: int) -> str:
        return self.run.heads[(allocation - 1) % len(self.run.heads)]

    def _clock(self, node: str) -> float:
        is_set = node in self.run.heads and self.run.clock_set is not None and self.at >= BEGIN + self.run.clock_set[0]
        step = self.run.clock_set[1] if is_set and self.run.clock_set is not None else 0.0
        return self.at + self.run.ahead.get(node, 0.0) - self.run.ahead.get(self.run.heads[0], 0.0) + step

    def _note(self, name: str, allocation: int, by: str, /, **metadata: Any) -> None:
        time_ns = int(self._clock(by) * 1e9)
        event = {"name": name, "time_ns": time_ns, "node": by, "allocation": allocation, "attempt": self.number}
        self.events.append({**event, "metadata": metadata})

    def _allocate(self, number: int, made: MadeAllocation, *, is_last: bool) -> None:
        head, self.allocation = self._head(number), number
        self.at += made.queue_s
        self.queued_s += made.queue_s
        began = self._clock(head)
        self._spend(made.script_s, TimeUse.STARTING)
        claim = {"allocation": number, "node": head, "job_id": "1", "restart_count": number - 1}
        self.allocations.append({**claim, "time": utc_text(self._clock(head)), "script_started": began})
        self._note("nodes.gpus_differ", number, head)
        for node in {*self.run.heads, "z"} - {head}:
            differs = self.run.ahead.get(node, 0.0) - self.run.ahead.get(head, 0.0)
            if abs(differs) >= 2:
                self._note("node.clock_differs", number, head, node=node, offset_s=differs)
        self._spend(made.gather_s, TimeUse.WAITING)
        for index, attempt in enumerate(made.attempts):
            self._attempt(number, head, attempt, is_first=index == 0, is_last=index + 1 == len(made.attempts))
        if not is_last:
            request = {"kind": "left", "allocation": number, "by": head}
            self._spend(made.leave_s, TimeUse.ENDED)
            self.requests.append({**request, "time": utc_text(self._clock(head))})
        else:
            self._spend(made.leave_s, TimeUse.ENDED)

    def _attempt(self, allocation: int, head: str, made: MadeAttempt, *, is_first: bool, is_last: bool) -> None:
        run, self.number = self.run, self.number + 1
        start = TimeUse.STARTING if is_first else TimeUse.RESTARTING
        claim = {"attempt": self.number, "allocation": allocation, "head": head, "members": ["a", "z"]}
        self.attempts.append(
            {**claim, "roles": ["default"], "time": utc_text(self._clock(head)), "root_cause": self.cause}
        )
        self.cause = None
        self._note("attempt.opened", allocation, head)
        self._spend(made.open_s, start)
        self._note("attempt.started", allocation, head)
        self._spend(made.load_s, start if run.beats and made.steps else TimeUse.TRAINING)
        step, done = self.saved, 0
        for _ in range(made.steps):
            is_known = run.beats and step < self.best
            self._spend(run.step_s, TimeUse.AGAIN if is_known else TimeUse.TRAINING)
            step, done = step + 1, done + 1
            if step % run.save_every == 0:
                self.saved = max(self.saved, step)
            if run.beats and (done in (1, made.steps) or done % 7 == 0):
                at_ns = int(self._clock("z") * 1e9)
                about = {"step": step, "step_time_ns": at_ns}
                self._note("steps.done", allocation, "z", **about)
        self.best = max(self.best, step)
        self._end_attempt(allocation, head, made, step, is_last=is_last)

    def _end_attempt(self, allocation: int, head: str, made: MadeAttempt, step: int, *, is_last: bool) -> None:
        run = self.run
        if made.end == "stopped":
            self.saved = self.best
        if made.end == "stalled":
            known = TimeUse.STALLED
        elif run.beats and made.steps and not (made.end == "stopped" and is_last):
            known = TimeUse.RESTARTING
        else:
            known = TimeUse.AGAIN if run.beats and step < self.best else TimeUse.TRAINING
        self._spend(made.lost_s, known)
        if made.end != "stopped":
            failure_class = "stalled" if made.end == "stalled" else "exception"
            self.cause = {"attempt": self.number, "class": failure_class, "line": "it failed"}
            self._note("failure.observed", allocation, head)
        if is_last:
            self._note("run.ending", allocation, head)
            self._spend(made.stop_s + made.wait_s, TimeUse.ENDED)
            return
        if made.end == "stopped":
            self._note("attempt.failed", allocation, head)
        self._spend(made.stop_s, TimeUse.RESTARTING)
        if made.end != "stopped":  # the cause is named when all have stopped
            self._note("attempt.failed", allocation, head)
        self._note("torchelastic.worker.status.TERMINATED", allocation, "z")
        if made.wait_s:
            self._spend(made.wait_s, TimeUse.WAITING)
            self._note("node.joined", allocation, head, node="new")


def with_attempts(run: MadeRun, attempts: tuple[MadeAttempt, ...]) -> MadeRun:
    """The run with these attempts in its first allocation."""
    first, *others = run.allocations
    return replace(run, allocations=(replace(first, attempts=attempts), *others))
