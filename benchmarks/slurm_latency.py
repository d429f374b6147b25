"""Times around a run on a real Slurm, beside plain sbatch and torchrun: a table, and JSON with --json.

    python -m benchmarks.slurm_latency [-n 10] [--json FILE]        needs root and Debian's slurm-wlm

On four nodes, that the command boots for itself: what `submit` adds to sbatch's own time; from the written result to
the return of `submit --wait`; from a worker's unrecoverable failure to the moment at which the job has left squeue;
and from the crash of one of eight ranks to the first step of all ranks after it, with a script that trains with torch.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.slurm_sandbox.cluster import Cluster

NODES, WORKERS = 4, 2
RANKS = NODES * WORKERS
PATIENCE_S = 30

FAIL = """
import os, pathlib, sys, time
if os.environ["RANK"] == "3":
    pathlib.Path(os.environ["STAMPS"], "failed").write_text(repr(time.time()))
    sys.exit(1)
time.sleep(600)
"""
# Which start this is, is told by a file: under torchrun 2.13 TORCHELASTIC_RESTART_COUNT differs between the nodes.
CRASH = """
import os, pathlib, time, torch, torch.distributed as dist
stamps = pathlib.Path(os.environ["STAMPS"])
start = int((stamps / "crashed").exists())
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.ones(1)
dist.all_reduce(value)
(stamps / f"{start}-{rank}").write_text(repr(time.time()))
dist.barrier()
if start == 0 and rank == 5:
    (stamps / "crashed").write_text(repr(time.time()))
    os.kill(os.getpid(), 9)
if start == 0:
    dist.barrier()
dist.destroy_process_group()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=10, help="how often each")
    parser.add_argument("--without-torchrun", action="store_true", help="leave its cases out, which take minutes")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    cases = {name: case for name, case in CASES.items() if not (arguments.without_torchrun and "torchrun" in name)}
    slurm = Cluster.start(NODES, owner=os.getpid())
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows = [measure(name, case, slurm, Path(folder), arguments.n) for name, case in cases.items()]
    finally:
        slurm.down()
    print_table(rows)
    if arguments.json:
        report = {"python": platform.python_version(), "cores": os.cpu_count(), "cases": rows}
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n")


Case = Callable[[Cluster, Path], float]


def measure(name: str, case: Case, slurm: Cluster, folder: Path, number: int) -> dict[str, object]:
    times = []
    for turn in range(number):
        own = folder / f"{case.__name__}-{turn}"
        own.mkdir()
        times.append(case(slurm, own))
        slurm.wait_until_idle(within_s=120)
    print(f"{name}: {[round(value, 3) for value in times]}", file=sys.stderr)
    figures = {"median_s": statistics.median(times), "minimum_s": min(times), "maximum_s": max(times)}
    told = {key: round(value, 3) if value < math.inf else f"> {PATIENCE_S}" for key, value in figures.items()}
    return {"case": name, "n": number, **told}


def hpc_elastic(slurm: Cluster, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**slurm.environment, "XDG_STATE_HOME": str(folder / "state"), "STAMPS": str(folder / "stamps")}
    return slurm.run(
        sys.executable, "-m", "hpc_elastic", *arguments, environment=environment, cwd=folder, check=False, timeout_s=300
    )


def write_job(folder: Path, script: str, *, max_restarts: int) -> None:
    (folder / "stamps").mkdir()
    (folder / "script.py").write_text(script)
    (folder / "job.yaml").write_text(
        f"nodes: {NODES}\nworkers_per_node: {WORKERS}\ntime: 10m\nentrypoint: {{script: script.py}}\n"
        f"env: {{OMP_NUM_THREADS: 1, STAMPS: {json.dumps(str(folder / 'stamps'))}}}\n"
        f"restart: {{max_restarts: {max_restarts}}}\n"
    )


def write_torchrun_script(folder: Path, script: str, *, max_restarts: int) -> Path:
    (folder / "stamps").mkdir()
    (folder / "script.py").write_text(script)
    torchrun = Path(sys.executable).parent / "torchrun"
    command = (
        f"srun --no-kill --kill-on-bad-exit=0 --wait=0 --cpu-bind=none {shlex.quote(str(torchrun))} --nnodes={NODES} "
        f"--nproc-per-node={WORKERS} --max-restarts={max_restarts} --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID "
        f'--rdzv-endpoint="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):29400" script.py'
    )
    path = folder / "torchrun.sh"
    # Sharing off: with torch 2.13's default, workers read the last attempt's addresses and do not recover.
    path.write_text(
        f"#!/bin/bash\n#SBATCH --nodes={NODES} --ntasks-per-node=1 --cpus-per-task={WORKERS}\n"
        f"#SBATCH --output={folder}/torchrun.out --chdir={folder}\n"
        f"export OMP_NUM_THREADS=1 STAMPS={shlex.quote(str(folder / 'stamps'))} "
        f"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1\n{command}\n"
    )
    return path


