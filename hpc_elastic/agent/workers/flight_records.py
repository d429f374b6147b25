"""Keeps what torch's flight recorder wrote about the workers of this node, where the job has it write files.

A job that sets `TORCH_FR_BUFFER_SIZE` and `TORCH_FR_DUMP_TEMP_FILE` (torch 2.9 and later; before,
`TORCH_NCCL_TRACE_BUFFER_SIZE` and `TORCH_NCCL_DEBUG_INFO_TEMP_FILE`) has a file of each rank on its node when a
collective times out. It is a pickle from the user's process, so only plain values are read from it.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import stat
import threading
from collections.abc import Iterable
from typing import Any, NoReturn

from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.codec import to_json
from hpc_elastic.failures.flight_recorder import parse_flight_record
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout

PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")  # the rank's number follows
LARGEST_DUMP = 64 << 20
READS_FOR_S = 2.0  # a disk that hangs holds nobody up for longer


class _PlainUnpickler(pickle.Unpickler):
    """Loads lists, dictionaries, texts and numbers, and refuses everything that would run code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse a class or a function, which torch's dumps do not have.

        Raises:
            UnpicklingError: always.
        """
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")


def keep_flight_records(layout: RunLayout, orders: Iterable[WorkerOrder], since_s: float) -> None:
    """Write a record of each rank's recorder into the run directory, of those that have a file of this attempt.

    Nothing that is wrong with a file, or with its disk, has any other consequence than that there is no record.

    Args:
        layout: the run's.
        orders: of the workers of the attempt, which have ended.
        since_s: when the attempt was started, in Unix seconds: older files are of another one.
    """
    wanted = [(order, prefix) for order in orders if (prefix := _prefix(order))]
    if not wanted:
        return

    def read() -> None:
        for order, prefix in wanted:
            _keep(layout, order, prefix, since_s)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(READS_FOR_S)


def _prefix(order: WorkerOrder) -> str:
    return next((order.environment[name] for name in PREFIXES if order.environment.get(name)), "")


def _keep(layout: RunLayout, order: WorkerOrder, prefix: str, since_s: float) -> None:
    with contextlib.suppress(Exception):  # whatever a user's file does to the unpickler
        dump = _load(os.path.join(order.directory, f"{prefix}{order.rank}"), since_s)
        if isinstance(dump, dict) and "entries" in dump:
            record = parse_flight_record(dump, order.rank, order.directory)
            path = layout.flight_record(order.attempt, order.rank)
            store.write_json(path, {"format_version": 1, "attempt": order.attempt, **to_json(record)})


def _load(path: str, since_s: float) -> Any:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not is_ours or status.st_mtime < since_s or status.st_size > LARGEST_DUMP:
            return None
        return _PlainUnpickler(io.BytesIO(file.read(LARGEST_DUMP))).load()
