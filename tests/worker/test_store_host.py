"""The store host: its protocol with the agent, and torch's store behind it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpc_elastic.worker.store_host import open_store, serve

if TYPE_CHECKING:
    from tests.worker.conftest import Runner

LAUNCH = Path(__file__).parents[2] / "hpc_elastic" / "launch.py"
ADDRESS = "127.0.0.2"
WAIT_S = 60.0
CLIENT_TIMEOUT = timedelta(seconds=WAIT_S)


class Agent:
    """The agent's end of the socket."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.end.settimeout(WAIT_S)

    def listen(self) -> socket.socket:
        return socket.create_server((ADDRESS, 0), backlog=4096)

    def order(self, attempt: int, listener: socket.socket) -> None:
        message = {"attempt": attempt, "address": ADDRESS, "port": listener.getsockname()[1]}
        socket.send_fds(self.end, [json.dumps(message).encode()], [listener.fileno()])

    def receive(self) -> Any:
        return json.loads(self.end.recv(65536))


def host_command(*, parent: int) -> list[str]:
    return [sys.executable, str(LAUNCH), "hpc_elastic.worker.store_host", "--parent", str(parent)]


@contextmanager
def store_host(runner: Runner, **environment: str) -> Iterator[tuple[Agent, subprocess.Popen[bytes]]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        host_command(parent=os.getpid()), stdin=theirs.fileno(), env={**runner.environment, **environment}
    )
    theirs.close()
    with ours, process:
        try:
            yield Agent(ours), process
        finally:
            process.kill()


@pytest.fixture
def pair() -> Iterator[tuple[Agent, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield Agent(ours), theirs


class FakeStore:
    """Counts how many stores are alive."""

    alive = 0

    def __init__(self, address: str, port: int, listener: int) -> None:
        os.close(listener)
        type(self).alive += 1

    def __del__(self) -> None:
        type(self).alive -= 1


def test_serve_holds_one_store_and_answers_each_order(pair: tuple[Agent, socket.socket]) -> None:
    agent, theirs = pair
    alive = []
    thread = threading.Thread(target=serve, args=(theirs, FakeStore))
    thread.start()
    for attempt in (1, 2, 3):
        with agent.listen() as listener:
            agent.order(attempt, listener)
        assert agent.receive() == {"attempt": attempt, "state": "serving"}
        alive.append(FakeStore.alive)
    agent.end.close()
    thread.join(WAIT_S)
    assert alive == [1, 1, 1]
    assert FakeStore.alive == 0


def test_serve_says_what_failed_and_waits_for_the_next_order(pair: tuple[Agent, socket.socket]) -> None:
    agent, theirs = pair
    thread = threading.Thread(target=serve, args=(theirs, FakeStore))
    thread.start()
    agent.end.send(json.dumps({"attempt": 1, "address": ADDRESS, "port": 1}).encode())
    answer = agent.receive()
    assert (answer["attempt"], answer["state"]) == (1, "failed")
    with agent.listen() as listener:
        agent.order(2, listener)
    assert agent.receive() == {"attempt": 2, "state": "serving"}
    agent.end.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("source", ["raise ImportError('libcudart.so.12')", "raise OSError('no space')", "1 +"])
def test_host_says_why_there_is_no_torch(runner: Runner, source: str) -> None:
    runner.write("broken/torch.py", source)
    with store_host(runner, PYTHONPATH=str(runner.directory / "broken")) as (agent, process):
        answer = agent.receive()
        assert answer["state"] == "no_torch"
        assert source == "1 +" or "libcudart" in answer["message"] or "no space" in answer["message"]
        assert process.wait(WAIT_S) == 0


def test_a_warning_of_torchs_import_costs_no_store_where_warnings_are_errors(runner: Runner) -> None:
    runner.write("warns/torch.py", "import warnings; warnings.warn('no NumPy'); __version__ = '2.8'")
    with store_host(runner, PYTHONPATH=str(runner.directory / "warns"), PYTHONWARNINGS="error") as (agent, _):
        assert agent.receive() == {"state": "ready", "torch": "2.8"}


@pytest.mark.local
def test_each_attempt_has_a_fresh_store_and_early_clients_are_served(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("torch.distributed")
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")

    def connect(port: int, timeout: timedelta = CLIENT_TIMEOUT) -> Any:
        return distributed.TCPStore(ADDRESS, port, is_master=False, timeout=timeout)

    with store_host(runner) as (agent, process):
        assert agent.receive()["state"] == "ready"
        first, second = agent.listen(), agent.listen()
        with first, second, ThreadPoolExecutor(64) as clients:
            early = [clients.submit(connect, first.getsockname()[1]) for _ in range(64)]
            agent.order(1, first)
            assert agent.receive() == {"attempt": 1, "state": "serving"}
            stores = [future.result(WAIT_S) for future in early]
            stores[0].set("address of rank 0", "old")
            assert stores[63].get("address of rank 0") == b"old"
            process.terminate()  # Slurm's: every process of the step gets it
            agent.order(2, second)
            assert agent.receive() == {"attempt": 2, "state": "serving"}
            with pytest.raises(distributed.DistError):
                stores[63].get("address of rank 0")
            assert connect(second.getsockname()[1]).check(["address of rank 0"]) is False
        agent.end.shutdown(socket.SHUT_RDWR)
        assert process.wait(WAIT_S) == 0


@pytest.mark.local
def test_a_torch_whose_libuv_store_takes_no_listener_serves_early_clients_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.2 and 2.3 never answer and 2.4 to 2.7 raise NotImplementedError; the older store is there in all."""
    distributed = pytest.importorskip("torch.distributed")
    monkeypatch.setattr("torch.__version__", "2.7.1+cu128")
    with socket.create_server((ADDRESS, 0), backlog=4096) as listener, ThreadPoolExecutor(8) as clients:
        port = listener.getsockname()[1]
        early = [
            clients.submit(distributed.TCPStore, ADDRESS, port, is_master=False, timeout=CLIENT_TIMEOUT)
            for _ in range(8)
        ]
        served = open_store(ADDRESS, port, listener.detach())
        stores = [future.result(WAIT_S) for future in early]
    assert served.libuvBackend is False
    stores[0].set("address of rank 0", "new")
    assert stores[7].get("address of rank 0") == b"new"


def test_host_is_killed_if_its_agent_is_gone_already(runner: Runner) -> None:
    assert runner.run(host_command(parent=os.getppid())).exit_code == -signal.SIGKILL