def sbatch_alone(slurm: Cluster, _folder: Path) -> float:
    begun = time.perf_counter()
    job_id = slurm.submit("--output=/dev/null", "--wrap=true")
    taken = time.perf_counter() - begun
    slurm.wait_for_job(job_id, "COMPLETED")
    return taken


def submit(slurm: Cluster, folder: Path) -> float:
    write_job(folder, "pass", max_restarts=0)
    begun = time.perf_counter()
    told = json.loads(hpc_elastic(slurm, folder, "submit", "job.yaml", "--json").stdout)
    taken = time.perf_counter() - begun
    slurm.wait_for_job(told["job_id"], "COMPLETED")
    return taken


def result_to_return_of_wait(slurm: Cluster, folder: Path) -> float:
    write_job(folder, "pass", max_restarts=0)
    told = json.loads(hpc_elastic(slurm, folder, "submit", "job.yaml", "--json", "--wait").stdout.splitlines()[0])
    return time.time() - Path(told["run_dir"], "result.json").stat().st_mtime


def failure_to_empty_queue(slurm: Cluster, folder: Path) -> float:
    write_job(folder, FAIL, max_restarts=0)
    hpc_elastic(slurm, folder, "submit", "job.yaml")
    return wait_for_empty_queue(slurm, folder)


def failure_to_empty_queue_torchrun(slurm: Cluster, folder: Path) -> float:
    slurm.submit(str(write_torchrun_script(folder, FAIL, max_restarts=0)))
    return wait_for_empty_queue(slurm, folder)


def wait_for_empty_queue(slurm: Cluster, folder: Path) -> float:
    """Seconds since the failure; infinite if the job is still there after PATIENCE_S, and is cancelled then."""
    deadline = time.monotonic() + PATIENCE_S
    while slurm.job_ids():
        if time.monotonic() > deadline:
            slurm.run("scancel", "--user=root")
            return math.inf
        time.sleep(0.05)
    if not (folder / "stamps" / "failed").exists():
        raise SystemExit("".join(path.read_text() for path in folder.glob("**/*.out")) or f"{folder}: nothing ran")
    return time.time() - stamp(folder, "failed")


def crash_to_next_step(slurm: Cluster, folder: Path) -> float:
    write_job(folder, CRASH, max_restarts=3)
    hpc_elastic(slurm, folder, "submit", "job.yaml", "--wait")
    return recovery(folder)


def crash_to_next_step_torchrun(slurm: Cluster, folder: Path) -> float:
    job_id = slurm.submit(str(write_torchrun_script(folder, CRASH, max_restarts=3)))
    slurm.wait_for_job(job_id, "COMPLETED", "FAILED", within_s=240)
    return recovery(folder)


def recovery(folder: Path) -> float:
    """From the crash to the first step of the slowest rank after it."""
    return max(stamp(folder, f"1-{rank}") for rank in range(RANKS)) - stamp(folder, "crashed")


def stamp(folder: Path, name: str) -> float:
    return float((folder / "stamps" / name).read_text())


def print_table(rows: list[dict[str, object]]) -> None:
    print(f"{'case':<58} {'n':>3} {'median s':>9} {'min s':>8} {'max s':>8}")
    for row in rows:
        print(f"{row['case']:<58} {row['n']:>3} {row['median_s']:>9} {row['minimum_s']:>8} {row['maximum_s']:>8}")


CASES: dict[str, Case] = {
    "sbatch alone": sbatch_alone,
    "hpc-elastic submit": submit,
    "result written to return of submit --wait": result_to_return_of_wait,
    "unrecoverable failure to empty squeue": failure_to_empty_queue,
    "unrecoverable failure to empty squeue, torchrun": failure_to_empty_queue_torchrun,
    "rank killed to next step of all": crash_to_next_step,
    "rank killed to next step of all, torchrun, sharing off": crash_to_next_step_torchrun,
}


if __name__ == "__main__":
    main()
