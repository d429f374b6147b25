"""Reads what an explanation needs of a run directory, and no more: of 10,000 ranks not one error file too many.

Theory of operation. The root cause is in a claim or in the result, which the snapshot has; then one node's record and
one error file are read. Where no root cause was recorded, the failures come from the result, else from the nodes'
records, else from the error files that were written first; for these two there is a limit of number and of time.
Of stacks and flight records, which each rank may have, those of the ranks that the cause is about are read first, then
those of ranks far apart, within a time as well. Whatever cannot be read is a note. A worker may have written anything:
only regular files are read, and only so much of them.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpc_elastic.codec import DecodeError, from_json
from hpc_elastic.errors import RunDirectoryError, UsageError
from hpc_elastic.hostlist import HostlistError, expand_hostlist
from hpc_elastic.observe.explain_evidence import TRACEBACK_LINES, callstack_of, excerpt, excerpts_of_rank
from hpc_elastic.observe.explain_facts import (
    Excerpt,
    ExplainFacts,
    FailureFacts,
    NodeLoss,
    StopWish,
    attempt_after,
    find_culprit,
    number_of,
    ranks_of,
    root_cause_of_attempt,
    text_of,
    unix_seconds,
)
from hpc_elastic.observe.facts import AttemptFacts
from hpc_elastic.observe.rank_output import output_path
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.rundir import store
from hpc_elastic.rundir.complaint import last_script_lines
from hpc_elastic.rundir.error_file import read_tail
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.new_names import exists, open_anew
from hpc_elastic.scheduler.slurm.srun_errors import find_failed_nodes, tells_of_scancel

if TYPE_CHECKING:
    from hpc_elastic.failures.stacks import StackGroup

MOST_ERROR_FILES = 32
MOST_PROBED = 64  # ranks of which one has a stack or a flight record if the attempt has any
SEARCH_S = 0.6  # for the stacks of an attempt, and again for its flight records
CAUSE_SEARCH_S = 3.0  # for the records of all its nodes, and for its error files: whose is not read is not the cause
_LONGEST_RECORD = 16 * 1024 * 1024  # bytes
_EVENTS_BYTES = 4 * 1024 * 1024  # of a head's events, from their end
_HANGS = ("stalled", "silent", "collective_timeout", "rendezvous")
_FRAME = re.compile(r'^[\s|+]*File "([^"\n]+)", line (\d+), in (.+)$', re.MULTILINE)
_NOT_THE_USERS = ("site-packages", "dist-packages", "/lib/python", "hpc_elastic/", "<frozen", "<string>")
_NODE_REASONS = ("setup_failed", "nodes_missing", "no_result", "agent_failed", "unkillable", "terminated")


def read_explain_facts(layout: RunLayout, snapshot: Snapshot, wanted: int | None = None) -> ExplainFacts:
    """Read the facts for the explanation of a run, or of one attempt.

    Args:
        layout: the run's.
        snapshot: the run now.
        wanted: the attempt; None for the one that a person most likely means: the last one, or, while the run goes on,
            the last one that has ended.

    Raises:
        UsageError: there is no such attempt.
    """
    numbers = [attempt.number for attempt in snapshot.attempt_history]
    if wanted is not None and wanted not in numbers:
        found = f"attempts {numbers[0]} to {numbers[-1]}" if numbers else "no attempt yet"
        raise UsageError(f"there is no attempt {wanted}: {layout.root} has {found}")
    reader = _Reader(layout, snapshot)
    if wanted is not None:
        return reader.read(wanted)
    if not numbers or snapshot.state.value == "SUCCEEDED":
        return reader.read(None)
    if snapshot.is_over or snapshot.between is not None:
        return reader.read(numbers[-1])
    if snapshot.note is not None and (latest := reader.read(numbers[-1])).culprit is not None:
        return latest  # its job may be gone, and what failed last is what people want to know
    return reader.read(numbers[-2] if len(numbers) > 1 else None)


class _Reader:
    def __init__(self, layout: RunLayout, snapshot: Snapshot) -> None:
        self._layout = layout
        self._snapshot = snapshot
        self._notes: list[str] = []
        self._has_all = True  # of what is looked through

    def read(self, attempt: int | None) -> ExplainFacts:
        snapshot = self._snapshot
        self._notes, self._has_all = [], True
        later = attempt_after(snapshot, attempt)
        has_ended = later is not None or snapshot.is_over or snapshot.between is not None
        root_cause = root_cause_of_attempt(snapshot, attempt)
        losses = tuple(self._losses(attempt, later)) if attempt is not None else ()
        is_about_failure = not (later is None and snapshot.state.value in ("CANCELLED", "SUCCEEDED"))
        failures: Sequence[FailureFacts] = ()
        if attempt is not None and (root_cause is not None or (is_about_failure and not losses)):
            failures = self._failures(attempt, root_cause, is_last=later is None)
        culprit = find_culprit(root_cause, failures)
        error = self._error(culprit, attempt or 0) if culprit is not None else {}
        if culprit is not None and error:
            culprit = _completed(culprit, error)
        stacks = self._stacks(attempt, root_cause, culprit) if attempt is not None else ()
        collectives = (
            self._collectives(attempt, root_cause, culprit) if attempt is not None and is_about_failure else ()
        )
        is_scancelled = self._is_scancelled(attempt)
        excerpts, files, failed_agent = self._evidence(attempt, culprit, error, losses)
        if is_scancelled:
            excerpts, files = [], []
        return ExplainFacts(
            snapshot=snapshot,
            attempt=attempt,
            has_ended=has_ended,
            failures=tuple(failures),
            has_all_failures=self._has_all,
            culprit=culprit,
            failed_agent=failed_agent,
            losses=losses,
            stops=tuple(self._stops()) if snapshot.state.value == "CANCELLED" or not snapshot.is_over else (),
            stacks=tuple(stacks),
            collectives=tuple(collectives),
            excerpts=tuple(excerpts),
            files=tuple(dict.fromkeys(files)),
            notes=tuple(dict.fromkeys(self._notes)),
            is_scancelled=is_scancelled,
            taken_nodes=tuple(self._taken_nodes(attempt, losses)),
            is_foreground=self._is_foreground(),
        )

    def _is_scancelled(self, attempt: int | None) -> bool:
        """Return whether this is the end of the run, by a TERM that a `scancel` has brought."""
        snapshot = self._snapshot
        if snapshot.reason != "terminated" or not snapshot.job_id or attempt_after(snapshot, attempt) is not None:
            return False
        return tells_of_scancel(last_script_lines(self._layout.script_output(snapshot.job_id)))

    def _is_foreground(self) -> bool:
        try:
            return bool((store.read_json(self._layout.submission) or {}).get("foreground"))
        except RunDirectoryError:  # whoever reads the run may not read all of it
            return False

    def _taken_nodes(self, attempt: int | None, losses: Sequence[NodeLoss]) -> Iterator[str]:
        """Yield the lost nodes that Slurm has taken from the job: set DOWN, or left out where a job is made smaller."""
        snapshot = self._snapshot
        if not losses or not snapshot.job_id or snapshot.scheduler != "slurm":
            return
        failed = find_failed_nodes(last_script_lines(self._layout.script_output(snapshot.job_id)))
        left: Sequence[str] | None = None
        own = next((each for each in snapshot.attempt_history if each.number == attempt), None)
        is_latest_start = own is not None and own.allocation == snapshot.allocations and snapshot.between is None
        if is_latest_start and snapshot.job_state == "RUNNING" and snapshot.job_nodes:
            with contextlib.suppress(HostlistError):
                left = expand_hostlist(snapshot.job_nodes)
        yield from (loss.node for loss in losses if loss.node in failed or (left is not None and loss.node not in left))

    # Failures.

    def _failures(self, attempt: int, root_cause: Mapping[str, Any] | None, *, is_last: bool) -> Sequence[FailureFacts]:
        if is_last and self._snapshot.failures:
            return list(_of_record(self._snapshot.failures))
        if root_cause is not None:
            node = text_of(root_cause, "node")
            named = self._layout.node_result(attempt, node) if _is_name(node) else ""
            return list(_of_record(self._object(named).get("failures"))) if named else []
        return self._failures_of_nodes(attempt) or self._failures_of_error_files(attempt)

    def _failures_of_nodes(self, attempt: int) -> list[FailureFacts]:
        folder = os.path.dirname(self._layout.node_result(attempt, "node"))
        paths = [os.path.join(folder, name) for name in self._names(folder) if name.endswith(".json")]
        found: list[FailureFacts] = []
        for path in self._within_time(sorted(paths), "the nodes' records", CAUSE_SEARCH_S):
            content = self._content(path)
            if b'"failures": {}' not in content:
                found += _of_record(_parse(content).get("failures"))
        return found

    def _failures_of_error_files(self, attempt: int) -> list[FailureFacts]:
        """Return what the error files say that were written first: the oldest ones, by the file server's clock."""
        ranks = sorted(int(name) for name in self._names(self._layout.ranks(attempt)) if name.isdecimal())
        written = []
        for rank in self._within_time(ranks, "the ranks' error files", CAUSE_SEARCH_S):
            path = self._layout.error(attempt, rank)
            with contextlib.suppress(OSError):
                if exists(path):
                    written.append((os.stat(path).st_mtime_ns, rank))
        if len(written) > MOST_ERROR_FILES:
            self._has_all = False
            self._notes.append(f"{len(written)} ranks left an error file; the {MOST_ERROR_FILES} oldest were read")
        found = []
        for _, rank in heapq.nsmallest(MOST_ERROR_FILES, written):
            error = self._object(self._layout.error(attempt, rank))
            if error:
                blank = FailureFacts(rank=rank, node="", attempt=attempt, failure_class="", message="")
                found.append(_completed(blank, error))
        return found

    def _error(self, culprit: FailureFacts, attempt: int) -> Mapping[str, Any]:
        return self._object(self._layout.error(culprit.attempt or attempt, culprit.rank))

    # Losses and requests.

    def _losses(self, attempt: int, later: AttemptFacts | None) -> Iterator[NodeLoss]:
        """Yield the losses of nodes in an attempt, as heads noted them; else as the worlds show them."""
        own = next((each for each in self._snapshot.attempt_history if each.number == attempt), None)
        if own is None:
            return
        is_charged = later is not None and later.node_losses > own.node_losses
        is_end = later is None and self._snapshot.reason in ("node_lost", "node_losses_used_up")
        lost_now = set(own.nodes).intersection(self._snapshot.lost_nodes)
        is_now = later is None and self._snapshot.between is not None and bool(lost_now)
        if not (is_charged or is_end or is_now):
            return
        heads = dict.fromkeys(filter(_is_name, (own.head, later.head if later else "", *own.nodes[:2])))
        noted = {loss.node: loss for head in heads for loss in self._loss_events(head, own)}
        gone = set(own.nodes) - set(later.nodes) if later is not None else set(self._snapshot.lost_nodes)
        if noted and later is not None and later.allocation != own.allocation:
            gone = set()  # the next start of the job has other nodes
        for node in [*noted, *sorted(gone - noted.keys())]:
            yield noted.get(node) or NodeLoss(node=node, message="", timestamp=0.0)

    def _loss_events(self, head: str, attempt: AttemptFacts) -> Iterator[NodeLoss]:
        for line in read_tail(self._layout.events(head), _EVENTS_BYTES).splitlines():
            if '"node.lost"' not in line and '"head.lost"' not in line:
                continue
            event = _parse(line.encode("utf-8", "replace"))
            metadata = event.get("metadata")
            node = metadata.get("node", metadata.get("head")) if isinstance(metadata, dict) else None
            moment = event.get("time_ns")
            if not isinstance(number := event.get("allocation"), int) or number < attempt.allocation:
                continue  # of a head that meant to claim the attempt, too
            if event.get("attempt") == attempt.number and isinstance(node, str):
                seconds = moment / 1e9 if isinstance(moment, int) and 0 < moment < 1 << 63 else 0
                yield NodeLoss(node=node, message=str(event.get("message", "")), timestamp=unix_seconds(seconds))

    def _stops(self) -> Iterator[StopWish]:
        for line in read_tail(self._layout.requests, 64 * 1024).splitlines():
            request = _parse(line.encode("utf-8", "replace"))
            if request.get("kind") == "stop":
                by, moment, reason = (request.get(key) for key in ("by", "time", "reason"))
                yield StopWish(by=str(by or ""), time=str(moment or ""), reason=str(reason or ""))

    def _stacks(
        self, attempt: int, root_cause: Mapping[str, Any] | None, culprit: FailureFacts | None
    ) -> Sequence[StackGroup]:
        """Return where the ranks were, if the attempt ended because some did not go on, and their stacks were taken."""
        found = text_of(root_cause, "class") or (culprit.failure_class if culprit else "")
        if found not in _HANGS:
            return ()
        from hpc_elastic.failures.stacks import RankStack, group_stacks
        from hpc_elastic.observe.stacks import read_nodes_of_ranks

        ranks = self._telling_ranks(attempt, root_cause, culprit)
        nodes = read_nodes_of_ranks(self._layout, attempt)
        stacks: list[RankStack] = []
        for number, rank in enumerate(self._within_time(ranks, "the ranks' stacks")):
            if number >= MOST_PROBED and not stacks:
                break  # none were taken
            text = self._content(self._layout.stack(attempt, rank)).decode(errors="replace")
            if text.strip():
                stacks.append(RankStack(rank=rank, node=nodes.get(rank, "?"), text=text))
        return group_stacks(sorted(stacks, key=lambda stack: stack.rank))

    def _collectives(
        self, attempt: int, root_cause: Mapping[str, Any] | None, culprit: FailureFacts | None
    ) -> Sequence[str]:
        """Return what the ranks' flight recorders say about the collectives in which ranks waited.

        Where none of the first ranks has a record the job has no flight recorder, or nothing timed out.
        """
        ranks = self._telling_ranks(attempt, root_cause, culprit)
        paths = [self._layout.flight_record(attempt, rank) for rank in ranks]
        if not any(map(os.path.exists, paths[:MOST_PROBED])):
            return ()
        from hpc_elastic.failures.flight_recorder import RankCollectives, describe_collectives

        records = []
        for path in self._within_time(paths, "the flight recorders"):
            with contextlib.suppress(DecodeError, ValueError):
                if record := self._object(path):
                    records.append(from_json(RankCollectives, record))
        records.sort(key=lambda record: record.rank)
        workers = next((each.workers for each in self._snapshot.attempt_history if each.number == attempt), None)
        return list(describe_collectives(records, workers or len(records))) if records else ()

    def _telling_ranks(
        self, attempt: int, root_cause: Mapping[str, Any] | None, culprit: FailureFacts | None
    ) -> Sequence[int]:
        """Return the ranks of an attempt: those that the cause is about, then the others, first some far apart."""
        ranks = {int(name) for name in self._names(self._layout.ranks(attempt)) if name.isdecimal()}
        named = [number_of(root_cause, "rank"), culprit.rank if culprit is not None else None]
        for field in ("candidates", "silent"):
            found = ranks_of(text_of(root_cause, field))
            named += found if len(found) <= MOST_PROBED // 4 else ()
        first = {rank: None for rank in named if rank is not None and rank in ranks}
        others = sorted(ranks - first.keys())
        step = max(1, len(others) // MOST_PROBED)
        return [*first, *(rank for begin in range(step) for rank in others[begin::step])]

    # Evidence.

    def _evidence(
        self,
        attempt: int | None,
        culprit: FailureFacts | None,
        error: Mapping[str, Any],
        losses: Sequence[NodeLoss],
    ) -> tuple[list[Excerpt], list[str], str]:
        excerpts: list[Excerpt] = []
        files: list[str] = []
        failed_agent = ""
        if culprit is not None:
            number = culprit.attempt or attempt or 0
            excerpts += excerpts_of_rank(self._layout, number, culprit.rank, error, culprit.message)
            outputs = [
                output_path(self._layout, number, culprit.rank, is_stderr=is_stderr) for is_stderr in (True, False)
            ]
            files += [
                path for path in dict.fromkeys([self._layout.error(number, culprit.rank), *outputs]) if exists(path)
            ]
        for loss in losses[:2]:
            if _is_name(loss.node):
                path = self._layout.agent_output(loss.node)
                excerpts += excerpt(f"the end of what the agent on {loss.node} wrote", path, read_tail(path))
                files.append(path)
        if attempt_after(self._snapshot, attempt) is None and not losses:
            more_excerpts, more_files, failed_agent = self._evidence_of_job(attempt)
            excerpts, files = [*excerpts, *more_excerpts], [*files, *more_files]
        return excerpts, [path for path in files if os.path.exists(path)], failed_agent

    def _evidence_of_job(self, attempt: int | None) -> tuple[list[Excerpt], list[str], str]:
        """Return the ends of outputs, and the node whose agent failed, if not a worker's failure ended the run."""
        snapshot = self._snapshot
        excerpts: list[Excerpt] = []
        files: list[str] = []
        failed_agent = ""
        if attempt is not None and snapshot.reason in ("agent_failed", "unkillable"):
            failed_agent, details = self._failed_agent(attempt)
            excerpts += details
        is_before_attempts = not snapshot.attempts and snapshot.allocations > 0
        if snapshot.job_id and (is_before_attempts or snapshot.reason in _NODE_REASONS):
            path = self._layout.script_output(snapshot.job_id)
            excerpts += excerpt("the end of the script's output", path, read_tail(path))
            files.append(path)
        if snapshot.reason == "nodes_missing":
            excerpts += self._missing_nodes()
        if snapshot.reason in ("no_result", "agent_failed") and snapshot.attempt_history:
            node = failed_agent or snapshot.attempt_history[-1].head
            path = self._layout.agent_output(node)
            if _is_name(node):
                excerpts += excerpt(f"the end of what the agent on {node} wrote", path, read_tail(path))
                files.append(path)
        return excerpts, files, failed_agent

    def _failed_agent(self, attempt: int) -> tuple[str, list[Excerpt]]:
        """Return the node whose agent left a traceback, and its end; empty if there is none."""
        folder = os.path.dirname(self._layout.node_result(attempt, "node"))
        paths = [os.path.join(folder, name) for name in self._names(folder) if name.endswith(".json")]
        for path in self._within_time(sorted(paths), "the nodes' records", CAUSE_SEARCH_S):
            record = _parse(self._content(path))
            node, detail = record.get("node"), record.get("detail")
            if isinstance(detail, str) and detail.strip() and isinstance(node, str) and _is_name(node):
                return node, list(excerpt(f"the traceback of the agent on {node}", path, detail, TRACEBACK_LINES))
        return "", []

    def _missing_nodes(self) -> Iterator[Excerpt]:
        names = [name for name in sorted(self._names(self._layout.nodes)) if _is_name(name)][:1000]
        for name in names:
            path = self._layout.rendezvous(name)
            record = self._object(path) if os.path.exists(path) else {}
            if isinstance(record.get("detail"), str):
                yield from excerpt("why it did not join, as its own agent saw it", path, f"{name} {record['detail']}")

    # Files.

    def _within_time(self, items: Sequence[Any], what: str, search_s: float = SEARCH_S) -> Iterator[Any]:
        deadline = time.monotonic() + search_s
        for number, item in enumerate(items):
            if time.monotonic() > deadline:
                self._has_all = False
                self._notes.append(f"of {what}, {number} of {len(items)} were looked at: reading them takes long")
                return
            yield item

    def _names(self, folder: str) -> list[str]:
        try:
            return [name for name in os.listdir(folder) if not name.startswith(".")]
        except FileNotFoundError:
            return []
        except OSError as error:
            self._notes.append(f"{folder} cannot be read: {error.strerror}")
            return []

    def _object(self, path: str) -> Mapping[str, Any]:
        content = self._content(path)
        found = _parse(content)
        if content and not found:
            self._notes.append(f"{path} is torn, or no record: it was left out")
        return found

    def _content(self, path: str) -> bytes:
        """Return the content of a regular file; empty if there is none, with a note if it may not be read."""
        try:
            descriptor = open_anew(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return b""
        except OSError as error:
            self._notes.append(f"{path} cannot be read: {error.strerror}")
            return b""
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return b""
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(_LONGEST_RECORD)
        except OSError as error:
            self._notes.append(f"{path} cannot be read: {error.strerror}")
            return b""
        finally:
            os.close(descriptor)


def _parse(content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _of_record(failures: object) -> Iterator[FailureFacts]:
    """Yield the failures in a record, by global rank; what is of another shape is left out."""
    if not isinstance(failures, dict):
        return
    for key, data in failures.items():
        if key.isdecimal() and len(key) < 10 and isinstance(data, dict):
            yield FailureFacts(
                rank=int(key),
                node=text_of(data, "node"),
                attempt=number_of(data, "attempt") or 0,
                failure_class=text_of(data, "class"),
                message=text_of(data, "message"),
                frame=text_of(data, "frame"),
                detail=text_of(data, "detail"),
                exitcode=number_of(data, "exitcode"),
                signal_name=text_of(data, "signal_name") or None,
                local_rank=number_of(data, "local_rank"),
                pid=number_of(data, "pid"),
                timestamp=unix_seconds(data.get("timestamp")),
                is_after_stop=data.get("is_after_stop") is True,
            )


def _completed(failure: FailureFacts, error: Mapping[str, Any]) -> FailureFacts:
    """Return the failure with what only the rank's error file says."""
    message = error.get("message")
    text = message.get("message") if isinstance(message, dict) else message
    nanoseconds = number_of(error, "time_ns")
    written = nanoseconds / 1e9 if nanoseconds and 0 < nanoseconds < 1 << 63 else 0.0
    return FailureFacts(
        rank=failure.rank,
        node=failure.node or text_of(error, "node"),
        attempt=failure.attempt,
        failure_class=failure.failure_class or text_of(error, "class") or "exception",
        message=failure.message or (text if isinstance(text, str) else ""),
        frame=failure.frame or text_of(error, "frame") or _users_frame(callstack_of(error)),
        detail=failure.detail or text_of(error, "detail"),
        exitcode=failure.exitcode if failure.exitcode is not None else number_of(error, "exit_code"),
        signal_name=failure.signal_name or text_of(error, "signal") or None,
        local_rank=failure.local_rank if failure.local_rank is not None else number_of(error, "local_rank"),
        pid=failure.pid or number_of(error, "pid"),
        timestamp=failure.timestamp or unix_seconds(written),
        is_after_stop=failure.is_after_stop,
    )


def _users_frame(callstack: str) -> str:
    """Return the innermost frame of the user's own code, such as `train.py:88 in step`; empty if there is none."""
    frames = [match for match in _FRAME.finditer(callstack) if not any(word in match[1] for word in _NOT_THE_USERS)]
    return f"{os.path.basename(frames[-1][1])}:{frames[-1][2]} in {frames[-1][3]}" if frames else ""


def _is_name(node: object) -> bool:
    return isinstance(node, str) and bool(node) and os.sep not in node and node not in (".", "..")
