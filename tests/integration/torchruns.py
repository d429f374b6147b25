"""Real torchruns with the backend hpc-elastic, and what their workers have told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_elastic.rundir.layout import RunLayout
from tests.integration.conftest import REPOSITORY, Run, whole_lines
from tests.slurm_sandbox.cluster import wait_until
from tests.without_torch import hide_compiler

LEASE_S = 5
# Tells who it is, and ends well when the file `finish` is there, badly when it is told to.
WORKER = """
import json, os, pathlib, sys, time

names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "HPC_ELASTIC_NODE",
         "HPC_ELASTIC_ATTEMPT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE")
told = {name: os.environ[name] for name in names} | {"pid": os.getpid()}
attempt, rank = told["HPC_ELASTIC_ATTEMPT"], told["RANK"]
if "--gloo" in sys.argv:
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    told["total"] = total.item()
with open("told.jsonl", "a") as file:
    file.write(json.dumps(told) + "\\n")
fails = pathlib.Path(f"fail-{attempt}-{rank}")
while not pathlib.Path("finish").exists():
    if fails.exists():
        raise RuntimeError(f"{fails} is there")
    time.sleep(0.05)
if "--gloo" in sys.argv:
    dist.destroy_process_group()
"""


def write_metadata(folder: Path) -> Path:
    """A folder for PYTHONPATH with the entry point, as an installed package has it; and no more."""
    info = folder / "metadata" / "hpc_elastic_entry_point-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hpc-elastic-entry-point\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[torchrun.handlers]\nhpc-elastic = hpc_elastic.integrations.torchrun.entry:get_handler\n"
    )
    return info.parent


def torchrun(
    nnodes: str,
    *arguments: str,
    workers: int = 1,
    max_restarts: int = 3,
    command: Sequence[str] = ("train.py",),
) -> list[str]:
    """The command on each node."""
    return [
        *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--rdzv-backend=hpc-elastic"),
        *(f"--nnodes={nnodes}", f"--nproc-per-node={workers}", f"--max-restarts={max_restarts}"),
        *(f"--rdzv-conf=lease={LEASE_S}", *command, *arguments),
    ]


def is_alive(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclass
class Step:
    """The torchruns of one step of a job, by their run directory and what their workers have told."""

    folder: Path
    run: str

    def __post_init__(self) -> None:
        (self.folder / "train.py").write_text(WORKER)
        self.layout = RunLayout(self.folder / "hpc-elastic-runs" / self.run)

    def told(self, attempt: int) -> list[dict[str, Any]]:
        """What the workers of an attempt have told, by rank."""
        told = [json.loads(line) for line in whole_lines(self.folder / "told.jsonl")]
        return sorted((one for one in told if one["HPC_ELASTIC_ATTEMPT"] == str(attempt)), key=lambda one: one["RANK"])

    def wait_for(self, attempt: int, ranks: int, *, within_s: float = 120) -> list[dict[str, Any]]:
        """Waits until all ranks of an attempt have told who they are."""
        what = f"attempt {attempt} is at work on {ranks} ranks"
        wait_until(lambda: len(self.told(attempt)) == ranks, what, within_s=within_s, otherwise=self.story)
        told = self.told(attempt)
        assert [one["RANK"] for one in told] == [str(rank) for rank in range(ranks)]
        assert {one["WORLD_SIZE"] for one in told} == {str(ranks)}
        assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in told}) == 1
        return told

    def wait_for_growth(self, ranks: int, *, after: int, within_s: float = 120) -> int:
        """Waits for an attempt after this one that has so many ranks at work; a node may need two goes to be back."""
        found: list[int] = []

        def has_grown() -> bool:
            found.extend(each for each in range(after + 1, after + 6) if len(self.told(each)) == ranks)
            return bool(found)

        wait_until(has_grown, f"{ranks} ranks are at work again", within_s=within_s, otherwise=self.story)
        self.wait_for(found[0], ranks)
        return found[0]

    def nodes(self, attempt: int) -> list[str]:
        """The nodes of an attempt, in the order of the ranks."""
        return list(dict.fromkeys(one["HPC_ELASTIC_NODE"] for one in self.told(attempt)))

    def fail(self, attempt: int, rank: int) -> None:
        (self.folder / f"fail-{attempt}-{rank}").write_text("")

    def finish(self) -> None:
        (self.folder / "finish").write_text("")

    def result(self) -> Any:
        return json.loads(Path(self.layout.result).read_text())

    def wait_for_result(self, *, within_s: float = 60) -> Any:
        wait_until(
            lambda: Path(self.layout.result).exists(), "there is a result", within_s=within_s, otherwise=self.story
        )
        return self.result()

    def processes(self) -> dict[int, str]:
        """Return the processes on every machine with this step's mark in their environment."""
        mark = os.fsencode(f"HPC_ELASTIC_RUN_DIR={self.layout.root}")
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and is_alive(int(entry.name)):
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue
        return found

    def worker_pid(self, rank: int, attempt: int = 1) -> int:
        """A worker's process, by its number on this machine and not in its own namespace."""
        wanted = {os.fsencode(f"RANK={rank}"), os.fsencode(f"HPC_ELASTIC_ATTEMPT={attempt}")}
        for pid in self.processes():
            with suppress(OSError):  # it has ended
                if wanted <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
                    return pid
        raise AssertionError(f"rank {rank} of attempt {attempt} does not run\n{self.story()}")

    def guards(self) -> dict[int, str]:
        """The guards of this step's nodes."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and is_alive(int(entry.name)):
                try:
                    command = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if b"hpc_elastic.agent.guard.process" in command and os.fsencode(self.layout.root) in command:
                    found[int(entry.name)] = b" ".join(command).decode()
        return found

    def assert_records_valid(self, *killed: str) -> None:
        """As of any run of ours; agents of these nodes may have been killed in the middle of a line."""
        Run(job_id="", layout=self.layout).assert_records_valid(killed=killed)

    def assert_nothing_left(self) -> None:
        wait_until(
            lambda: not self.processes() and not self.guards(),
            "no process of the step is left",
            within_s=30,
            otherwise=lambda: {**self.processes(), **self.guards()},
        )

    def story(self) -> str:
        files = [*self.folder.glob("*.out"), self.folder / "told.jsonl", Path(self.layout.result)]
        return "\n".join(f"--- {file.name}\n{file.read_text()[-4000:]}" for file in files if file.exists())


class LocalStep(Step):
    """Several torchruns on this machine, each with a loopback address of its own.

    Args:
        folder: where they work.
        count: how many.
        command: of each.
        environ: their environment.
    """

    def __init__(self, folder: Path, count: int, command: Sequence[str], environ: Mapping[str, str]) -> None:
        super().__init__(folder, "torchrun-local-5-5")
        self.torchruns = [self._start(number, count, command, environ) for number in range(count)]

    def _start(
        self, number: int, count: int, command: Sequence[str], environ: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        place = {
            "HPC_ELASTIC_LOCAL_JOB_ID": "local-5-5",
            "HPC_ELASTIC_LOCAL_NODES": str(count),
            "HPC_ELASTIC_LOCAL_NODE_ID": str(number),
        }
        with open(self.folder / f"local{number}.out", "wb") as output:
            return subprocess.Popen(
                command, cwd=self.folder, env={**environ, **place}, stdout=output, stderr=subprocess.STDOUT
            )

    def exit_codes(self, *, within_s: float = 90) -> list[int]:
        """Return the exit codes of the torchruns, once all have ended."""
        wait_until(
            lambda: all(one.poll() is not None for one in self.torchruns),
            "all torchruns have ended",
            within_s=within_s,
            otherwise=self.story,
        )
        return [one.wait() for one in self.torchruns]

    def output(self, number: int) -> str:
        return (self.folder / f"local{number}.out").read_text()

    def close(self) -> None:
        """Kill every process that is left, however the test ended."""
        for one in self.torchruns:
            if one.poll() is None:
                one.send_signal(signal.SIGCONT)
                one.kill()
                one.wait()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def local_step(
    folder: Path, count: int, nnodes: str = "1", *arguments: str, program: Sequence[str] = (), **options: Any
) -> Iterator[LocalStep]:
    """So many torchruns, or programs that have torch's agent in them, at work on this machine."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "HPC_ELASTIC_"))}
    environ["PYTHONPATH"] = f"{write_metadata(folder)}:{REPOSITORY}"
    environ["TMPDIR"] = str(folder)  # where a killed torchrun leaves the folder of its logs
    step = LocalStep(folder, count, program or torchrun(nnodes, *arguments, **options), hide_compiler(environ))
    try:
        yield step
    finally:
        step.close()
