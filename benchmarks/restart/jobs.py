"""A training that was submitted to a Slurm, under us or under torchrun, and what is known of it while it runs."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.restart import training
from benchmarks.restart.launchers import Launcher
from tests.integration.conftest import Door, Run
from tests.slurm_sandbox.cluster import Cluster

MANY = 1000  # restarts; the limits are not what is measured
PORT = 29400


class Job:
    """A training that was submitted.

    Args:
        slurm: where.
        folder: of this job alone.
        stamps: the training's; there is one process a node.
        nodes: how many.
        launcher: who starts it.
    """

    def __init__(self, slurm: Cluster, folder: Path, stamps: Path, nodes: int, launcher: Launcher) -> None:
        self.folder = folder
        self._stamps = stamps
        self.run: Run | None = None
        if launcher.is_ours:
            (folder / "train.py").write_text(Path(training.__file__).read_text())
            (folder / "job.yaml").write_text(job_text(nodes, stamps, launcher.setting))
            environ = {**slurm.environment, "XDG_STATE_HOME": str(folder / "state")}
            self.run = Door(folder, environ, command=(sys.executable, "-m", "hpc_elastic")).submit("job.yaml")
        else:
            script = folder / "torchrun.sh"
            script.write_text(batch_script(nodes, folder, stamps, launcher.setting))
            slurm.submit(str(script))

    def stop(self) -> None:
        """Lets the training end by itself."""
        (self._stamps / "stop").touch()

    def story(self) -> str:
        """What a person would read to find out."""
        if self.run is not None:
            return self.run.story()
        output = self.folder / "torchrun.out"
        return output.read_text()[-3000:] if output.exists() else "(it has written nothing)"

    def events(self) -> Iterator[Mapping[str, object]]:
        """Ours alone: the events of all nodes."""
        if self.run is None:
            return
        for path in self.run.path.glob("nodes/*/events.jsonl"):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    yield json.loads(line)


def job_text(nodes: int, stamps: Path, setting: Mapping[str, str]) -> str:
    """The job file."""
    lines = [
        "name: recovery",
        "site: generic-slurm",
        f"nodes: {nodes}",
        "workers_per_node: 1",
        "time: 15m",
        "resources: {cpus_per_worker: 1}",
        "entrypoint: {script: train.py}",
        f"env: {{OMP_NUM_THREADS: 1, STAMPS: {json.dumps(str(stamps))}}}",
        f"restart: {{max_restarts: {MANY}, no_progress_limit: {MANY}}}",
        *(f"{key}: {value}" for key, value in setting.items()),
    ]
    return "\n".join(lines) + "\n"


def batch_script(nodes: int, folder: Path, stamps: Path, setting: Mapping[str, str]) -> str:
    """The sbatch script with torchrun in it, as its documentation has it."""
    torchrun = Path(sys.executable).parent / "torchrun"
    exports = {"OMP_NUM_THREADS": "1", "STAMPS": str(stamps), **setting}
    exported = " ".join(f"{name}={shlex.quote(value)}" for name, value in exports.items())
    return (
        f"#!/bin/bash\n#SBATCH --nodes={nodes} --ntasks-per-node=1 --cpus-per-task=1 --time=15\n"
        f"#SBATCH --output={folder}/torchrun.out --chdir={folder}\n"
        f"export {exported}\n"
        f"srun --no-kill --kill-on-bad-exit=0 --wait=0 --cpu-bind=none {shlex.quote(str(torchrun))} --nnodes={nodes} "
        f"--nproc-per-node=1 --max-restarts={MANY} --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID "
        f'--rdzv-endpoint="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):{PORT}" '
        f"{shlex.quote(training.__file__)}\n"
    )


def host_pid(slurm: Cluster, node: str, pid: int) -> int:
    """The process id here of a process that is `pid` on its node.

    Raises:
        LookupError: there is none.
    """
    namespace = os.readlink(f"/proc/{slurm.pids()[node]}/ns/pid")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "status").read_text()
                if os.readlink(entry / "ns/pid") == namespace and inner_pid(status) == pid:
                    return int(entry.name)
            except OSError:
                continue
    raise LookupError(f"no process {pid} on {node}")


def inner_pid(status: str) -> int:
    """A process id in the innermost namespace, from /proc/PID/status."""
    line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    return int(line.split()[-1])
