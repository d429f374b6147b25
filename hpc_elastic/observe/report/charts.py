"""The series that the page's script draws, from a report's data; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from hpc_elastic.observe.report.collect import ReportData
from hpc_elastic.rundir.sample_tail import Line

MOST_LINES = 8  # nodes with a line of their own; of more the median, the lowest and the highest are drawn
_BINS = 240

Value = Callable[[Line], "float | None"]


def chart_data(data: ReportData) -> dict[str, Any]:
    """Return what the page's script draws; times are in milliseconds since 1970."""
    spans = () if data.useful_time.forbidden else data.useful_time.spans
    return {
        "begin": _ms(data.begin),
        "end": _ms(data.end),
        "rows": [
            {
                "nodes": list(row.nodes),
                "segments": [[_ms(each.begin), _ms(each.end), each.state.value, each.attempt] for each in row.segments],
            }
            for row in data.rows
        ],
        "ranks": {node: list(ranks) for node, ranks in data.first_ranks.items()},
        "faults": [
            {
                "at": _ms(min(max(each.at, data.begin), data.end)),
                "node": each.node,
                "rank": each.rank,
                "text": each.message.partition("\n")[0][:200],
            }
            for each in data.failures
        ],
        "uses": [[_ms(each.begin), _ms(each.end), each.use.value, each.attempt] for each in spans],
        "restarts": [[_ms(each.times.opened), number] for number, each in enumerate(data.attempts)],
        "metrics": metrics(data.samples, data.begin, data.end),
    }


def metrics(samples: Mapping[str, Sequence[Line]], begin: float, end: float) -> list[dict[str, Any]]:
    """Return the charts of the nodes' samples that have a value; each has lines with a name, times and values."""
    charts = []
    for title, unit, value in _METRICS:
        found = {node: _points(lines, value) for node, lines in samples.items()}
        found = {node: points for node, points in found.items() if points}
        if not found:
            continue
        if len(found) <= MOST_LINES:
            lines = [{"name": node, **_xy(points)} for node, points in found.items()]
        else:
            lines = _bands(found, begin, end)
        charts.append({"title": title, "unit": unit, "lines": lines})
    return charts


def _bands(found: Mapping[str, Sequence[tuple[float, float]]], begin: float, end: float) -> list[dict[str, Any]]:
    """Return the highest, median and lowest value of all nodes over time."""
    width = max((end - begin) / _BINS, 1e-3)
    bins: dict[int, list[float]] = {}
    for points in found.values():
        for at, value in points:
            bins.setdefault(int((at - begin) / width), []).append(value)
    at_of = {number: begin + (number + 0.5) * width for number in bins}
    choices: list[tuple[str, Callable[[list[float]], float]]] = [("highest", max), ("median", median), ("lowest", min)]
    return [
        {"name": name, **_xy([(at_of[number], choose(bins[number])) for number in sorted(bins)])}
        for name, choose in choices
    ]


def _points(lines: Sequence[Line], value: Value) -> list[tuple[float, float]]:
    return [(line["time_ns"] / 1e9, found) for line in lines if (found := value(line)) is not None]


def _xy(points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    return {"x": [_ms(at) for at, _ in points], "y": [float(f"{value:.4g}") for _, value in points]}


def _number(key: str, scale: float = 1.0) -> Value:
    def value(line: Line) -> float | None:
        found = line.get(key)
        return found * scale if isinstance(found, (int, float)) else None

    return value


def _share(used: str, total: str) -> Value:
    def value(line: Line) -> float | None:
        return _percent(line.get(used), line.get(total))

    return value


def _gpus(choose: Callable[[Mapping[str, Any]], float | None]) -> Value:
    def value(line: Line) -> float | None:
        found = [choose(gpu) for gpu in line.get("gpus") or () if isinstance(gpu, dict)]
        known = [number for number in found if number is not None]
        return sum(known) / len(known) if known else None

    return value


def _steps(line: Line) -> float | None:
    steps = [rank.get("step") for rank in line.get("ranks") or () if isinstance(rank, dict)]
    known = [step for step in steps if isinstance(step, int)]
    return float(min(known)) if known else None


def _percent(used: object, total: object) -> float | None:
    if isinstance(used, (int, float)) and isinstance(total, (int, float)) and total > 0:
        return 100 * used / total
    return None


def _busy(gpu: Mapping[str, Any]) -> float | None:
    busy = gpu.get("busy_percent")
    return float(busy) if isinstance(busy, (int, float)) else None


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


_MB, _GIB = 1e-6, 1 / (1 << 30)
_METRICS: tuple[tuple[str, str, Value], ...] = (
    ("Step of the slowest rank", "", _steps),
    ("CPU of the node", "%", _number("cpu_percent")),
    ("Memory of the node", "%", _share("memory_used", "memory_total")),
    ("GPUs busy, mean", "%", _gpus(_busy)),
    ("GPU memory, mean", "%", _gpus(lambda gpu: _percent(gpu.get("memory_used"), gpu.get("memory_total")))),
    ("Memory of the workers", "GiB", _number("workers_memory", _GIB)),
    ("CPU of the workers", "% of a core", _number("workers_cpu_percent")),
    ("Disk, read", "MB/s", _number("disk_read", _MB)),
    ("Disk, written", "MB/s", _number("disk_written", _MB)),
    ("Network, received", "MB/s", _number("network_received", _MB)),
    ("Network, sent", "MB/s", _number("network_sent", _MB)),
)
