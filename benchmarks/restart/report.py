"""Makes the report of `recovery` from what was measured: summaries, and ratios with their confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.figures import Ratio, ratio_of_medians, summary
from benchmarks.restart.growth import SIZES, Restarts
from benchmarks.restart.launchers import OURS, Launcher
from benchmarks.restart.pairs import Table, Tries

PHASES = ("exited_s", "detected_s", "decided_s", "opened_s", "started_s", "first_line_s", "imported_s", "joined_s")


def pairs_report(table: Table, launchers: Sequence[Launcher]) -> dict[str, Any]:
    """By case: each launcher's figures, and our ratio to each of the others."""
    report: dict[str, Any] = {}
    for case, by_launcher in table.items():
        tries = {launcher.name: by_launcher[launcher.name] for launcher in launchers}
        report[case] = {name: tries_report(one) for name, one in tries.items()}
        if OURS.name in tries:
            for name, other in tries.items():
                if name != OURS.name:
                    ratio = ratio_of_medians(tries[OURS.name].turns, other.turns)
                    report[case][name]["our_ratio"] = None if ratio is None else as_json(ratio)
    return report


def tries_report(tries: Tries) -> dict[str, Any]:
    values = [value for turn in tries.turns for value in turn]
    found = {**summary(values), "not_recovered": len(tries.failures), "failures": tries.failures, "turns": tries.turns}
    if tries.details:
        found["phases_median"] = {
            name: summary(known)["median"]
            for name in PHASES
            if (known := [one[name] for one in tries.details if one[name] is not None])
        }
        delays = [one["detected_s"] - one["exited_s"] for one in tries.details if one["detected_s"] is not None]
        if delays:
            found["detected_after_exit"] = summary(delays)
    return found


def growth_report(launcher: Launcher, found: Mapping[int, Restarts]) -> dict[str, Any]:
    """A row: what is measured, for each size, and the ratio of the large to the small one."""
    report: dict[str, Any] = {"launcher": launcher.name, "sizes": list(SIZES), "failures": []}
    small, large = (found[size] for size in SIZES)
    for name in ("total_s", "own_s", "head_cpu_s", "agent_cpu_s"):
        series = [getattr(one, name) for one in (small, large)]
        if any(turn for one in series for turn in one):
            ratio = ratio_of_medians(series[1], series[0])
            figures = [summary([value for turn in one for value in turn], digits=5) for one in series]
            report[name] = {"by_size": figures, "growth": None if ratio is None else as_json(ratio)}
    own_cpu = [add(one.head_cpu_s, one.agent_cpu_s) for one in (small, large)]
    if any(turn for one in own_cpu for turn in one):
        ratio = ratio_of_medians(own_cpu[1], own_cpu[0])
        figures = [summary([value for turn in one for value in turn], digits=5) for one in own_cpu]
        report["own_cpu_s"] = {"by_size": figures, "growth": None if ratio is None else as_json(ratio)}
    report["failures"] = [failure for one in (small, large) for failure in one.failures]
    report["phases_median"] = [
        {name: summary([one[name] for one in size.details if one[name] is not None])["median"] for name in PHASES}
        for size in (small, large)
    ]
    return report


def add(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[a + b for a, b in zip(*turns, strict=True)] for turns in zip(one, other, strict=True)]


def as_json(ratio: Ratio) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 4) for name, value in asdict(ratio).items()}
