"""Which file of a run `logs` means, and its bytes."""

from __future__ import annotations

import contextlib
import os
import sys
from argparse import Namespace
from collections.abc import Iterable
from typing import Protocol

from hpc_elastic.errors import FileSystemError, UsageError
from hpc_elastic.hostlist import name_some
from hpc_elastic.observe.facts import attempt_of_rank, list_attempts
from hpc_elastic.observe.narrate import count
from hpc_elastic.observe.rank_output import has_output, ranks_with_output
from hpc_elastic.observe.tail import RankTail, Tail
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.new_names import exists
from hpc_elastic.rundir.record_file import ALLOCATION, SUBMISSION, read_record

_CHUNK_BYTES = 1 << 20


class Reader(Protocol):
    """What reads a log."""

    @property
    def forbidden(self) -> str:
        """The file, if this user may not read it; else empty."""


def choose_tails(layout: RunLayout, arguments: Namespace) -> list[Tail]:
    """Return what to print on standard output and, for a rank, on standard error.

    Raises:
        UsageError: there is no such file; the message says which there are.
    """
    if arguments.node is not None:
        return [Tail(_agent_file(layout, arguments.node))]
    attempts = list_attempts(layout)
    if arguments.script or (not attempts and arguments.rank is None and arguments.attempt is None):
        return [Tail(_script_file(layout, is_asked_for=arguments.script))]
    rank = arguments.rank or 0
    attempt = arguments.attempt
    if attempt is None:
        attempt = attempt_of_rank(layout, attempts[-1], rank) if attempts else 0
    if has_output(layout, attempt, rank):
        tails = RankTail(layout, attempt, rank)
        return [tails.stdout, tails.stderr]
    if not attempts and arguments.attempt is None:
        tip = "`hpc-elastic logs --script` prints what the script wrote"
        raise UsageError(f"rank {rank} has written nothing: no attempt was opened", tip=tip)
    if attempt not in attempts:
        found = f"attempts 1 to {attempts[-1]}" if attempts else "no attempt yet"
        raise UsageError(f"there is no attempt {attempt}: {layout.root} has {found}")
    raise UsageError(_no_rank(layout, attempt, rank), tip="`--node NODE` prints what an agent wrote")


def choose_filtered(layout: RunLayout, arguments: Namespace) -> list[tuple[str, int]]:
    """Return the files of lines that matched a filter, each with the descriptor that it belongs to.

    Raises:
        UsageError: there is none; no filter was given, or nothing is teed on the node.
    """
    attempt = arguments.attempt if arguments.attempt is not None else (list_attempts(layout) or [0])[-1]
    nodes = [arguments.node] if arguments.node is not None else _node_names(layout)
    files = [
        (path, target)
        for target, path_of in ((1, layout.filtered_stdout), (2, layout.filtered_stderr))
        for path in (path_of(attempt, node) for node in nodes if os.sep not in node)
        if exists(path)
    ]
    if not files:
        where = f"attempt {attempt}" if arguments.node is None else f"attempt {attempt} on {arguments.node}"
        raise UsageError(
            f"there are no filtered lines of {where}",
            tip="logs.duplicate_stdout_filters and logs.duplicate_stderr_filters choose them, of what logs.tee repeats",
        )
    return files


def _agent_file(layout: RunLayout, node: str) -> str:
    path = layout.agent_output(node)
    if os.sep not in node and exists(path):
        return path
    found = name_some(_node_names(layout)) or "none yet"
    raise UsageError(f"no agent wrote on a node {node!r}", tip=f"the nodes of this run: {found}")


def _script_file(layout: RunLayout, *, is_asked_for: bool) -> str:
    """Return the file of the newest job's output: there is no other output before the first attempt."""
    claims = store.list_numbers(layout.allocations)
    newest = read_record(layout.allocation(claims[-1]), ALLOCATION) if claims else None
    submission = newest or read_record(layout.submission, SUBMISSION) or {}
    path = layout.script_output(str(submission.get("job_id", "")))
    if not exists(path):
        if os.path.exists(layout.result):  # whoever reads "yet" would wait for output that will never come
            raise UsageError(
                "nothing was written: the run ended before it started", tip="`hpc-elastic status` says why"
            )
        raise UsageError("nothing was written yet: the run has not started", tip="`hpc-elastic status` says why")
    if not is_asked_for:
        print("no attempt was opened; this is the script's output", file=sys.stderr)
    return path


def _no_rank(layout: RunLayout, attempt: int, rank: int) -> str:
    ranks = ranks_with_output(layout, attempt)
    if rank in ranks:
        return f"rank {rank} of attempt {attempt} has no files: logs.redirects leaves its output to its agent's log"
    found = f"it has output of ranks {ranks[0]} to {ranks[-1]}" if ranks else "no rank has written yet"
    return f"there is no output of rank {rank} in attempt {attempt}: {found}"


def _node_names(layout: RunLayout) -> list[str]:
    """Return the names of the nodes that have an output; a link by such a name stands for the file of a host's name."""
    names = {name for name in _names(layout.agents) if name.endswith(".out")}
    linked = set()
    for name in names:
        with contextlib.suppress(OSError):  # of one that is no link
            linked.add(os.readlink(os.path.join(layout.agents, name)))
    return sorted(name[: -len(".out")] for name in names - linked)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def copy_file(path: str, target: int) -> None:
    """Copy a file byte by byte: a rank may write anything, not only text."""
    with store.file_system_errors(path, "read"):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return
    with open(descriptor, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            store.write_all(target, chunk)


def copy_tail(tail: Tail, target: int) -> None:
    """Copy what is new, byte by byte.

    Raises:
        FileSystemError: this user may not read the file.
    """
    while chunk := tail.read():
        store.write_all(target, chunk)
    check_permission([tail])


def check_permission(readers: Iterable[Reader]) -> None:
    """Check that this user may read all that was read; an empty output would look like one of ranks that are silent.

    Raises:
        FileSystemError: some files are not for this user.
    """
    forbidden = list(dict.fromkeys(filter(None, (reader.forbidden for reader in readers))))
    if forbidden:
        more = f" and {count(len(forbidden) - 1, 'more log')}" if len(forbidden) > 1 else ""
        raise FileSystemError(
            f"cannot read {forbidden[0]}{more}: Permission denied", tip="it belongs to another user: ask its owner"
        )
