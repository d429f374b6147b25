"""What one `heartbeat(step)` and one `notice_received()` cost: in a run, outside of one, beside an empty function.

    python -m benchmarks.heartbeat [-n 50] [--json FILE]

The calls take turns. Of each the fastest and the median of so many rounds of 10,000 calls is shown, the loop's own cost
with it; --json writes them to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from hpc_elastic.agent.workers.heartbeats import Heartbeats
from hpc_elastic.membership.notices import NoticeCounts, NoticeGiven
from hpc_elastic.worker import heartbeat_writer, notices

CALLS = 10_000
LIMIT_US = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=50, help="how many rounds")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    figures = measure(arguments.n)
    report = {"python": platform.python_version(), "cores": os.cpu_count(), "n": arguments.n, "calls": CALLS}
    for name, figure in figures.items():
        print(f"{name:<24} fastest {figure['fastest_us']:.3f} us, median {figure['median_us']:.3f} us")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({**report, "heartbeat": figures}, indent=2) + "\n")


def measure(rounds: int) -> dict[str, dict[str, float]]:
    heartbeats = Heartbeats()
    memory = heartbeats.begin([0])[0].memory
    names = ("an empty function", "outside of a run", "in a run", "after a notice", "a poll", "a poll outside of a run")
    taken: dict[str, list[float]] = {name: [] for name in names}
    with_notice = Heartbeats()
    noticed = with_notice.begin([0])[0].memory
    with_notice.hold_for_notice(0, NoticeGiven(reason="operator", seconds_left=60.0, by="the benchmark"))
    with_notice.name_notice(0, NoticeCounts(polls=1, beats=1))
    notices.on_notice(_nothing)
    for _ in range(rounds):
        taken["an empty function"].append(_time(_nothing))
        taken["outside of a run"].append(_time(heartbeat_writer.heartbeat))
        taken["a poll outside of a run"].append(_time(_poll))
        heartbeat_writer.begin(memory, 0)
        taken["in a run"].append(_time(heartbeat_writer.heartbeat))
        taken["a poll"].append(_time(_poll))
        heartbeat_writer.begin(noticed, 0)
        taken["after a notice"].append(_time(heartbeat_writer.heartbeat))
        heartbeat_writer._forget()
    if (counts := heartbeats.count_polls(0)) != NoticeCounts(polls=rounds * CALLS, beats=rounds * CALLS):
        raise RuntimeError(f"the agent has read {counts}, expected {rounds * CALLS} of each")
    with_notice.close()
    heartbeats.close()
    return {
        name: {"fastest_us": round(min(times), 4), "median_us": round(statistics.median(times), 4)}
        for name, times in taken.items()
    }


def _time(call: Callable[[int], None]) -> float:
    """Return the microseconds of one call, of many."""
    began = time.perf_counter()
    for step in range(CALLS):
        call(step)
    return (time.perf_counter() - began) / CALLS * 1e6


def _nothing(_: object) -> None:
    """Does nothing."""


def _poll(_: int) -> None:
    notices.notice_received()


if __name__ == "__main__":
    main()
