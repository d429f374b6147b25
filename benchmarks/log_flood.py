"""What an agent suffers while one of its ranks writes 100 MB/s to a log that is cut and repeated: a table, and JSON.

    python -m benchmarks.log_flood [--seconds 20] [--rate 100e6] [--json FILE]

Real runs on two nodes of the local backend, with heartbeats: rank 0 floods its output, whose lines the agent's log
repeats too, and rank 1, on the same node, prints the time ten times a second. In the agents' event loops a timer wants
to fire each 10 ms: how late it does is what a lease would suffer. With a log a node, the times of rank 1's lines show
how long they waited. CPU is that of the agent's process, in cores; memory its peak (VmHWM).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hpc_elastic.observe.rank_output import read_output
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.node_log import parse_time

KINDS = ("none", "lines", "one_line")
SHAPES = ("rank", "node")
PERIOD_S = 0.01
MOST = "64M"
# Python runs this in every process of the run before anything else; only agents have an event loop to watch.
PROBE = f"""
import sys
if "hpc_elastic.agent.main" in sys.orig_argv:
    import asyncio, atexit, json, os, time
    late, run_forever = [], asyncio.SelectorEventLoop.run_forever
    def look(loop, due):
        now = loop.time()
        late.append(now - due)
        loop.call_at(now + {PERIOD_S}, look, loop, now + {PERIOD_S})
    def watched(loop):
        loop.call_soon(look, loop, loop.time())
        run_forever(loop)
    def write():
        cpu = time.process_time() / (time.monotonic() - began)
        with open("/proc/self/status") as file:
            peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
        found = {{"late_s": sorted(late), "cores": cpu, "peak_mib": peak / 1024}}
        with open(os.environ["PROBES"] + f"/{{os.getpid()}}.json", "w") as file:
            json.dump(found, file)
    began = time.monotonic()
    asyncio.SelectorEventLoop.run_forever = watched
    atexit.register(write)
"""
WORKER = """
import os, sys, time
from hpc_elastic.worker import heartbeat
kind, seconds, rate = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
chunk = (b"x" * 99 + b"\\n") * 10_000 if kind == "lines" else b"x" * 1_000_000
begin, written, step = time.monotonic(), 0, 0
while (now := time.monotonic()) < begin + seconds:
    heartbeat(step := step + 1)
    if os.environ["RANK"] == "0" and kind != "none":
        view = memoryview(chunk)
        while view:
            view = view[os.write(1, view):]
        written += len(chunk)
        time.sleep(max(0, begin + written / rate - time.monotonic()))
    else:
        os.write(1, b"%d\\n" % time.time_ns())
        time.sleep(0.1)
print("rank", os.environ["RANK"], "wrote", written, file=sys.stderr)
"""


def measure(kind: str, shape: str, *, seconds: float, rate: float) -> dict[str, float]:
    """Run the job once, and return the figures of the agent whose rank floods."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "probes").mkdir()
        (folder / "sitecustomize.py").write_text(PROBE)
        (folder / "train.py").write_text(WORKER)
        (folder / "job.yaml").write_text(
            f"name: flood\nsite: local\nnodes: 2\nworkers_per_node: 2\nstall_timeout: 30s\n"
            f"logs: {{per: {shape}, max_size: {MOST}}}\n"
            f"entrypoint: {{script: train.py, args: ['{kind}', '{seconds}', '{rate}']}}\n"
        )
        paths = [str(folder), os.getcwd(), os.environ.get("PYTHONPATH", "")]
        environ = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PROBES": str(folder / "probes"),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        command = [
            sys.executable,
            "-m",
            "hpc_elastic",
            "submit",
            "job.yaml",
            "--wait",
            "--run-dir",
            str(folder / "run"),
        ]
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the run ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        probes = [json.loads(path.read_text()) for path in (folder / "probes").glob("*.json")]
        flooded = max(probes, key=lambda probe: float(probe["cores"]))
        said = read_output(RunLayout(folder / "run"), 1, 0, is_stderr=True).decode()
        return figures(flooded) | {"written_mb_s": int(said.split()[-1]) / seconds / 1e6} | waits(folder / "run")


def figures(probe: dict[str, Any]) -> dict[str, float]:
    """Return one agent's figures."""
    late_ms = [late * 1000 for late in probe["late_s"]]
    return {
        "n": len(late_ms),
        "late_p50_ms": late_ms[len(late_ms) // 2],
        "late_p99_ms": late_ms[len(late_ms) * 99 // 100],
        "late_max_ms": late_ms[-1],
        "cores": probe["cores"],
        "peak_mib": probe["peak_mib"],
    }


def waits(run: Path) -> dict[str, float]:
    """Return how long the lines of rank 1 that were kept waited at most; nothing where lines have no times."""
    found = []
    for path in run.glob("attempts/0001/nodes/*.log*"):
        for line in path.read_bytes().splitlines():
            time, rank, _, text = line.split(b" ", 3)
            if rank == b"1" and text.isdigit():
                found.append((parse_time(time) - int(text)) / 1e6)
    return {"line_late_max_ms": max(found)} if found else {}


def main() -> None:
    """Measure each kind of output in each shape of logs once, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=100e6, help="bytes a second")
    parser.add_argument("--json", metavar="PATH", help="also write the figures there")
    arguments = parser.parse_args()
    report: dict[str, dict[str, float]] = {}
    for shape in SHAPES:
        for kind in KINDS:
            found = measure(kind, shape, seconds=arguments.seconds, rate=arguments.rate)
            report[f"{shape} {kind}"] = found
            print(f"{shape} {kind}:", ", ".join(f"{name} {value:.2f}" for name, value in found.items()), flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
