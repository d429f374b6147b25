"""The run into which faults are injected: its processes by their kind, from /proc, and its records."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_elastic.rundir.store import list_numbers, read_json
from tests.integration.conftest import Run

_NODE = re.compile(rb"(?:^|\0)HPC_ELASTIC_(?:LOCAL_NODE_ID=|NODE=local)([0-9]+)(?:\0|$)")


@dataclass(frozen=True, slots=True)
class Seen:
    """One process of the run. `what` is agent, guard, store or worker; of a worker, `attempt` is its."""

    pid: int
    what: str
    node: str
    attempt: int = 0


class Patient:
    """The run, its processes and what its files say of it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.layout = run.layout

    def processes(self) -> list[Seen]:
        """All that are alive, but for the script."""
        found: list[Seen] = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    found += self._look_at(int(entry))
        return found

    def agents(self) -> dict[str, int]:
        """The agents' process ids by node: the script's children, for what an agent forks looks like it at first."""
        children = Path(f"/proc/{self.script()}/task/{self.script()}/children").read_text().split()
        return {seen.node: seen.pid for seen in self.processes() if seen.what == "agent" and str(seen.pid) in children}

    def script(self) -> int:
        """The process id of the script."""
        return int(self.run.job_id.split("-")[1])

    def is_over(self) -> bool:
        """Whether there is a result."""
        return self.run.is_over()

    def claims(self) -> list[Any]:
        """The claims of all attempts, in their order."""
        numbers = list_numbers(self.layout.attempts)
        claims = (read_json(self.layout.claim(number)) for number in numbers)
        return [claim for claim in claims if claim is not None]

    def world(self) -> tuple[int, str, frozenset[str]]:
        """The latest attempt, its head and its members."""
        claim = self.claims()[-1]
        return claim["attempt"], claim["head"], frozenset(claim["members"])

    def _look_at(self, pid: int) -> Iterator[Seen]:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        root = os.fsencode(self.layout.root)
        is_ours = root in command
        if is_ours and b"hpc_elastic.agent.guard.process" in command:
            yield Seen(pid, "guard", command[-2].decode())
            return
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        match = _NODE.search(environ)
        if match is None:
            return
        node = f"local{match[1].decode()}"
        if is_ours and b"hpc_elastic.agent.main" in command:
            yield Seen(pid, "agent", node)
        elif b"hpc_elastic.worker.store_host" in command:
            if root in Path(f"/proc/{int(command[-1])}/cmdline").read_bytes().split(b"\0"):
                yield Seen(pid, "store", node)
        elif b"HPC_ELASTIC_RUN_DIR=" + root in environ.split(b"\0"):
            attempt = re.search(rb"\0HPC_ELASTIC_ATTEMPT=([0-9]+)\0", environ)
            if attempt is not None:
                yield Seen(pid, "worker", node, int(attempt[1]))


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; return whether the process was there to get it."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
