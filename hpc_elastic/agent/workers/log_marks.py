"""Writes down once a second how long each log of a node's ranks is, so that readers can order lines by time.

Theory of operation. Workers write straight to their files, and their lines have no time. A thread looks at the files'
sizes once a second and appends those that have changed, with the time, to `attempts/NNNN/nodes/NODE.marks.jsonl`; a
smaller size than before says that the log was cut. So that a run of weeks keeps a small file, the pause doubles after
each `MARKS_AT_A_PAUSE` marks, up to `LONGEST_PAUSE_S`. Marks are a help and never a condition: a disk that refuses
them is no trouble, and the thread is not waited for longer than `CLOSED_WITHIN_S`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence

from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.codec import to_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.plan.launch_plan import LogsPlan
from hpc_elastic.plan.std_streams import Std
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import LogMark
from hpc_elastic.rundir.store import append_line

SHORTEST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 16.0
MARKS_AT_A_PAUSE = 3600
CLOSED_WITHIN_S = 2.0


class LogMarks:
    """Follows the sizes of the logs of one attempt after the other, in a thread that starts with the first of them.

    Nothing waits for a mark but `close`: a restart must not wait for a disk.

    Args:
        pause_s: the first pause between two looks.
    """

    def __init__(self, *, pause_s: float = SHORTEST_PAUSE_S) -> None:
        self._pause_s = pause_s
        self._orders: queue.SimpleQueue[_Logs | None] = queue.SimpleQueue()  # None: the thread ends
        self._thread: threading.Thread | None = None

    def follow(self, path: str, files: Mapping[str, str]) -> None:
        """Write marks of these logs from now on, and the last mark of the ones before.

        Args:
            path: the file of the marks.
            files: the logs, by the names that they have in the marks.
        """
        self._orders.put(_Logs(path, files))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log marks", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Write the last mark of the logs that are followed."""
        if self._thread is not None:
            self._orders.put(_Logs("", {}))

    def close(self) -> None:
        """Write the last mark and end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._orders.put(None)
            thread.join(CLOSED_WITHIN_S)

    def _run(self) -> None:
        logs: _Logs | None = _Logs("", {})
        while logs is not None:
            logs = self._follow(logs)

    def _follow(self, logs: _Logs) -> _Logs | None:
        """Write marks until there are other logs to follow, and return these."""
        count, pause_s = 0, self._pause_s
        while True:
            try:
                following = self._orders.get(timeout=pause_s if logs.files else None)
            except queue.Empty:
                count += logs.mark()
                if count >= MARKS_AT_A_PAUSE:
                    count, pause_s = 0, min(LONGEST_PAUSE_S, pause_s * 2)
            else:
                logs.mark()
                return following


class _Logs:
    """The logs of an attempt, and how long they were at the last mark."""

    def __init__(self, path: str, files: Mapping[str, str]) -> None:
        self.files = files
        self._path = path
        self._sizes: dict[str, int] = {}

    def mark(self) -> bool:
        """Append a mark if a file has changed; return whether there was one."""
        changed = {}
        time_ns = time.time_ns()  # before the look: what a mark covers was written before its time, or right after
        for name, path in self.files.items():
            with contextlib.suppress(OSError):
                size = os.stat(path).st_size
                if size != self._sizes.get(name, 0):
                    changed[name] = self._sizes[name] = size
        if changed:
            with contextlib.suppress(RunDirectoryError):
                append_line(self._path, to_json(LogMark(time_ns=time_ns, ends=changed)))
        return bool(changed)


def follow_logs(
    marks: LogMarks, logs: LogsPlan, layout: RunLayout, orders: Sequence[WorkerOrder], *, node: str
) -> None:
    """Have marks written of the logs of an attempt's workers on this node, if any of them has files of its own."""
    files: dict[str, str] = {}
    for order in orders if logs.per == "rank" else ():
        if order.destinations.redirected & Std.OUT:
            files[f"{order.rank}.stdout"] = layout.stdout(order.attempt, order.rank)
        if order.destinations.redirected & Std.ERR:
            files[f"{order.rank}.stderr"] = layout.stderr(order.attempt, order.rank)
    if files:
        marks.follow(layout.log_marks(orders[0].attempt, node), files)
