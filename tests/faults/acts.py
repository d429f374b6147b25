"""What is done to a run from outside, once every rank of its first attempt is at work."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.faults import surroundings
from tests.integration.conftest import Door, Run
from tests.slurm_sandbox.cluster import wait_until
from tests.soak.patient import Patient, Seen


class Hand:
    """Does the acts of a fault to one run.

    Args:
        door: the command, and the run's folder.
        run: the run, at work.
        undo: gets what has to be undone when the run is over.
    """

    def __init__(self, door: Door, run: Run, undo: list[Callable[[], None]]) -> None:
        self._door = door
        self._run = run
        self._patient = Patient(run)
        self._undo = undo

    def do(self, words: tuple[str, ...]) -> None:
        """Do an act by its words, as in a `Fault`."""
        getattr(self, f"_{words[0]}")(*words[1:])

    def _go(self) -> None:
        (self._door.folder / "go").touch()

    def _kill(self, rank: str, name: str) -> None:
        os.kill(self._run.worker_pid(int(rank)), _signal(name))

    def _agent(self, node: str, name: str) -> None:
        os.kill(self._patient.agents()[node], _signal(name))

    def _agents(self, name: str) -> None:
        for pid in self._patient.agents().values():
            os.kill(pid, _signal(name))

    def _node(self, node: str, name: str) -> None:
        self._signal_all([seen for seen in self._patient.processes() if seen.node == node], name)

    def _everything(self, name: str) -> None:
        self._signal_all([seen for seen in self._patient.processes() if seen.what in ("agent", "worker")], name)

    def _script(self, name: str) -> None:
        os.kill(self._patient.script(), _signal(name))

    def _guard(self, node: str, name: str) -> None:
        def guards() -> list[int]:
            return [seen.pid for seen in self._patient.processes() if (seen.what, seen.node) == ("guard", node)]

        (guard,) = guards()
        os.kill(guard, _signal(name))
        wait_until(lambda: guards() not in ([], [guard]), "there is another guard", otherwise=self._run.story)
        self._go()

    def _store(self, node: str, name: str) -> None:
        """Signals the store host of a node: a child of its agent, with nothing of the run in its environment."""
        agent = self._patient.agents()[node]
        for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
            if b"hpc_elastic.worker.store_host" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(int(pid), _signal(name))

    def _cancel(self) -> None:
        self._door.run("cancel", self._run.job_id)

    def _cut(self, *nodes: str) -> None:
        """Cuts these nodes off from each other and from all others."""
        addresses = (f"127.0.0.{int(node.removeprefix('local')) + 2}" for node in nodes)
        surroundings.drop_packets(self._patient.script(), *addresses)

    def _confine_rank(self, rank: str, limit: str) -> None:
        cgroup = surroundings.memory_cgroup(limit)
        self._undo.append(lambda: surroundings.remove_cgroup(cgroup))
        (cgroup / "cgroup.procs").write_text(str(self._run.worker_pid(int(rank))))
        self._go()

    def _freeze_rank(self, rank: str) -> None:
        cgroup = surroundings.freezer_cgroup()
        self._undo.append(lambda: surroundings.remove_cgroup(cgroup))
        self._undo.append(lambda: _write(cgroup / "freezer.state", "THAWED"))
        _write(cgroup / "cgroup.procs", str(self._run.worker_pid(int(rank))))
        _write(cgroup / "freezer.state", "FROZEN")
        self._go()

    @staticmethod
    def _signal_all(seen: list[Seen], name: str) -> None:
        order = ("guard", "agent", "worker", "store")
        for one in sorted(seen, key=lambda one: order.index(one.what)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, _signal(name))


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _signal(name: str) -> int:
    return int(name) if name.isdigit() else signal.Signals[f"SIG{name}"]
