"""Reads what one rank wrote to one stream, byte by byte as it was, whether ranks have files or nodes have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol

from hpc_elastic.observe.growing_file import GrowingFile
from hpc_elastic.observe.roster import read_roster
from hpc_elastic.rundir import store
from hpc_elastic.rundir.error_file import STDERR_TAIL_LIMIT, read_log_tail
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.new_names import ask_anew, exists
from hpc_elastic.rundir.node_log import rank_bytes

CHUNK_BYTES = 1 << 20
_NODE_TAIL_BYTES = 4 << 20


class OutputReader(Protocol):
    """A stream of a rank, which is read again and again as it grows."""

    def chunks(self) -> Iterator[bytes]:
        """Yield what was added since the last call."""

    @property
    def forbidden(self) -> str:
        """The file, if the last call found that this user may not read it; else empty."""


def open_output(layout: RunLayout, attempt: int, rank: int, *, is_stderr: bool) -> OutputReader:
    """Return a reader of a rank's stream, which may not exist yet."""
    if has_node_logs(layout):
        return _NodeLogOutput(layout, attempt, rank, is_stderr=is_stderr)
    return _FileOutput((layout.stderr if is_stderr else layout.stdout)(attempt, rank))


def read_output(layout: RunLayout, attempt: int, rank: int, *, is_stderr: bool) -> bytes:
    """Return all that a rank wrote to a stream so far, as far as it was kept."""
    return b"".join(open_output(layout, attempt, rank, is_stderr=is_stderr).chunks())


def output_path(layout: RunLayout, attempt: int, rank: int, *, is_stderr: bool) -> str:
    """Return the file in which a rank's stream is: its own, or that of all ranks of its node."""
    node = node_of_rank(layout, attempt, rank) if has_node_logs(layout) else None
    if node is not None:
        return layout.node_log(attempt, node)
    return (layout.stderr if is_stderr else layout.stdout)(attempt, rank)


def read_end(layout: RunLayout, attempt: int, rank: int, *, is_stderr: bool) -> str:
    """Return the end of a rank's stream, "" if it wrote none; of a node's log, what is among its last 4 MiB."""
    path = output_path(layout, attempt, rank, is_stderr=is_stderr)
    if not has_node_logs(layout):
        return read_log_tail(path)
    lines = read_log_tail(path, _NODE_TAIL_BYTES).encode(errors="backslashreplace").split(b"\n")
    content = b"".join(rank_bytes(lines, rank, is_stderr=is_stderr))
    return content[-STDERR_TAIL_LIMIT:].decode(errors="backslashreplace")


def has_output(layout: RunLayout, attempt: int, rank: int) -> bool:
    """Return whether there are logs in which the output of a rank of an attempt is, or would be."""
    if has_node_logs(layout):
        node = node_of_rank(layout, attempt, rank)
        return node is not None and exists(layout.node_log(attempt, node))
    paths = (layout.stdout(attempt, rank), layout.stderr(attempt, rank))
    if any(map(_may_exist, paths)):
        return True
    ask_anew(paths[0])
    return any(map(_may_exist, paths))


def _may_exist(path: str) -> bool:
    """Return whether a file exists, as far as this user may know."""
    try:
        os.stat(path)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def has_node_logs(layout: RunLayout) -> bool:
    """Return whether the ranks of each node of a run share a log (`logs.per: node`)."""
    plan = store.read_json(layout.plan)
    logs = plan.get("logs") if isinstance(plan, dict) else None
    return isinstance(logs, dict) and logs.get("per") == "node"


def may_logs_be_cut(layout: RunLayout) -> bool:
    """Return whether the logs of a run may have an earlier part (`logs.max_size`), as far as that is known."""
    plan = store.read_json(layout.plan)
    logs = plan.get("logs") if isinstance(plan, dict) else None
    return not isinstance(logs, dict) or logs.get("max_size_bytes", 0) is not None


def node_of_rank(layout: RunLayout, attempt: int, rank: int) -> str | None:
    """Return the node on which a rank of an attempt ran; None if that is not written down (yet)."""
    place = read_roster(layout, attempt).get(rank)
    return place.node if place is not None else None


def ranks_with_output(layout: RunLayout, attempt: int) -> list[int]:
    """Return the ranks of an attempt that have logs, or a place in the logs of their nodes."""
    return sorted(read_roster(layout, attempt)) if has_node_logs(layout) else store.list_numbers(layout.ranks(attempt))


class _FileOutput:
    """The stream of a rank that has files of its own."""

    def __init__(self, path: str) -> None:
        self._file = GrowingFile(path)

    def chunks(self) -> Iterator[bytes]:
        """Implement `OutputReader`."""
        return (chunk.content for chunk in self._file.chunks(CHUNK_BYTES))

    @property
    def forbidden(self) -> str:
        """Implement `OutputReader`."""
        return self._file.forbidden


class _NodeLogOutput:
    """The stream of a rank whose node has a log for all of its ranks."""

    def __init__(self, layout: RunLayout, attempt: int, rank: int, *, is_stderr: bool) -> None:
        self._layout = layout
        self._attempt = attempt
        self._rank = rank
        self._is_stderr = is_stderr
        self._file: GrowingFile | None = None
        self._partial = b""

    def chunks(self) -> Iterator[bytes]:
        """Implement `OutputReader`."""
        if self._file is None:
            node = node_of_rank(self._layout, self._attempt, self._rank)
            if node is None:
                return
            self._file = GrowingFile(self._layout.node_log(self._attempt, node))
        for chunk in self._file.chunks(CHUNK_BYTES):
            partial = b"" if chunk.is_after_gap else self._partial
            *lines, self._partial = (partial + chunk.content).split(b"\n")
            if content := b"".join(rank_bytes(lines, self._rank, is_stderr=self._is_stderr)):
                yield content

    @property
    def forbidden(self) -> str:
        """Implement `OutputReader`."""
        return self._file.forbidden if self._file is not None else ""
