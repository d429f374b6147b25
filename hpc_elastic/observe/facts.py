"""Reads the facts of a run directory, without deciding the run's state.

It reads single fields of the JSON, tolerates absent files and torn lines, and does not use the records' classes:
importing those takes more time than `status` may take in all.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hpc_elastic.codec import objects_in
from hpc_elastic.errors import FileSystemError, RunDirectoryError
from hpc_elastic.observe.clock_steps import ClockStep
from hpc_elastic.observe.nodes import AttemptNodes, NodeNotes, NodesBeside, find_nodes_beside
from hpc_elastic.observe.roster import read_roster
from hpc_elastic.rundir import store
from hpc_elastic.rundir.allocation_ends import describe_end, describe_reason
from hpc_elastic.rundir.complaint import last_lines, read_complaint
from hpc_elastic.rundir.full_disk import describe_lack, describe_refusal
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.record_file import ALLOCATION, ATTEMPT, PLAN, RESULT, SUBMISSION, Shape, read_record
from hpc_elastic.rundir.states import FORGETS_AFTER

_ROSTER_BYTES = 64 * 1024
SILENT_S = 10.0  # in which srun starts agents where nothing keeps it from that
_SAMPLES_WITHIN_S = 30.0
_TRIES_EVERY_S = 10.0
_RESULT_TIP = "move it away: the status then comes from the other records and the scheduler, which is asked again"
_WITHOUT = "to end the job without it: `squeue --me` and `scancel`, or `kill` for a run on this machine"
_RECORD_TIP = f"restore it; {_WITHOUT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """One attempt, from its claim and its roster; `workers` is None until the roster is there.

    `roles` are those whose workers started in it while the others ran on; empty if every worker started.
    `root_cause` is why the attempt before ended, as the claim has it; None if no failure ended it, and in old runs.
    `blamed` are the nodes that its head left out where it could, with the reasons.
    """

    number: int
    opened: str | None
    reason: str
    nodes: tuple[str, ...]
    workers: int | None
    restarts: int
    roles: tuple[str, ...] = ()
    node_losses: int = 0
    allocation: int = 0
    head: str = ""
    root_cause: Mapping[str, Any] | None = None
    blamed: Mapping[str, str] = field(default_factory=dict)


def claim_of(attempt: AttemptFacts) -> Mapping[str, Any]:
    """Return what an attempt's claim says of it, for who need not read the claims of hundreds of attempts again."""
    return {
        "attempt": attempt.number,
        "allocation": attempt.allocation,
        "head": attempt.head,
        "members": list(attempt.nodes),
        "roles": list(attempt.roles),
        "time": attempt.opened,
        "root_cause": attempt.root_cause,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All facts of the run directory; `submission`, `allocation`, `result` are the records' JSON objects."""

    run_dir: str
    submission: Mapping[str, Any]
    plan: Mapping[str, Any]
    allocations: int
    allocation: Mapping[str, Any]
    attempts: tuple[AttemptFacts, ...]
    result: Mapping[str, Any] | None
    is_stop_requested: bool
    script_output: str | None  # the path, once the batch script wrote
    head: str = ""  # the latest one of the latest start by the scheduler
    beside: NodesBeside = field(default_factory=NodesBeside)  # the nodes not at work in the same start
    chained: str | None = None  # the job that waits for the latest allocation's end, to take its place
    has_ended: bool = False  # whether a head has recorded that the latest allocation ends, after which the run goes on
    between: str | None = None  # why the latest attempt has ended, if it has and the next one is not open yet
    notice: str | None = None  # that the workers of the same start will be stopped soon: when it was given, and why
    step_wait: str = ""  # why no agent has been started yet, if the batch script's output shows that srun waits
    clock_steps: tuple[ClockStep, ...] = ()  # of the heads of the same start
    unreadable: tuple[str, ...] = ()  # a line about each file that cannot be read
    disk_lack: str = ""  # why nothing more can be written, if that is so; only asked for as long as there is no result

    @property
    def job_id(self) -> str | None:
        """The job id of the next allocation if one waits, else of the latest one, which somebody may have started."""
        return self.chained or _job_id(self.allocation, self.submission)

    @property
    def scheduler(self) -> str:
        """The name of the run's scheduler; empty where neither of the records that have it is there."""
        return str(self.plan.get("scheduler") or self.submission.get("scheduler") or "")


class FactReader:
    """Reads a run directory repeatedly; files that cannot change any more are read once.

    Args:
        layout: the run's.
        is_tolerant: take a record that cannot be read for an absent one, and name it in `Facts.unreadable`.
    """

    def __init__(self, layout: RunLayout, *, is_tolerant: bool = False) -> None:
        self.layout = layout
        self._is_tolerant = is_tolerant
        self._plan: Mapping[str, Any] = {}
        self._complete: dict[int, AttemptFacts] = {}
        self._notes = NodeNotes(layout)
        self._unreadable: list[str] = []
        self._refusal, self._tried_at = "", float("-inf")

    def read(self) -> Facts:
        """Read the current facts.

        Raises:
            RunDirectoryError: the directory exists and cannot be read.
        """
        layout = self.layout
        self._unreadable = []
        result = self._read(layout.result, RESULT, _RESULT_TIP)  # first: what is read after a result is complete
        self._plan = self._plan or self._read(layout.plan, PLAN, _RECORD_TIP) or {}
        with store.file_system_errors(layout.root, "read"):
            allocations = store.list_numbers(layout.allocations)
            numbers = list_attempts(layout)
        allocation = self._allocation(allocations[-1]) if allocations else {}
        submission = self._read(layout.submission, SUBMISSION, _RECORD_TIP) or {}
        requests = list(store.read_lines(layout.requests))
        chained = _chained_job(requests, allocations[-1] if allocations else 0)
        job_id = chained or _job_id(allocation, submission)
        attempts = tuple(self._attempt(number) for number in numbers)
        start = self._latest_start(allocations)
        own = [attempt for attempt in attempts if attempt.allocation in start]
        end = _end_of_start(requests, start, own)
        beside = self._beside(start, own, tuple(allocation.get("nodes") or ()))
        script_output = _existing(layout.script_output(job_id)) if job_id else None
        has_agents = result is not None or (allocations and end is None)
        if self._plan and (error := find_gone(layout.root)):  # what was read may be a part of it
            raise error
        return Facts(
            run_dir=layout.root,
            submission=submission,
            plan=self._plan,
            allocations=len(allocations),
            allocation=allocation,
            attempts=attempts,
            result=result,
            is_stop_requested=any(_is_stop(line) for line in requests),
            script_output=script_output,
            head=own[-1].head if own else str(allocation.get("node", "")),
            beside=beside,
            has_ended=end is not None,
            between=None if result is not None else self._between(start, attempts, requests),
            notice=self._notice(start),
            clock_steps=tuple(self._notes.clock_steps),
            step_wait=self._step_wait(script_output, submission) if script_output and not has_agents else "",
            unreadable=tuple(self._unreadable),
            chained=chained,
            disk_lack=self._lack(own[-1].head if own else "") if result is None else "",
        )

    def _lack(self, head: str) -> str:
        """Return why nothing more can be written: by what statvfs says, or where the head has been silent by a trial.

        A quota shows only at a write. An agent writes a sample every 10 s, so that a run which goes on has no trials.
        """
        lack = describe_lack(self.layout.root)
        if lack or not head or time.time() - _modified(self.layout.samples(head)) < _SAMPLES_WITHIN_S:
            return lack
        if time.monotonic() - self._tried_at >= _TRIES_EVERY_S:
            self._tried_at = time.monotonic()
            self._refusal = describe_refusal(self.layout.root)
        return self._refusal

    def _latest_start(self, allocations: Sequence[int]) -> Mapping[int, str]:
        """Return, by allocation, the nodes that claimed the scheduler's latest start: several if the first was slow."""
        start: dict[int, str] = {}
        latest = None
        for number in reversed(allocations):
            claim = self._allocation(number)
            found = (claim.get("job_id"), claim.get("restart_count"))
            latest = latest or found
            if found != latest:
                break
            start[number] = str(claim.get("node", ""))
        return start

    def _claim(self, number: int) -> Mapping[str, Any]:
        """Return an attempt's claim; empty if it cannot be read, as the run's state does not depend on it."""
        try:
            return read_record(self.layout.claim(number), ATTEMPT) or {}
        except RunDirectoryError as error:
            self._unreadable.append(error.message)
            return {}

    def _step_wait(self, script_output: str, submission: Mapping[str, Any]) -> str:
        """Return why no agent has been started yet, as far as the script's output tells that srun waits."""
        from hpc_elastic.scheduler.slurm.srun_errors import describe_silent_wait, describe_step_wait

        if waits := describe_step_wait(last_line(script_output)):
            return waits
        # A job of ours has no other steps, but an allocation in which `hpc-elastic run` was called may have some. An
        # image or an environment that is fetched first takes its time, and so does Python where many agents read it
        # from a slow file system: Slurm opens the agents' outputs as it starts them.
        if not submission.get("foreground") or self._plan.get("container") or self._plan.get("stage"):
            return ""
        is_old = time.time() - _modified(script_output) > SILENT_S
        if not is_old or any(entry.name.endswith(".out") for entry in _entries(self.layout.agents)):
            return ""
        return describe_silent_wait(last_lines(script_output), str(submission.get("job_id")))

    def _allocation(self, number: int) -> Mapping[str, Any]:
        return self._read(self.layout.allocation(number), ALLOCATION, _RECORD_TIP) or {}

    def _read(self, path: str, shape: Shape, tip: str) -> Mapping[str, Any] | None:
        try:
            return read_record(path, shape, tip=tip)
        except RunDirectoryError as error:
            if not self._is_tolerant:
                raise
            if error.message not in self._unreadable:
                self._unreadable.append(error.message)
            return None

    def _world(self, number: int) -> Mapping[str, Any]:
        try:
            return _world(self.layout.world(number))
        except RunDirectoryError as error:
            if not self._is_tolerant:
                raise
            self._unreadable.append(error.message)
            return {}

    def _beside(self, start: Mapping[int, str], own: Sequence[AttemptFacts], order: Sequence[str]) -> NodesBeside:
        claims = [
            AttemptNodes(
                attempt=each.number, allocation=each.allocation, head=each.head, nodes=each.nodes, blamed=each.blamed
            )
            for each in own
        ]
        heads = {*start.values(), *(attempt.head for attempt in own)} - {""}
        notes = [note for note in self._notes.read(sorted(heads)) if note.allocation in start]
        return find_nodes_beside(claims, notes, order)

    def _notice(self, start: Mapping[int, str]) -> str | None:
        """Return the latest notice of this start's heads, whose notes have been read, for people."""
        given = [notice for notice in self._notes.notices if notice.allocation in start]
        if not given:
            return None
        latest = max(given, key=lambda notice: notice.time_ns)
        clock = datetime.fromtimestamp(latest.time_ns / 1e9).strftime("%H:%M:%S")
        return f"{clock}: {latest.text.removeprefix('notice: ')}"

    def _between(
        self, start: Mapping[int, str], attempts: Sequence[AttemptFacts], requests: Iterable[Any]
    ) -> str | None:
        """Return why the latest attempt has ended, as a head of this start, whose notes have been read, says.

        It has also ended if it is of an earlier start: its allocation has, whether somebody said why or not. A claim
        that cannot be read does not say of which start it is; then only a head's note on this attempt counts.
        """
        if not attempts:
            return None
        latest = attempts[-1]
        end = end_of_allocation(requests, latest.allocation)
        if end is not None:
            return describe_reason(str(end.get("reason") or ""), str(end.get("reservation") or ""))
        if start and latest.allocation and latest.allocation not in start:
            return describe_end(latest.allocation, None)
        # The head of an earlier allocation may have meant to claim the same attempt, and given that up.
        noted = [note for note in self._notes.failures if note.allocation in start]
        own = (note for note in reversed(noted) if note.allocation >= latest.allocation)
        return next((note.text for note in own if note.attempt == latest.number), None)

    def _attempt(self, number: int) -> AttemptFacts:
        if number in self._complete:
            return self._complete[number]
        claim = self._claim(number)
        world = self._world(number)
        spend = claim.get("spend")
        roles, total = tuple(claim.get("roles") or ()), world.get("roles")
        facts = AttemptFacts(
            number=number,
            opened=claim.get("time"),
            reason=str(claim.get("reason", "")),
            nodes=tuple(claim.get("members") or ()),
            workers=_workers(world),
            restarts=_spent(spend, "restarts"),
            roles=roles if isinstance(total, list) and len(roles) < len(total) else (),
            node_losses=_spent(spend, "node_losses"),
            allocation=int(claim.get("allocation") or 0),
            head=str(claim.get("head", "")),
            root_cause=root_cause_of(claim),
            blamed=_blamed(claim),
        )
        if claim and world:
            self._complete[number] = facts
        return facts


def list_attempts(layout: RunLayout) -> list[int]:
    """Return the numbers of a run's attempts; the folder of one that could not be opened after the last is none.

    Raises:
        RunDirectoryError: the attempts cannot be listed.
    """
    numbers = store.list_numbers(layout.attempts)
    while numbers and not _is_claimed(layout, numbers[-1]):
        numbers.pop()
    return numbers


def _is_claimed(layout: RunLayout, attempt: int) -> bool:
    """Return whether an attempt has a claim; a listing is asked, as NFS may hide a new name from an open."""
    try:
        return os.path.basename(layout.claim(attempt)) in os.listdir(layout.attempt(attempt))
    except OSError:
        return True  # and reading the claim says what is the matter


def attempt_of_rank(layout: RunLayout, attempt: int, rank: int) -> int:
    """Return the attempt in which the worker with this rank was started: an older one if its role ran on."""
    place = read_roster(layout, attempt).get(rank)
    return place.attempt if place is not None else attempt


def root_cause_of(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the root cause in a claim or a result as a JSON object; None if there is none, or none that says why."""
    found = record.get("root_cause")
    return found if isinstance(found, dict) and isinstance(found.get("line"), str) else None


def find_gone(root: str) -> FileSystemError | None:
    """Return the error about a run directory that was there and is not any more; None if it is there."""
    try:
        os.stat(root)
    except FileNotFoundError as cause:
        error = FileSystemError(f"{root} is gone: it was moved or removed", tip=f"move it back; {_WITHOUT}")
        error.__cause__ = cause
        return error
    except OSError:
        pass  # a file server's trouble
    return None


def latest_change(layout: RunLayout) -> float:
    """Return when any file of the run was last written, by the file system's clock, in Unix seconds."""
    paths = [layout.submission, layout.requests]
    for folder in (layout.root, layout.agents, layout.allocations, layout.attempts):
        paths += [entry.path for entry in _entries(folder) if not entry.name.startswith(".")]
    paths += [os.path.join(entry.path, "events.jsonl") for entry in _entries(layout.nodes)]
    return max((_modified(path) for path in paths), default=0.0)


def last_line(path: str) -> str:
    """Return the last line of a file that is not blank; empty if there is none."""
    return next((line.strip() for line in reversed(last_lines(path)) if line.strip()), "")


def agent_complaint(facts: Facts) -> str:
    """Return the error for which the latest head gave up; empty if it reported none."""
    if not facts.head:
        return ""
    job_id, restart_count = facts.allocation.get("job_id"), facts.allocation.get("restart_count")
    if not (isinstance(job_id, str) and isinstance(restart_count, int)):
        return ""
    return read_complaint(RunLayout(facts.run_dir).agent_output(facts.head), (job_id, restart_count))


def _spent(spend: object, what: str) -> int:
    number = spend.get(what) if isinstance(spend, dict) else None
    return number if isinstance(number, int) else 0


def _blamed(claim: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the nodes that a claim blames, with the reasons, without those whose blame is forgotten."""
    allocation = claim.get("allocation")
    return {
        str(each.get("node")): str(each.get("why", ""))
        for each in objects_in(claim, "set_aside")
        if isinstance(allocation, int)
        and isinstance(each.get("allocation"), int)
        and allocation - each["allocation"] <= FORGETS_AFTER
    }


def _job_id(allocation: Mapping[str, Any], submission: Mapping[str, Any]) -> str | None:
    job_id = allocation.get("job_id") or submission.get("job_id")
    return job_id if isinstance(job_id, str) else None


def _chained_job(requests: Sequence[object], allocation: int) -> str | None:
    """Return the job that is to take the place of this allocation's, None if there is none."""
    chains = [each for each in requests if isinstance(each, dict) and each.get("kind") == "chain"]
    told = [each.get("id") for each in chains if each.get("allocation") == allocation]
    return told[-1] if told and isinstance(told[-1], str) else None


def _object(path: str) -> Mapping[str, Any]:
    data = None
    with contextlib.suppress(ValueError, RecursionError):  # nested too deep, or a number of thousands of digits
        data = store.read_json(path)
    return data if isinstance(data, dict) else {}


def _world(path: str) -> Mapping[str, Any]:
    """Return a roster without its nodes and ranks, of which a large run has a MiB for each attempt.

    They are its last fields and a line each (`store.dump_json`); a roster of another form is read as a whole.
    """
    with store.file_system_errors(path, "read"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        with open(path, "rb") as file:
            start, found, _ = file.read(_ROSTER_BYTES).partition(b',\n  "nodes": ')
        if found:
            with contextlib.suppress(ValueError, RecursionError):
                world = json.loads(start + b"}")
                if isinstance(world, dict) and _workers(world) is not None:
                    return world
    return _object(path)


def _workers(world: Mapping[str, Any]) -> int | None:
    """Return how many workers a roster has; None if it is not there, or is none."""
    roles = world.get("roles")
    sizes = [role.get("size") if isinstance(role, dict) else None for role in roles] if isinstance(roles, list) else []
    whole = [size for size in sizes if isinstance(size, int)]
    return sum(whole) if whole and len(whole) == len(sizes) else None


def _existing(path: str) -> str | None:
    return path if os.path.exists(path) else None


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError:
        return []


def _modified(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def end_of_allocation(requests: Iterable[Any], allocation: int) -> Mapping[str, Any] | None:
    """Return the line with which a head has recorded that this allocation ends, after which the run goes on."""
    told = (line for line in requests if isinstance(line, dict) and line.get("kind") == "requeue")
    ends = [line for line in told if line.get("allocation") == allocation]
    return ends[-1] if ends else None


def _end_of_start(
    requests: Sequence[Any], start: Iterable[int], own: Sequence[AttemptFacts]
) -> Mapping[str, Any] | None:
    """Return the line with which a head has recorded that the latest start of the job ends, and the run goes on.

    Of several allocations that its nodes have claimed, the head's is that in which it has opened an attempt.
    """
    ends = (end_of_allocation(requests, number) for number in ([own[-1].allocation] if own else start))
    return next((end for end in ends if end is not None), None)


def _is_stop(line: Any) -> bool:
    """Return whether a line of the requests asks for the end of the run; with `requeue` it is that of an allocation."""
    return isinstance(line, dict) and line.get("kind") == "stop" and not line.get("requeue")
