"""What a training of `killed` has noted of its steps, and how much of its time they were."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any


def steps_in(folder: Path) -> list[tuple[int, float, float, float]]:
    """Return of each step of rank 0 its number, and when it began, was done, and was saved; monotonic seconds.

    A line that is being written is not there yet: the kernel may show the part of it that is on an earlier page.
    """
    path = folder / "steps"
    lines = (path.read_text() if path.exists() else "").split("\n")[:-1]
    return [(int(step), float(began), float(done), float(saved)) for step, began, done, saved in map(str.split, lines)]


def shares(folder: Path) -> dict[str, Any]:
    """Return the shares of the wall time, from the first step's begin to the last one's end, that steps have taken.

    Of a step that was done again the first time counts. Saves are useful in one share and lost in the other.
    """
    steps = steps_in(folder)
    first: dict[int, tuple[int, float, float, float]] = {}
    for each in steps:
        first.setdefault(each[0], each)
    wall_s = steps[-1][3] - steps[0][1]
    return {
        "useful": round(sum(saved - began for _, began, _, saved in first.values()) / wall_s, 4),
        "useful_without_saves": round(sum(done - began for _, began, done, _ in first.values()) / wall_s, 4),
        "wall_s": round(wall_s, 1),
        "steps": len(first),
        "repeated": len(steps) - len(first),
        "step_s": round(statistics.median(done - began for _, began, done, _ in steps), 4),
    }
