"""Has another process import torch and add numbers up over all nodes, and tells how long that took."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from typing import Any

from hpc_elastic.codec import from_json
from hpc_elastic.doctor.node.peers import Neighbourhood
from hpc_elastic.doctor.probes.answers import AllReduceSeen, ProbeRequest, TorchSeen
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.shipped import PACKAGE_DIRECTORY

MODULE = "hpc_elastic.worker.torch_probe"
CONNECTS_WITHIN_S = 25.0
_LAUNCHER = os.path.join(PACKAGE_DIRECTORY, "launch.py")


class TorchRun:
    """The process that imports torch; it starts at once.

    Args:
        place: this node's place among the others.
    """

    def __init__(self, place: Allocation) -> None:
        self._place = place
        self.is_usable = False
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        # With the agent's own Python, by path, so that torch is looked for as by the workers of a run.
        self._child = subprocess.Popen(
            [sys.executable, _LAUNCHER, MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def imported(self) -> TorchSeen:
        """Wait for the import and return what was imported."""
        seen = from_json(TorchSeen, self._next("the import of torch"))
        self.is_usable = not seen.absent and seen.has_gloo
        return seen

    def reduce(self, request: ProbeRequest, neighbourhood: Neighbourhood) -> AllReduceSeen:
        """Add up over all nodes, over the site's interface or the one that routes to the head."""
        own = neighbourhood.see_interfaces()
        head = own.address if self._place.node_id == 0 else neighbourhood.head_address
        if not head:
            return AllReduceSeen(skipped="the head was not reached")
        interface = request.network.interface or own.interface or ""
        order = {
            "host": head,
            "port": neighbourhood.spare_port,
            "rank": self._place.node_id,
            "world": len(self._place.nodes),
            "interface": interface,
            "within_s": CONNECTS_WITHIN_S,
        }
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(order) + "\n")
        self._child.stdin.flush()
        return from_json(AllReduceSeen, {"interface": interface, **self._next("the sum over all nodes")})

    def close(self) -> None:
        """End the process, which is idle or late."""
        self._child.kill()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith("{"):  # a site's sitecustomize may print what it likes
                self._lines.put(line)
        self._lines.put("")

    def _next(self, what: str) -> Any:
        line = self._lines.get()
        if not line:
            raise RuntimeError(f"{what}: the process ended with {self._child.wait()}")
        return json.loads(line)
