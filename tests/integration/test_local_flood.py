"""A flood of strangers at the head's port, while a run works, fails and starts again."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections import deque
from pathlib import Path

import pytest

from hpc_elastic.agent.net.listener import ACCEPTED_A_TURN, UNAUTHENTICATED
from hpc_elastic.agent.net.rate_limit import LINES
from hpc_elastic.membership.authentication import NONCE_BYTES, Scope, Session, Side
from tests.integration.conftest import Door, Run
from tests.slurm_sandbox.cluster import wait_until

pytestmark = pytest.mark.local

# Fails once in the middle of the flood, and ends in the middle of it, each time when it is told to.
WORKS = """
import os, time

attempt = os.environ["HPC_ELASTIC_ATTEMPT"]
print("working", flush=True)
while not os.path.exists(f"go{attempt}"):
    time.sleep(0.05)
if attempt == "1" and os.environ["RANK"] == "2":
    raise ValueError("in the middle of the flood")
"""
JOB = """
name: works
site: local
nodes: 3
workers_per_node: 1
entrypoint: {script: work.py}
restart: {max_restarts: 1}
elastic: {lease: 5s}
"""
STRANGERS_A_PHASE = 3000
SILENT = 2 * UNAUTHENTICATED
MIB = 1024 * 1024


class Flood:
    """Strangers of every kind, one after the other as quickly as may be, until it is closed."""

    def __init__(self, address: str, port: int) -> None:
        self.count = 0
        self.accepted = 0
        self._address = (address, port)
        self._is_over = threading.Event()
        # Most silent ones stay until the head has hung up on them, and somewhat longer.
        self._silent: deque[socket.socket] = deque(maxlen=SILENT)
        self._others: deque[socket.socket] = deque(maxlen=50)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        for stranger in (*self._silent, *self._others):
            stranger.close()

    def wait_for(self, more: int) -> None:
        wanted = self.count + more
        wait_until(lambda: self.count >= wanted, f"{more} more strangers", within_s=120)

    def _run(self) -> None:
        while not self._is_over.is_set():
            self.count += 1
            with contextlib.suppress(OSError):
                self._knock(self.count % 5)

    def _knock(self, kind: int) -> None:
        stranger = socket.create_connection(self._address, timeout=5)
        self.accepted += 1
        if kind == 0:
            stranger.send(os.urandom(1000))
        elif kind == 1:
            scope = Scope(run="guess", job_id="1", restart_count=0)
            session = Session(Side.DIALLING, secret=b"guess", scope=scope, nonce=os.urandom(NONCE_BYTES))
            stranger.send(session.open())
            with contextlib.suppress(OSError):
                stranger.send(b"\0\0\0\x60" + bytes(32) + b'{"proof":"' + b"0" * 64 + b'"}')
        elif kind == 2:
            stranger.shutdown(socket.SHUT_WR)
        elif kind == 3:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stranger.close()
            return
        strangers = self._silent if kind == 4 else self._others  # none of them hangs up
        if len(strangers) == strangers.maxlen:
            strangers[0].close()
        strangers.append(stranger)


class Watch:
    """How many sockets and how much memory an agent has at most, looked at again and again."""

    def __init__(self, pid: int) -> None:
        self.most_sockets = 0
        self._pid = pid
        self.first_peak = self.peak()

    def peak(self) -> int:
        """The highest resident memory so far, in bytes."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    def look(self) -> None:
        links = (os.readlink(entry) for entry in Path(f"/proc/{self._pid}/fd").iterdir() if entry.is_symlink())
        with contextlib.suppress(FileNotFoundError):
            self.most_sockets = max(self.most_sockets, sum(link.startswith("socket:") for link in links))


def wait_for_workers(run: Run, attempt: int) -> None:
    for rank in range(3):
        run.wait_for_output("working", attempt=attempt, rank=rank)


@pytest.mark.variant(of="test_a_flood_of_every_kind_keeps_nobody_out")
def test_a_run_works_restarts_and_succeeds_in_a_flood_of_unauthenticated_clients(door: Door) -> None:
    door.write("work.py", WORKS)
    door.write("job.yaml", JOB)
    run = door.submit("job.yaml")
    wait_for_workers(run, 1)
    head = json.loads(Path(run.layout.allocation(1)).read_text())["head"]
    watch = Watch(run.agent_pid("local0"))
    with contextlib.closing(Flood(head["address"], head["port"])) as flood:
        for attempt in (1, 2):
            wait_for_workers(run, attempt)
            for _ in range(20):
                flood.wait_for(STRANGERS_A_PHASE // 20)
                watch.look()
            if attempt == 2:
                grown = watch.peak() - watch.first_peak
            door.write(f"go{attempt}", "")
        result = run.wait_until_over()
        assert flood.accepted > STRANGERS_A_PHASE
    assert (result["state"], result["exit_code"]) == ("SUCCEEDED", 0), run.story()
    assert run.attempts() == [1, 2]
    texts = [path.read_text() for path in run.path.rglob("events.jsonl")]
    events = [json.loads(line)["name"] for text in texts for line in text.splitlines()]
    assert "node.joined" in events
    assert "node.lost" not in events
    assert watch.most_sockets < UNAUTHENTICATED + 4 * ACCEPTED_A_TURN + 40
    assert grown < 32 * MIB
    lines = [line for line in run.story().splitlines() if "refused 127." in line]
    assert LINES <= len(lines) < 20 * LINES
    run.assert_records_valid()
    run.assert_nothing_left()
