"""What the ranks of a simulated run hear when they ask for a notice, and the rule for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.rules import require

if TYPE_CHECKING:
    from tests.simulation.workers import Worker
    from tests.simulation.world import SimulatedRun

WAITS_S = 5.0  # a call that waits for the agents, where nothing goes wrong


class Polls:
    """The answers so far: no two ranks of an attempt that share a store differ in the answer of the n-th poll."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        is_given = any(fault.what == "notice" for fault in run.scenario.faults)
        self.are_played = is_given or run.scenario.time_left_s is not None
        self._unheard: dict[tuple[str, int], int] = {}  # by group and attempt: the last poll that heard of nothing
        self._heard: dict[tuple[str, int], int] = {}  # the first one that heard of the notice

    @property
    def have_heard(self) -> bool:
        """Whether any rank has heard of a notice."""
        return bool(self._heard)

    def answered(self, worker: Worker, *, is_heard: bool) -> None:
        """A rank gets an answer."""
        key, number = (self._run.witness.group(worker.role), worker.attempt), worker.polls
        if is_heard:
            self._heard[key] = min(number, self._heard.get(key, number))
        else:
            self._unheard[key] = max(number, self._unheard.get(key, number))
        if key in self._heard and key in self._unheard:
            both = f"poll {self._heard[key]} hears of a notice, poll {self._unheard[key]} of none"
            what = f"rank {worker.rank} of attempt {worker.attempt} asks for a notice: {both}"
            require(self._unheard[key] < self._heard[key], what)

    def waits(self, worker: Worker) -> None:
        """A call of a rank waits for the agents to agree."""
        if worker.waits_since is None or self._run.is_disturbed:
            return
        waited = self._run.clock.now - worker.waits_since
        slow = 4 * max(self._run.scenario.delays_s)
        require(waited <= WAITS_S + slow, f"rank {worker.rank} waits {waited:.1f} s for the answer of a poll")
