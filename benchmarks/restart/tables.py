"""The report of `recovery` for people: tables, the bars it is held against, and a line for the front page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import Ratio, tail
from benchmarks.restart.launchers import DEFAULT, OURS, SHARING_OFF

AGENTS = ("head's agent", "other node's agent")
BUSY = 0.3  # cores that others use before; with more the seconds are not worth much


@dataclass(frozen=True)
class Bar:
    """What a figure may be at most; `found` is None if it was not measured."""

    name: str
    limit: float
    found: float | None
    unit: str = ""

    @property
    def verdict(self) -> str:
        if self.found is None:
            return "not measured"
        return "met" if self.found <= self.limit else "missed"


def bars(report: Mapping[str, Any], agent_cost: Mapping[str, Any] | None = None) -> list[Bar]:
    """What the project holds itself to, for four nodes and this script.

    Args:
        report: of `recovery`.
        agent_cost: the report of that benchmark, for what an agent takes.
    """
    recovery, ours, peer = report.get("recovery", {}), OURS.name, SHARING_OFF.name
    crash, cold = recovery.get("crash", {}), recovery.get("cold start", {})
    grown: Mapping[str, Any] = next((row for row in report.get("growth", []) if row["launcher"] == ours), {})
    rows = [row for row in report.get("calls", []) if row["launcher"] == ours]
    detected = [found for one in recovery.values() if (found := dig(one, ours, "detected_after_exit"))]
    agents = [row for row in (agent_cost or {}).get("processes", []) if row["process"] in AGENTS]
    return [
        Bar("crash to next step, ratio to torchrun (sharing off)", 0.07, dig(crash, peer, "our_ratio", "value")),
        Bar("crash to next step, median", 0.35, dig(crash, ours, "median"), " s"),
        Bar("crash to next step, p99", 1.0, tail(crash[ours]) if ours in crash else None, " s"),
        Bar("cold start, ratio to torchrun (sharing off)", 0.7, dig(cold, peer, "our_ratio", "value")),
        Bar("growth from 2 to 8 nodes", 2.0, dig(grown, "total_s", "growth", "value")),
        Bar("growth of the agents' own part, by the clock", 1.15, dig(grown, "own_s", "growth", "value")),
        Bar("growth of the agents' own part, CPU time", 1.15, dig(grown, "own_cpu_s", "growth", "value")),
        Bar("imports of torch, a node and allocation", 1, most(sum(row["imports_of_torch"].values()) for row in rows)),
        Bar("file calls outside the script, a restart and node", 500, most(row["restart"]["outside"] for row in rows)),
        Bar("exit to the agent's event, p99", 5, most(1000 * (tail(one) or 0) for one in detected), " ms"),
        Bar("idle agent", 0.05, most(row["cpu_percent"] for row in agents), " % of a core"),
        Bar("idle agent, resident", 32, most(row["resident_mib"] for row in agents), " MiB"),
    ]


def most(values: Iterable[float]) -> float | None:
    return max(values, default=None)


def dig(where: Any, *keys: str) -> Any:
    """A value some levels down, None if there is none."""
    for key in keys:
        where = where.get(key) if isinstance(where, Mapping) else None
    return where


def print_report(report: Mapping[str, Any]) -> None:
    """Everything, as it stands in docs/benchmarks/README.md."""
    for table in tables(report).values():
        print("\n" + "\n".join(table))
    print("\n" + "\n".join(bar_table(bars(report))))
    print(f"\n{conditions(report)}")


def tables(report: Mapping[str, Any]) -> dict[str, list[str]]:
    """The tables of a report, by their name."""
    found = {}
    if "recovery" in report:
        found["recovery"] = list(case_table(report["recovery"], report["bound_s"]))
        found["phases"] = list(phase_table(report["recovery"]))
    if "growth" in report:
        found["growth"] = list(growth_table(report["growth"]))
    if "calls" in report:
        found["calls"] = list(calls_table(report["calls"]))
    return found


def conditions(report: Mapping[str, Any]) -> str:
    """On what the figures were taken, as a sentence or two."""
    machine, busy = report["machine"], report["busy_cores_before"]
    numpy = f"numpy {machine['numpy']}" if machine["numpy"] else "no numpy"
    text = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']:g} GiB, Linux {machine['linux']}, "
        f"Python {machine['python']}, torch {machine['torch']}, {numpy}, {machine['slurm']}; {report['n']} turns, "
        f"{report['minutes']:g} minutes."
    )
    if busy > BUSY:
        return f"{text} **The machine was busy**: others used {busy:g} cores before, so that the seconds say little."
    return f"{text} The machine did nothing else ({busy:g} cores busy before)."


def headline(report: Mapping[str, Any]) -> str | None:
    """What the front page says, None without the figures for it."""
    crash = report.get("recovery", {}).get("crash", {})
    ours, peer = (dig(crash, one.name) for one in (OURS, SHARING_OFF))
    if not (dig(ours, "n") and dig(peer, "our_ratio")):
        return None
    torch, ratio = report["machine"]["torch"].partition("+")[0], peer["our_ratio"]
    sure = f", with 95 % confidence {number(ratio['low'])} to {number(ratio['high'])}" if ratio["low"] else ""
    text = (
        f"One of four ranks raises an exception: all of them make their next step {number(ours['median'])} s later "
        f"(median of {ours['n']}). Under torchrun {torch} it takes {number(peer['median'])} s without store sharing"
        f"{lost_by_default(crash, report['bound_s'])}. The ratio is {number(ratio['value'])}{sure}."
    )
    return text if report["busy_cores_before"] <= BUSY else f"{text} (The machine was busy with other work.)"


def lost_by_default(crash: Mapping[str, Any], bound_s: float) -> str:
    row = dig(crash, DEFAULT.name) or {"n": 0, "not_recovered": 0}
    if not row["not_recovered"]:
        return ""
    tries = row["n"] + row["not_recovered"]
    return f"; in its default mode they were not back within {bound_s:g} s in {row['not_recovered']} of {tries} tries"


def case_table(cases: Mapping[str, Any], bound_s: float) -> Iterator[str]:
    yield "| seconds | launcher | n | median | p99 or most | least | not recovered | ours to it |"
    yield "|---|---|---|---|---|---|---|---|"
    for case, rows in cases.items():
        ours = dig(rows, OURS.name, "median")
        for name, row in rows.items():
            tried = row["n"] + row["not_recovered"]
            if row["n"]:
                found = (
                    number(row["median"]),
                    f"{number(tail(row))} ({'p99' if row['p99'] is not None else 'most'})",
                    number(row["least"]),
                )
            else:
                found = (f"above {bound_s:g}" if tried else "", "", "")
            ratio = told(row.get("our_ratio")) or (
                f"below {number(ours / bound_s)}" if ours and tried > row["n"] else ""
            )
            failed = f"{row['not_recovered']} of {tried}"
            yield f"| {case} | {name} | {row['n']} | {' | '.join(found)} | {failed} | {ratio} |"


def phase_table(cases: Mapping[str, Any]) -> Iterator[str]:
    names = {
        "exited_s": "process gone",
        "detected_s": "agent's event",
        "decided_s": "head's decision",
        "opened_s": "attempt opened",
        "started_s": "last worker started",
        "first_line_s": "script's first line",
        "imported_s": "imports",
        "joined_s": "process group",
    }
    yield f"| moment after | launcher | {' | '.join(names.values())} | step |"
    yield "|---" * (len(names) + 3) + "|"
    for case, rows in cases.items():
        for launcher, row in rows.items():
            if phases := row.get("phases_median"):
                cells = [number(phases.get(name)) for name in names]
                yield f"| {case} | {launcher} | {' | '.join(cells)} | {number(row['median'])} |"


def growth_table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names = {
        "total_s": "crash to next step, s",
        "own_s": "the agents' own part, s",
        "own_cpu_s": "CPU time of head and one agent, s",
        "head_cpu_s": "CPU time of the head's agent, s",
        "agent_cpu_s": "CPU time of another agent, s",
    }
    yield "| launcher | | n | 2 nodes | 8 nodes | growth |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        for key, name in names.items():
            if key in row:
                small, large = row[key]["by_size"]
                medians = f"{number(small['median'])} | {number(large['median'])}"
                counts = f"{small['n']}, {large['n']}"
                yield f"| {row['launcher']} | {name} | {counts} | {medians} | {told(row[key]['growth'])} |"


def calls_table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        "| launcher | node | imports of torch | restart: outside the script | of these on /proc | in it "
        "| cold start: outside | on /proc | in it |"
    )
    yield "|---" * 9 + "|"
    for row in rows:
        imports = sum(row["imports_of_torch"].values())
        wheres = ("outside", "on_proc", "in_script")
        counts = [row[when][where] for when in ("restart", "cold_start") for where in wheres]
        yield f"| {row['launcher']} | {row['node']} | {imports} | {' | '.join(f'{count:,}' for count in counts)} |"


def bar_table(rows: Sequence[Bar]) -> Iterator[str]:
    yield "| bar | at most | found | |"
    yield "|---|---|---|---|"
    for bar in rows:
        yield f"| {bar.name} | {bar.limit:g}{bar.unit} | {number(bar.found)}{bar.unit} | {bar.verdict} |"


def told(ratio: Mapping[str, float | None] | None) -> str:
    if ratio is None or ratio["value"] is None:
        return ""
    return str(Ratio(ratio["value"], ratio["low"], ratio["high"]))


def number(value: float | None) -> str:
    """Three digits, as many as the figures are worth."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")
