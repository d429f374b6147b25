"""Measures what an event loop suffers while a rank writes 100 MB/s to a log that is cut and repeated beside it.

    python benchmarks/log_flood.py --seconds 20

The tee runs in a thread of the agent, so it is run here beside an event loop that wants to wake each 10 ms: how late
it does is what a lease would suffer. CPU is that of this process, in cores; memory its peak.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from hpc_elastic.agent.workers.log_cap import LogCap
from hpc_elastic.agent.workers.tee import Tee, TeedFile

KINDS = ("none", "lines", "one_line")
PERIOD_S = 0.01
MOST_BYTES = 64 * 1024 * 1024
WRITER = """
import os, sys, time
kind, seconds, rate = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
chunk = (b"x" * 99 + b"\\n") * 10_000 if kind == "lines" else b"x" * 1_000_000
begin = time.monotonic()
written = 0
while (now := time.monotonic()) < begin + seconds:
    os.write(1, chunk)
    written += len(chunk)
    time.sleep(max(0, begin + written / rate - time.monotonic()))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One measurement: how late the loop woke (sorted, in seconds), cores used, peak memory."""

    late_s: list[float]
    cores: float
    peak_bytes: int


async def measure(kind: str, *, seconds: float, rate: float, folder: str) -> Figures:
    """Let a process write this kind of output into a log that is teed and cut, and watch the event loop."""
    path = os.path.join(folder, "stdout.log")
    cap = LogCap(path=path, earlier=f"{path}.1", most_bytes=MOST_BYTES)
    tee = Tee([TeedFile(path=path, prefix="[node1:0] ")], caps=[cap])
    writer = None
    if kind != "none":
        with open(path, "ab") as log:
            command = [sys.executable, "-c", WRITER, kind, str(seconds), str(rate)]
            writer = subprocess.Popen(command, stdout=log)
    late, began, end = [], _cpu_s(), time.monotonic() + seconds
    while (before := time.monotonic()) < end:
        await asyncio.sleep(PERIOD_S)
        late.append(time.monotonic() - before - PERIOD_S)
    cores = (_cpu_s() - began) / seconds
    if writer is not None:
        await asyncio.to_thread(writer.wait)
    await asyncio.to_thread(tee.close)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Figures(late_s=sorted(late), cores=cores, peak_bytes=peak)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure each kind of output once, and print the figures to standard error: the output is the tee's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=100e6, help="bytes a second")
    parser.add_argument("--json", metavar="PATH", help="also write the figures there")
    arguments = parser.parse_args()
    report: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(measure(kind, seconds=arguments.seconds, rate=arguments.rate, folder=folder))
        late_ms = [late * 1000 for late in found.late_s]
        count = len(late_ms)
        report[kind] = {
            "late_p50_ms": late_ms[count // 2],
            "late_p99_ms": late_ms[count * 99 // 100],
            "late_max_ms": late_ms[-1],
            "cores": found.cores,
            "peak_mib": found.peak_bytes / 2**20,
        }
        figures = ", ".join(f"{name} {value:.2f}" for name, value in report[kind].items())
        print(f"{kind} (n={count}): {figures}", file=sys.stderr, flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
