"""`python -m tests.simulation.recorded` holds what schedules cost against what is recorded; `--write` records it anew.

Theory of operation. A rule says what must not happen; it does not say that a run that has lost a node reads each record
twice, or goes on a second later than it did before. So of the first schedules of each kind it is recorded how they end
and what they cost (`COLUMNS`), in a table that stands beside the code: a change of behaviour is a change of the table,
which whoever makes it records on purpose, and a reader of the change sees. A row is the same on every machine and in
every Python: all times are simulated, and everything that is drawn is drawn from the seed.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.draws.kinds import KINDS, LONG
from tests.simulation.garbage import collect, collect_between_runs

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedRun

TABLE = Path(__file__).with_name("recorded.csv")
EACH = 40  # schedules of a kind; of those that take long a quarter
DIGITS = 12  # of a hash
SAME_COST = "other events, which cost the same"
WRITE = "python -m tests.simulation.recorded --write"


class Cost(NamedTuple):
    """How a schedule ends, and what all its agents did until then."""

    end: str  # the result's reason
    attempts: int
    seconds: str  # simulated, until the last agent has left
    workers: int  # processes that were started
    messages: int  # handed to the network, END and handshakes not counted
    dials: int
    reads: int  # questions to the file server
    writes: int
    lines: int  # that agents said
    events: str  # the hash of all that its agents told each other, did and said, with the times


TEXTS = "end", "seconds", "events"
COLUMNS = ("kind", "seed", *Cost._fields)


def cost_of(run: SimulatedRun) -> Cost:
    """What a run that has been played has cost."""
    spent = run.spent
    return Cost(
        end=run.disk.results[0].reason if run.disk.results else "no result",
        attempts=len(run.disk.claims),
        seconds=f"{run.clock.now:.2f}",
        workers=spent["worker"],
        messages=spent["message"],
        dials=spent["dial"],
        reads=spent["read"],
        writes=spent["write"],
        lines=spent["line"],
        events=run.trace_hash[:DIGITS],
    )


def seeds_of(kind: str) -> range:
    """The schedules of a kind that are recorded."""
    return range(EACH // 4 if kind in LONG else EACH)


@cache
def recorded() -> Mapping[tuple[str, int], Cost]:
    """The table, by kind and seed."""
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["kind"], int(row["seed"])): _cost(row) for row in rows}


def _cost(row: Mapping[str, str]) -> Cost:
    columns: dict[str, Any] = {name: row[name] if name in TEXTS else int(row[name]) for name in Cost._fields}
    return Cost(**columns)


def difference(kind: str, seed: int, run: SimulatedRun) -> str | None:
    """How a run that has been played differs from what is recorded of its schedule; None if nothing is, or differs.

    `SAME_COST` if only its events do.
    """
    return _difference(kind, seed, cost_of(run))


def _difference(kind: str, seed: int, now: Cost) -> str | None:
    before = recorded().get((kind, seed))
    if before is None or before == now:
        return None
    both = zip(Cost._fields[:-1], before[:-1], now[:-1], strict=True)  # a hash tells people nothing
    return ", ".join(f"{name} {old} -> {new}" for name, old, new in both if old != new) or SAME_COST


def _play(kind: str) -> list[tuple[str, int, Cost]]:
    from tests.simulation.world import SimulatedRun

    collect_between_runs()
    rows = []
    for seed in seeds_of(kind):
        run = SimulatedRun(KINDS[kind](seed))
        run.play()
        rows.append((kind, seed, cost_of(run)))
        del run
        collect()
    return rows


def _played() -> Iterator[tuple[str, int, Cost]]:
    with ProcessPoolExecutor() as pool:
        for rows in pool.map(_play, KINDS):
            yield from rows


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.recorded", description=__doc__)
    parser.add_argument("--write", action="store_true", help="record what the schedules cost now")
    arguments = parser.parse_args(words)
    if arguments.write:
        rows = [(kind, seed, *cost) for kind, seed, cost in _played()]
        with TABLE.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
        print(f"{len(rows)} schedules recorded")
        return 0
    changed = 0
    for kind, seed, cost in _played():
        if (what := _difference(kind, seed, cost)) is not None:
            print(f"{kind} {seed}: {what}", flush=True)
            changed += 1
    print(f"{changed} of {len(recorded())} schedules cost something else than is recorded; {WRITE} records it")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
