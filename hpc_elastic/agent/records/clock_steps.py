"""Notes when the clock of this node is set while an agent runs, for what happened before and after it.

Times in records are by the nodes' clocks. Who sets a clock, as NTP does after a boot with a wrong one, puts hours
between two events that seconds were between. The clock of deadlines (`hpc_elastic.clock`) goes on meanwhile, and shows
it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta

from hpc_elastic import clock
from hpc_elastic.membership.actions import Note
from hpc_elastic.units import format_duration

LEAST_S = 2.0  # as between the clocks of nodes; NTP slews what is less than an eighth of a second
LOOKS_EVERY_S = 1.0
_READ_WITHIN_S = 0.1  # both clocks, or the process was stopped between them


class ClockSteps:
    """Tells a step of the clock from time that passes."""

    def __init__(self) -> None:
        self._ahead: float | None = None

    def look(self, wall: float, steady: float) -> float:
        """Return by how many seconds the clock was set since the last look; 0.0 if it was not.

        Args:
            wall: Unix seconds.
            steady: the seconds of a clock that nobody sets, at the same moment.
        """
        before, self._ahead = self._ahead, wall - steady
        step = 0.0 if before is None else self._ahead - before
        return step if abs(step) >= LEAST_S else 0.0


async def watch_clock(
    node: str, note: Callable[[Note], None], say: Callable[[str], None], *, every_s: float = LOOKS_EVERY_S
) -> None:
    """Note each step of this node's clock, and say it, until the task is cancelled.

    Args:
        node: this node's name.
        note: takes an event for the run's records.
        say: takes a line for people.
        every_s: between two looks.
    """
    steps = ClockSteps()
    while True:
        first, wall, last = clock.now(), time.time(), clock.now()
        if last - first < _READ_WITHIN_S and (step := steps.look(wall, first)):
            text = describe_step(node, step)
            say(f"{text}; times in its logs and records before that are by the clock as it was")
            note(
                Note(name="node.clock_set", message=text, attempt=0, metadata={"node": node, "step_s": round(step, 3)})
            )
        await asyncio.sleep(every_s)


def describe_step(node: str, step_s: float) -> str:
    """Return that a node's clock was set, for people."""
    way = "forward" if step_s > 0 else "back"
    return f"the clock of {node} was set {way} by {format_duration(timedelta(seconds=round(abs(step_s))))}"
