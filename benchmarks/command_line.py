"""Start-up times of the command line, against a bare Python and `torchrun --help`: a table, and JSON with --json.

    python -m benchmarks.command_line [-n 30] [--json FILE]

It makes one finished run directory in a temporary folder. The commands take turns, so that a busy moment of the
machine hits all of them. The file-system cache is warm.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.observe.builders import RunBuilder

LIMIT = 5.0  # times a bare Python, for --help, status --json and logs
EXPLAIN_LIMIT = 10.0  # the same for explain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=30, help="how often each")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        RunBuilder(run_dir).submit().allocate().open_attempt(1).write_rank(1, 0, "epoch 1\n" * 1000).end()
        figures = measure(commands(str(run_dir)), arguments.n, {**os.environ, "XDG_STATE_HOME": folder})
    report = {"python": platform.python_version(), "cores": os.cpu_count(), "n": arguments.n, "commands": figures}
    print_table(figures)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n")


def commands(run_dir: str) -> dict[str, list[str]]:
    scripts = Path(sys.executable).parent
    ours = str(scripts / "hpc-elastic")
    found = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "python -c 'import argparse, json, dataclasses'": [sys.executable, "-c", "import argparse, json, dataclasses"],
        "hpc-elastic --help": [ours, "--help"],
        "hpc-elastic submit --help": [ours, "submit", "--help"],
        "hpc-elastic status --json RUN": [ours, "status", "--json", run_dir],
        "hpc-elastic status RUN": [ours, "status", run_dir],
        "hpc-elastic explain --json RUN": [ours, "explain", "--json", run_dir],
        "hpc-elastic explain RUN": [ours, "explain", run_dir],
        "hpc-elastic logs RUN": [ours, "logs", run_dir],
        "hpc-elastic list": [ours, "list"],
    }
    torchrun = shutil.which("torchrun", path=str(scripts))
    return found | ({"torchrun --help": [torchrun, "--help"]} if torchrun else {})


def measure(programs: dict[str, list[str]], number: int, environ: dict[str, str]) -> list[dict[str, object]]:
    times: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(number + 1):
        for name, command in programs.items():
            if name.startswith("torchrun") and turn > max(5, number // 10):
                continue  # a second each
            begun = time.perf_counter()
            subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if turn:  # the first turn warms the cache
                times[name].append((time.perf_counter() - begun) * 1000)
    bare = statistics.median(times["python -c pass"])
    return [
        {
            "command": name,
            "n": len(values),
            "median_ms": round(statistics.median(values), 1),
            "minimum_ms": round(min(values), 1),
            "times_bare_python": round(statistics.median(values) / bare, 2),
        }
        for name, values in times.items()
    ]


def print_table(figures: list[dict[str, object]]) -> None:
    print(f"{'command':<48} {'n':>4} {'median ms':>10} {'min ms':>8} {'x bare':>7}")
    for row in figures:
        print(
            f"{row['command']:<48} {row['n']:>4} {row['median_ms']:>10} {row['minimum_ms']:>8} "
            f"{row['times_bare_python']:>7}"
        )
    print(
        f"the limit for --help, status --json and logs is {LIMIT:g} times a bare Python, for explain {EXPLAIN_LIMIT:g}"
    )


if __name__ == "__main__":
    main()
