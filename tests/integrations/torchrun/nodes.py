"""Nodes of one step in one process: real handlers, and for torch's agent a thread that behaves as it does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousParameters

from hpc_elastic.integrations.torchrun.handler import ElasticHandler
from hpc_elastic.scheduler.allocation import Allocation

LOOKS_EVERY_S = 0.02
BOUND_S = 60.0


class Node:
    """One torchrun: what its agent does with the handler, and what it has seen."""

    def __init__(
        self, folder: Path, node_id: int, count: int, *, nnodes: tuple[int, int], run_id: str = "none", **config: str
    ) -> None:
        place = Allocation(
            job_id="local-7-7",
            restart_count=0,
            array_task=None,
            node_id=node_id,
            nodes=tuple(f"local{number}" for number in range(count)),
            is_local=True,
        )
        options: dict[str, Any] = {"dir": str(folder), "lease": "5", "join_timeout": "30", **config}
        parameters = RendezvousParameters("hpc-elastic", "", run_id, *nnodes, **options)
        self.environ: dict[str, str] = {}
        self.handler = ElasticHandler(parameters, place, environ=self.environ)
        self.infos: list[RendezvousInfo] = []
        self.ended: BaseException | str | None = None
        self.looks = threading.Event()  # while it is set, at its workers and at whether they are to stop
        self.looks.set()
        self._wish: str | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Node:
        self._thread.start()
        return self

    def wish(self, what: str) -> None:
        """Set what its workers do from now on: `fail`, `fail for good`, or be `done`."""
        self._wish = what

    def wait(self) -> BaseException | str | None:
        """Wait for the end of the node and return how it ended."""
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive(), f"{self.environ} is still here, after {len(self.infos)} rounds"
        return self.ended

    def wait_for_round(self, number: int) -> RendezvousInfo:
        wait_until(lambda: len(self.infos) >= number or self.ended is not None)
        assert len(self.infos) >= number, self.ended
        return self.infos[number - 1]

    def _run(self) -> None:
        try:
            try:
                self.ended = self._work()
            finally:
                assert self.handler.shutdown()
        except BaseException as error:
            self.ended = error

    def _work(self) -> str:
        while True:
            info = self.handler.next_rendezvous()
            self._assign_ranks(info)
            self.infos.append(info)
            while self.looks.wait() and self.handler.num_nodes_waiting() == 0:
                wish, self._wish = self._wish, None
                if wish == "fail":
                    break
                if wish == "fail for good":
                    failure = ProcessFailure(local_rank=0, pid=1, exitcode=3, error_file="")
                    raise ChildFailedError("train.py", {info.rank: failure})
                if wish == "done":
                    return self._exit_barrier(info)
                time.sleep(LOOKS_EVERY_S)

    def _assign_ranks(self, info: RendezvousInfo) -> None:
        """As torch's agent does: rank 0 hears from all, and answers all."""
        store, count = info.store, info.world_size
        store.set(f"torchelastic/role_info/{info.rank}", f"of {info.rank}")
        if info.rank == 0:
            told = store.multi_get([f"torchelastic/role_info/{rank}" for rank in range(count)])
            store.multi_set(
                [f"torchelastic/assigned_ranks/{rank}" for rank in range(count)], [b"%d" % len(told)] * count
            )
        store.get(f"torchelastic/assigned_ranks/{info.rank}")

    def _exit_barrier(self, info: RendezvousInfo) -> str:
        prefix = "torchelastic/agent/terminal_state"
        try:
            info.store.add(f"{prefix}/num_members", 1)
            info.store.wait([f"{prefix}/last_member"])
        except Exception as error:  # torch's agent logs it, and goes on
            return f"done, but {error}"
        return "done"


def start_all(folder: Path, count: int, nnodes: tuple[int, int], **config: str) -> list[Node]:
    """Start so many nodes, the last one first."""
    nodes = [Node(folder, number, count, nnodes=nnodes, **config) for number in range(count)]
    for node in reversed(nodes):
        node.start()
    return nodes


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(LOOKS_EVERY_S)
