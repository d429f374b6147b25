"""Draws the figures of docs/benchmarks/recovery.json as PNG files beside it, and writes them into the pages.

    python -m benchmarks.plots        needs matplotlib

Nothing else that a benchmark needs is imported, so it runs in an environment of its own: matplotlib brings numpy, which
would change what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks import pages
from benchmarks.restart.launchers import DEFAULT, OURS, SHARING_OFF, SPAWN

COLOURS = {OURS.name: "#0072b2", SPAWN.name: "#56b4e9", SHARING_OFF.name: "#e69f00", DEFAULT.name: "#999999"}
TITLES = {
    "cold start": "submit to the first step",
    "crash": "a rank raises, to the next step",
    "kill": "a rank is killed, to the next step",
}
PARTS = {
    "detected_s": "the rank ends, its agent notices",
    "opened_s": "others stop, the head opens the next attempt",
    "started_s": "workers are started",
    "first_line_s": "to the script's first line",
    "imported_s": "imports",
    "joined_s": "process group",
    "recovered": "model, optimizer, first step",
}
DPI = 150


def main() -> None:
    report = pages.read("recovery.json")
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    if "recovery" in report:
        draw_recovery(report)
        draw_phases(report["recovery"])
    if "growth" in report:
        draw_growth(report["growth"])
    if "calls" in report:
        draw_calls(report["calls"])
    pages.main()


def draw_recovery(report: Mapping[str, Any]) -> None:
    """A panel for each case: every try as a dot in the order of time, medians as lines, logarithmic."""
    cases = report["recovery"]
    figure, axes = plt.subplots(1, len(cases), figsize=(9, 3), sharey=True, squeeze=False)
    for panel, (case, rows) in zip(axes[0], cases.items(), strict=True):
        draw_case(panel, rows, report["bound_s"])
        panel.set_title(TITLES[case])
    axes[0][0].set_ylabel("seconds (logarithmic)")
    machine = report["machine"]
    figure.text(
        0.01,
        0.01,
        f"4 nodes, one rank each, DistributedDataParallel and AdamW; {machine['cores']} cores, {machine['slurm']}, "
        f"torch {machine['torch']}. A dot is a try, a line the median.",
        fontsize=7,
        color="#444444",
    )
    save(figure, "recovery.png", bottom=0.06)


def draw_case(panel: Axes, rows: Mapping[str, Any], bound_s: float) -> None:
    for place, (name, row) in enumerate(rows.items()):
        values = [value for turn in row["turns"] for value in turn]
        if values:
            offsets = [place + 0.5 * ((number + 0.5) / len(values) - 0.5) for number in range(len(values))]
            panel.scatter(offsets, values, s=9, color=COLOURS[name], alpha=0.6, linewidths=0)
            panel.hlines(row["median"], place - 0.35, place + 0.35, color=COLOURS[name], linewidth=2.5)
            panel.annotate(f"{row['median']:.2g} s", (place, max(values) * 1.15), ha="center", weight="bold")
        if row["not_recovered"]:
            told = f"{row['not_recovered']} of {row['n'] + row['not_recovered']}\nnot within\n{bound_s:g} s"
            panel.annotate(told, (place, bound_s), ha="center", va="top", fontsize=7, color="#aa0000")
    panel.set_yscale("log")
    panel.set_xticks(range(len(rows)), [name.replace(", ", ",\n") for name in rows], fontsize=7)
    panel.set_xlim(-0.6, len(rows) - 0.4)
    panel.set_ylim(0.1, bound_s * 1.6)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.grid(axis="y", color="#dddddd", linewidth=0.6)


def draw_phases(cases: Mapping[str, Any]) -> None:
    """Where the time of a restart of ours goes: the medians of its moments, one after the other."""
    bars = [
        (case, {**row["phases_median"], "recovered": row["median"]})
        for case, rows in cases.items()
        if (row := rows.get(OURS.name)) and row.get("phases_median")
    ]
    figure, axes = plt.subplots(figsize=(9, 0.7 * len(bars) + 1.6))
    colours = plt.colormaps["viridis"].resampled(len(PARTS))
    for place, (_, moments) in enumerate(bars):
        reached = 0.0
        for number, (key, label) in enumerate(PARTS.items()):
            taken = max(0.0, moments.get(key, reached) - reached) * 1000
            drawn = axes.barh(place, taken, left=reached * 1000, color=colours(number))
            drawn.set_label(label if place == 0 else "_")
            reached = max(reached, moments.get(key, reached))
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.set_xlabel("milliseconds after the fault (medians)")
    axes.legend(fontsize=7, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    save(figure, "restart-phases.png")


def draw_growth(rows: list[Mapping[str, Any]]) -> None:
    """Crash to next step by the number of nodes, and the agents' own part of ours."""
    figure, axes = plt.subplots(figsize=(5, 3))
    for row in rows:
        name = row["launcher"]
        medians = [size["median"] for size in row["total_s"]["by_size"]] if "total_s" in row else []
        if None not in medians and medians:
            axes.plot(row["sizes"], medians, "o-", color=COLOURS[name], label=name)
        if "own_s" in row:
            own = [size["median"] for size in row["own_s"]["by_size"]]
            axes.plot(row["sizes"], own, "o--", color=COLOURS[name], label=f"{name}: the agents' own part")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xticks([2, 8])
    axes.set_xlabel("nodes, one rank each, on the same two cores")
    axes.set_ylabel("seconds (logarithmic)")
    axes.legend(fontsize=7, frameon=False)
    save(figure, "growth.png")


def draw_calls(rows: list[Mapping[str, Any]]) -> None:
    """File calls of a restart on each node that was followed."""
    figure, axes = plt.subplots(figsize=(5, 0.35 * len(rows) + 1.2))
    names = [f"{row['launcher']}, {row['node']}" for row in rows]
    outside = [row["restart"]["outside"] for row in rows]
    inside = [row["restart"]["in_script"] for row in rows]
    colours = [COLOURS[row["launcher"]] for row in rows]
    axes.barh(names, outside, color=colours)
    axes.barh(names, inside, left=outside, color=colours, alpha=0.4)
    for place, (one, other) in enumerate(zip(outside, inside, strict=True)):
        axes.annotate(f" {one:,} + {other:,}", (one + other, place), va="center", fontsize=7)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_xlabel("file calls of a restart: outside the script + in it")
    save(figure, "file-calls.png")


def save(figure: Any, name: str, *, bottom: float = 0.0) -> None:
    figure.tight_layout(rect=(0, bottom, 1, 1))
    figure.savefig(pages.FIGURES / name, dpi=DPI, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
