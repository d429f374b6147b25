"""Medians, percentiles and ratios with a confidence interval, from the standard library alone."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

ENOUGH_FOR_P99 = 100
ENOUGH_TURNS = 4  # with fewer, draws of whole turns are nearly all the same
RESAMPLES = 10_000
CONFIDENCE = 0.95
SEED = 20_261_121  # the same figures give the same interval

Turns = Sequence[Sequence[float]]  # of each turn what was measured in it; the same turn of two series is a pair


@dataclass(frozen=True)
class Ratio:
    """A ratio of two medians, and where it lies with 95 % confidence; None if too few turns say so."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.3g}"
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of the values does not exceed (nearest rank).

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def summary(values: Sequence[float], *, digits: int = 4) -> dict[str, Any]:
    """n, median, least, most, and p99, which is None with fewer than 100 values: the most says as much then."""
    if not values:
        return {"n": 0, "median": None, "p99": None, "least": None, "most": None}
    return {
        "n": len(values),
        "median": round(statistics.median(values), digits),
        "p99": round(percentile(values, 0.99), digits) if len(values) >= ENOUGH_FOR_P99 else None,
        "least": round(min(values), digits),
        "most": round(max(values), digits),
    }


def tail(figures: dict[str, Any]) -> float | None:
    """A summary's p99, else its most."""
    found: float | None = figures["most"] if figures["p99"] is None else figures["p99"]
    return found


def ratio_of_medians(above: Turns, below: Turns, *, resamples: int = RESAMPLES) -> Ratio | None:
    """The median of one series by that of another, and a percentile bootstrap over the turns; None without values.

    The values of one turn are not independent of each other, and those of a pair not either, so whole turns are drawn,
    each with both of its series (Davison and Hinkley, Bootstrap Methods and their Application, 1997, 3.8).
    """
    turns = list(zip(above, below, strict=True))

    def ratio(drawn: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float | None:
        upper = [value for one, _ in drawn for value in one]
        lower = [value for _, one in drawn for value in one]
        return statistics.median(upper) / statistics.median(lower) if upper and lower else None

    found = ratio(turns)
    if found is None:
        return None
    if sum(bool(upper and lower) for upper, lower in turns) < ENOUGH_TURNS:
        return Ratio(found)
    low, high = _interval(lambda source: ratio(source.choices(turns, k=len(turns))), resamples)
    return Ratio(found, low, high)


def _interval(draw: Callable[[random.Random], float | None], resamples: int) -> tuple[float, float]:
    source = random.Random(SEED)
    drawn = [value for _ in range(resamples) if (value := draw(source)) is not None]
    outside = (1 - CONFIDENCE) / 2
    return percentile(drawn, outside), percentile(drawn, 1 - outside)
