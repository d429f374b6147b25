"""The table of `slurm_versions`, from its report alone: a row for each promise, a column for each Slurm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

BUSY = 0.25  # cores


def version_table(report: Mapping[str, Any]) -> Iterator[str]:
    """Medians, least and most; that a promise was broken is said in their place, and how often."""
    versions = report["versions"]
    yield f"| | seconds | {' | '.join(found['slurm'] or name for name, found in versions.items())} |"
    yield "|---" * (len(versions) + 2) + "|"
    for row, (tried, measured) in report["rows"].items():
        if not any(row in found["rows"] for found in versions.values()):
            continue
        cells = [cell(found, row) for found in versions.values()]
        yield f"| {tried} | {measured} | {' | '.join(cells)} |"


def cell(found: Mapping[str, Any], row: str) -> str:
    """What one Slurm did in one row."""
    if found["missing"]:
        return "not run"
    figures = found["rows"].get(row)
    if figures is None:
        return "not run"
    if figures["broken"]:
        return f"**broken in {len(figures['broken'])} of {figures['n']}**"
    return f"{figures['median_s']:.2f} ({figures['least_s']:.2f} to {figures['most_s']:.2f})"


def version_notes(report: Mapping[str, Any]) -> Iterator[str]:
    """Which Slurm is missing and why, and what was broken, in the words of the first time; or that nothing was."""
    for name, found in report["versions"].items():
        if found["missing"]:
            yield f"- Slurm {name} was not run: {found['missing']}."
        for row, figures in found["rows"].items():
            if figures["broken"]:
                words = figures["broken"][0].splitlines()[0]
                yield f"- Slurm {name}, {report['rows'][row][0]}: what was promised is not so: {words}."
    if not any(found["broken"] for found in report["versions"].values()):
        yield "- Each promise was held each time."


def version_conditions(report: Mapping[str, Any]) -> str:
    """On what the figures were taken."""
    machine, found = report["machine"], report["versions"].items()
    often = ", ".join(f"{one['n']} on {name}" for name, one in found if one["n"])
    busy = max((one["busy_cores_before"] for _, one in found if one["n"]), default=0)
    software = f"Linux {machine['linux']}, Python {machine['python']}"
    text = f"{machine['processor']}, {machine['cores']} cores, {software}; n = {often}."
    if busy > BUSY:
        return (
            f"{text} **The machine was busy**: others used up to {busy:g} cores before, so that the seconds say little."
        )
    return f"{text} The machine did nothing else (at most {busy:g} cores busy before)."
