"""Reports why agents could not join the head, through the run directory because the network is what fails."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hpc_elastic.agent.net.reach import Finding, Place, describe_blocked
from hpc_elastic.agent.records.chain import ClaimChain
from hpc_elastic.codec import DecodeError, from_json, to_json
from hpc_elastic.errors import WAS_HEAD, ExitCode, MissingNode, RendezvousCause, RunDirectoryError
from hpc_elastic.membership.gathering import Diagnosis
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.complaint import last_script_lines
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Endpoint, RendezvousRecord, utc_text
from hpc_elastic.rundir.store import list_numbers, read_json, remove, write_json
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.slurm.srun_errors import find_ended_agents

LAST_LINE_BYTES = 4096
LONGEST_LINE = 200
# Slurm's words of a task that ends with the status of its TaskProlog, and was no agent.
_PROLOG_FAILED = "error: TaskProlog failed status="


class Findings:
    """The `rendezvous.json` files of the nodes in one start of the job; every method blocks, so it runs in a thread.

    On NFS a file that is looked for before it is there may stay hidden for 30 s and more. So an
    agent writes after two seconds at the latest, and the head looks after three.
    """

    def __init__(self, plan: LaunchPlan, place: Allocation) -> None:
        self._plan = plan
        self._place = place
        self._layout = RunLayout(plan.run_dir)
        self._chain = ClaimChain(self._layout, place)

    def write(
        self,
        finding: Finding,
        *,
        tries: int,
        gave_up: bool,
        versions: Mapping[str, str],
        awaits_other: bool = False,
    ) -> None:
        """Writes why this node has not joined; a failed write is ignored, so that the search goes on."""
        record = RendezvousRecord(
            run=self._plan.run,
            node=self._place.node,
            job_id=self._place.job_id,
            restart_count=self._place.restart_count,
            cause=finding.cause,
            detail=finding.detail,
            head=finding.head,
            address=finding.address,
            port=finding.port,
            tries=tries,
            gave_up=gave_up,
            versions=versions,
            time=utc_text(time.time()),
            awaits_other=awaits_other,
        )
        with contextlib.suppress(RunDirectoryError):
            write_json(self._layout.rendezvous(self._place.node), to_json(record))

    def remove(self) -> None:
        """Removes the record of this node, which has joined."""
        with contextlib.suppress(RunDirectoryError):
            remove(self._layout.rendezvous(self._place.node))

    def cannot_reach(self, head: str) -> Iterator[str]:
        """Yields the nodes that have given this head up, for they cannot route to it, in the order of their ids."""
        for node in self._place.nodes:
            record = self._record(node) if node != head else None
            if (
                record is not None
                and record.gave_up
                and (record.head, record.cause) == (head, RendezvousCause.CANNOT_ROUTE)
            ):
                yield node

    def read(self, nodes: Sequence[str], own: Endpoint) -> list[Diagnosis]:
        """Returns what is known about the nodes that have not joined.

        Args:
            nodes: the names of the missing nodes.
            own: the address and port on which this node's agent, which is the head, listens.
        """
        return list(self._diagnoses(nodes, own))

    def _diagnoses(self, nodes: Sequence[str], own: Endpoint) -> Iterator[Diagnosis]:
        ended, heads = self._ended_agents(), None
        for node in nodes:
            record, end = self._record(node), ended.get(node, "")
            is_own = _is_of_agent(end)
            if record is None:
                heads = self._heads() if heads is None else heads
                missing = self._without_word(node, f"srun: {end}; " if end else "", was_head=node in heads)
                found = Diagnosis(missing=missing)
                is_own = is_own and _PROLOG_FAILED not in missing.detail
            else:
                found = judge(record, head=self._place.node, own=own, port_range=self._plan.network.port_range)
            yield replace(found, gave_up=True, ended=not is_own) if end else found

    def _without_word(self, node: str, said: str, *, was_head: bool) -> MissingNode:
        """Returns what is known about a node that wrote no finding; `said` are srun's words."""
        what = WAS_HEAD if was_head else "has never started its agent"
        cause = RendezvousCause.HEAD_LOST if was_head else RendezvousCause.NEVER_STARTED
        detail = f"{what}: {said}{self._sign_of_life(node, has_started=was_head)}"
        return MissingNode(node=node, cause=cause, detail=detail)

    def _heads(self) -> frozenset[str]:
        """Returns the nodes that have claimed an allocation in this start of the job."""
        with contextlib.suppress(RunDirectoryError):
            return frozenset(claim.node for claim in self._chain.of_this_start())
        return frozenset()

    def _ended_agents(self) -> Mapping[str, str]:
        """Returns the nodes whose agents have ended or could not be started, with srun's words in the script's output.

        Other schedulers have no program that tells.
        """
        if self._place.is_local:
            return {}
        lines = last_script_lines(self._layout.script_output(self._place.job_id))
        return find_ended_agents(lines, self._place.nodes, start=self._place.restart_count)

    def _record(self, node: str) -> RendezvousRecord | None:
        """Returns the finding that a node wrote in this start of the job, None if there is none."""
        with contextlib.suppress(RunDirectoryError, DecodeError):
            data = read_json(self._layout.rendezvous(node))
            record = from_json(RendezvousRecord, data) if data is not None else None
            start = (self._place.job_id, self._place.restart_count)
            if record is not None and (record.job_id, record.restart_count) == start:
                return record
        return None

    def _sign_of_life(self, node: str, *, has_started: bool) -> str:
        """Describes the output file of an agent that wrote no finding; each start of the job appends to that file."""
        path = self._layout.agent_output(node)
        name = os.path.relpath(path, self._layout.root)
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_LINE_BYTES))
                lines = file.read().decode(errors="replace").split("\n")
        except OSError:
            return f"there is no {name}" + ("" if has_started else ", so no task was started there")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if not last:
            return f"{name} is empty"
        is_first = True
        with contextlib.suppress(RunDirectoryError):
            is_first = len(list_numbers(self._layout.allocations)) <= 1
        printable = "".join(letter if letter.isprintable() else " " for letter in last)
        whose = "" if is_first else ", perhaps of an earlier start of the job,"
        return f"{name} ends{whose} with: {printable[:LONGEST_LINE]}"


def _is_of_agent(end: str) -> bool:
    """Returns whether an agent has ended with an exit code of its own, so that its node could start it."""
    code = re.fullmatch("Exited with exit code ([0-9]{1,3})", end)
    return code is not None and ExitCode.USAGE < int(code[1]) in set(ExitCode)  # a program that fails exits with 1 or 2


def judge(record: RendezvousRecord, *, head: str, own: Endpoint, port_range: Sequence[int]) -> Diagnosis:
    """Returns what a node's own finding means to the head, which knows where it listens.

    A node that was refused at that very port did not reach the head: a firewall in between refused the connection. One
    that has given up an earlier head may still be about to join this one.
    """
    missing = MissingNode(node=record.node, cause=record.cause, detail=record.detail)
    if record.cause is RendezvousCause.REFUSED and (record.head, record.port) == (head, own.port):
        place = Place(head=head, address=record.address or own.address, port=own.port, is_certain=True)
        detail = describe_blocked(place, "refused, although the head listens there", port_range)
        missing = MissingNode(node=record.node, cause=RendezvousCause.BLOCKED_PORT, detail=detail)
    is_about_to_join = record.awaits_other and record.head != head
    return Diagnosis(missing=missing, gave_up=record.gave_up and not is_about_to_join)
