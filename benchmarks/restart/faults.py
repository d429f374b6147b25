"""One fault of a training: a rank that raises, or one that is killed, and the way to the next step of all ranks."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.loss.steps import NotInTimeError
from benchmarks.restart.jobs import Job, host_pid
from benchmarks.restart.moments import Group, Stamps, now
from tests.slurm_sandbox.cluster import Cluster

BOUND_S = 60
ENDS_WITHIN_S = 20
WRITTEN_WITHIN_S = 10


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """Seconds after the fault; the first are None where nobody says so.

    The fault is the moment before the rank raises, or before it is killed.
    """

    exited_s: float  # the process is gone, as a poll of its pidfd by the benchmark says
    detected_s: float | None = None  # the agent's event, on the rank's node
    decided_s: float | None = None  # the head's
    opened_s: float | None = None  # the next attempt's claim is on disk
    started_s: float | None = None  # the last node has its worker
    first_line_s: float = 0.0  # of the script, in the last of the ranks
    imported_s: float = 0.0
    joined_s: float = 0.0
    recovered_s: float = 0.0  # the first step of the last rank

    def as_json(self) -> dict[str, Any]:
        return {name: None if value is None else round(value, 4) for name, value in asdict(self).items()}


def crash(
    slurm: Cluster, job: Job, stamps: Stamps, group: Group, *, within_s: float = BOUND_S
) -> tuple[Recovery, Group]:
    """Lets the last rank raise.

    Raises:
        NotInTimeError: there is no next step of all ranks in time.
    """
    victim = group.processes[-1]
    pidfd = os.pidfd_open(host_pid(slurm, victim.node, victim.pid))
    (stamps.folder / "crash").touch()
    exited = wait_for_exit(pidfd)
    return recover(job, stamps, at=stamps.raised(victim), exited=exited, node=victim.node, within_s=within_s)


def kill(
    slurm: Cluster, job: Job, stamps: Stamps, group: Group, *, within_s: float = BOUND_S
) -> tuple[Recovery, Group]:
    """Kills the last rank from outside.

    Raises:
        NotInTimeError: there is no next step of all ranks in time.
    """
    victim = group.processes[-1]
    pid = host_pid(slurm, victim.node, victim.pid)
    pidfd = os.pidfd_open(pid)
    at = now()
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    return recover(job, stamps, at=at, exited=wait_for_exit(pidfd), node=victim.node, within_s=within_s)


def wait_for_exit(pidfd: int) -> float:
    """When the process was gone.

    Raises:
        NotInTimeError: it does not go.
    """
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    found = waiting.poll(ENDS_WITHIN_S * 1000)
    at = now()
    os.close(pidfd)
    if not found:
        raise NotInTimeError(f"the process did not end within {ENDS_WITHIN_S} s")
    return at


def recover(
    job: Job, stamps: Stamps, *, at: float, exited: float, node: str, within_s: float
) -> tuple[Recovery, Group]:
    group = stamps.next_group(within_s - (now() - at), story=job.story)
    said = said_after(job, at, node) if job.run is not None else {}
    moments = {name: group.last(name) - at for name in ("first_line", "imported", "joined", "stepped")}
    recovery = Recovery(
        exited_s=exited - at,
        **{f"{name}_s": moment - at for name, moment in said.items()},
        first_line_s=moments["first_line"],
        imported_s=moments["imported"],
        joined_s=moments["joined"],
        recovered_s=moments["stepped"],
    )
    return recovery, group


def said_after(job: Job, at: float, node: str) -> dict[str, float]:
    """The moments of the agents' events after a fault, once the last of them is written.

    Raises:
        NotInTimeError: it is not.
    """
    deadline = time.monotonic() + WRITTEN_WITHIN_S
    offset = time.time() - now()
    while "complete" not in (said := moments_of(job.events(), at + offset, node)):
        if time.monotonic() > deadline:
            raise NotInTimeError(f"the events after the fault are not complete: {said}\n{job.story()}")
        time.sleep(0.02)
    del said["complete"]
    return {name: moment - offset for name, moment in said.items()}


def moments_of(events: Iterable[Mapping[str, Any]], at: float, node: str) -> dict[str, float]:
    """What the events after a fault say, by the field of `Recovery`; and `complete`, the last event of a restart.

    Args:
        events: of all nodes.
        at: the fault, in Unix seconds, as the moments are.
        node: where it was.
    """
    found: dict[str, list[float]] = {}
    for event in events:
        moment = event["time_ns"] / 1e9
        if moment > at and (event["name"] != "worker.exited" or event["node"] == node):
            found.setdefault(event["name"], []).append(moment)
    names = {
        "detected": ("worker.exited", min),
        "decided": ("failure.observed" if "failure.observed" in found else "attempt.failed", min),
        "opened": ("attempt.opened", min),
        "started": ("workers.started", max),
        "complete": ("attempt.started", max),
    }
    return {name: choose(found[event]) for name, (event, choose) in names.items() if event in found}
