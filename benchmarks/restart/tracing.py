"""Runs a training whose nodes are followed by strace, for its file calls and its imports of torch."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loss.steps import NotInTimeError
from benchmarks.restart.calls import OPTIONS, Restart, Trace
from benchmarks.restart.faults import crash
from benchmarks.restart.jobs import Job
from benchmarks.restart.launchers import Launcher
from benchmarks.restart.moments import Stamps
from benchmarks.restart.pairs import LEAVES_WITHIN_S, NODES, SETTLES_S, give_up_on
from tests.slurm_sandbox.cluster import Cluster, wait_until

PATIENCE_S = 300  # nothing is timed here, and strace makes an import several times as long
# The batch host, which is the head's and the store's too; one like any other; and the one whose rank raises.
FOLLOWED = ("node1", "node2", "node4")


def count(slurm: Cluster, folder: Path, launcher: Launcher) -> list[dict[str, Any]]:
    """A cold start and one restart after a crash; a row for each followed node.

    Raises:
        SystemExit: strace is not installed.
    """
    if shutil.which("strace") is None:
        raise SystemExit("the file calls are counted by strace, which is not installed (Debian: strace)")
    folder.mkdir()
    stamps = Stamps(folder / "stamps", NODES)
    with contextlib.ExitStack() as followed:
        for node in FOLLOWED:
            followed.enter_context(follow(slurm, node, folder / f"{node}.strace"))
        job = Job(slurm, folder, stamps.folder, NODES, launcher)
        try:
            group = stamps.next_group(PATIENCE_S, story=job.story)
            time.sleep(SETTLES_S)
            crash(slurm, job, stamps, group, within_s=PATIENCE_S)
        except (NotInTimeError, LookupError) as error:
            give_up_on(slurm, launcher, "file calls", error)
            return []
        finally:
            job.stop()
            slurm.leftovers(within_s=LEAVES_WITHIN_S)
    return rows({node: (folder / f"{node}.strace").read_text() for node in FOLLOWED}, launcher)


def rows(texts: dict[str, str], launcher: Launcher) -> list[dict[str, Any]]:
    """The figures of each node, from what strace wrote about it."""
    traces = {node: Trace(text.splitlines()) for node, text in texts.items()}
    (fault,) = [fault for trace in traces.values() if (fault := trace.fault()) is not None]
    return [
        {
            "launcher": launcher.name,
            "node": node,
            "imports_of_torch": dict(trace.imports_of_torch()),
            "cold_start": as_json(trace.file_calls_to_first_step()),
            "restart": as_json(trace.file_calls_of_restart(fault)),
        }
        for node, trace in traces.items()
    ]


def as_json(restart: Restart) -> dict[str, Any]:
    return {
        "outside": restart.total_outside,
        "on_proc": restart.on_proc,
        "in_script": restart.in_script,
        "by_kind": dict(restart.outside),
    }


@contextlib.contextmanager
def follow(slurm: Cluster, node: str, output: Path) -> Iterator[None]:
    """Follows all that a node's slurmd starts."""
    daemon = slurmd(slurm, node)
    strace = subprocess.Popen(["strace", *OPTIONS, f"--output={output}", f"--attach={daemon}"])
    try:
        wait_until(lambda: is_traced(daemon), f"strace follows slurmd of {node}", within_s=20)
        yield
    finally:
        strace.send_signal(signal.SIGINT)
        strace.wait()


def is_traced(pid: int) -> bool:
    """Whether a process is traced with all its threads."""
    texts = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return all("TracerPid:\t0\n" not in text for text in texts)


def slurmd(slurm: Cluster, node: str) -> int:
    """The process id here of a node's slurmd.

    Raises:
        LookupError: it does not run.
    """
    first = slurm.pids()[node]
    namespace = os.readlink(f"/proc/{first}/ns/pid")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "comm").read_text() == "slurmd\n" and os.readlink(entry / "ns/pid") == namespace:
                    return int(entry.name)
            except OSError:
                continue
    raise LookupError(f"no slurmd runs on {node}")
