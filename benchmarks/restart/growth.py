"""Restarts of trainings on two and on eight nodes, and what the agents themselves take of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.loss.steps import NotInTimeError
from benchmarks.restart.faults import crash
from benchmarks.restart.jobs import Job
from benchmarks.restart.launchers import Launcher
from benchmarks.restart.moments import Group, Stamps
from benchmarks.restart.pairs import LEAVES_WITHIN_S, SETTLES_S, STARTS_WITHIN_S, give_up_on, say
from tests.slurm_sandbox.cluster import Cluster

SIZES = (2, 8)
AGENT = "hpc_elastic.agent.main"


@dataclass
class Restarts:
    """Of one size: by job, for each restart."""

    total_s: list[list[float]] = field(default_factory=list)  # crash to the next step of the last rank
    own_s: list[list[float]] = field(default_factory=list)  # the failure's event to the last node's worker
    head_cpu_s: list[list[float]] = field(default_factory=list)
    agent_cpu_s: list[list[float]] = field(default_factory=list)  # the median of the other agents
    failures: list[str] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)


def grow(slurm: Cluster, folder: Path, launcher: Launcher, *, jobs: int, repeats: int) -> dict[int, Restarts]:
    """So many jobs of each size in turn, each with so many restarts."""
    found = {size: Restarts() for size in SIZES}
    for turn in range(jobs):
        for size in SIZES if turn % 2 == 0 else SIZES[::-1]:
            own = folder / f"{launcher.name}-{size}-{turn}".replace(" ", "-")
            own.mkdir()
            restart(slurm, own, launcher, size, repeats, found[size])
            slurm.leftovers(within_s=LEAVES_WITHIN_S)
    return found


def restart(slurm: Cluster, folder: Path, launcher: Launcher, size: int, repeats: int, found: Restarts) -> None:
    """One job."""
    for series in (found.total_s, found.own_s, found.head_cpu_s, found.agent_cpu_s):
        series.append([])
    stamps = Stamps(folder / "stamps", size)
    job = Job(slurm, folder, stamps.folder, size, launcher)
    try:
        group = stamps.next_group(STARTS_WITHIN_S, story=job.story)
        agents = find_agents(slurm, group) if launcher.is_ours else {}
        for _ in range(repeats):
            time.sleep(SETTLES_S)
            before = {node: cpu_seconds(pid) for node, pid in agents.items()}
            recovery, group = crash(slurm, job, stamps, group)
            used = {node: cpu_seconds(pid) - before[node] for node, pid in agents.items()}
            found.total_s[-1].append(recovery.recovered_s)
            if recovery.detected_s is not None and recovery.started_s is not None:
                found.own_s[-1].append(recovery.started_s - recovery.detected_s)
            if used:
                head = str(next(iter(head_nodes(job.events()))))
                found.head_cpu_s[-1].append(used.pop(head))
                found.agent_cpu_s[-1].append(sorted(used.values())[len(used) // 2])
            found.details.append(recovery.as_json())
            say(launcher, f"{size} nodes", f"{recovery.recovered_s:.3f} s")
    except (NotInTimeError, LookupError) as error:
        found.failures.append(give_up_on(slurm, launcher, f"{size} nodes", error))
    job.stop()


def head_nodes(events: Iterable[Mapping[str, object]]) -> list[object]:
    """Where attempts were opened."""
    return [event["node"] for event in events if event["name"] == "attempt.opened"]


def find_agents(slurm: Cluster, group: Group) -> dict[str, int]:
    """The process id of each node's agent."""
    found = {}
    for one in group.processes:
        for pid, command in slurm.processes(one.node).items():
            if AGENT in command and not command.startswith("srun"):
                found[one.node] = pid
    return found


def cpu_seconds(pid: int) -> float:
    """What the threads of a process have used so far; the kernel counts them in nanoseconds here."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
