"""A head's process and its agents' process of `rendezvous_scale`, started, connected and asked."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

from benchmarks.scale.agents import run_agents
from benchmarks.scale.head import BOUND_S, run_head
from benchmarks.scale.setting import Setting


class PairError(Exception):
    """The head and its agents did not hold together."""


class Side:
    """One of the processes; it answers what it is asked."""

    def __init__(self, run: Any, *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, its_end = context.Pipe()
        self.process: BaseProcess = context.Process(target=run, args=(its_end, *arguments))
        self.process.start()
        its_end.close()
        self.first = self._answer()

    def ask(self, what: str) -> Any:
        self._pipe.send(what)
        return self._answer()

    def end(self) -> None:
        self._pipe.close()
        self.process.join(5)
        self.process.kill()
        self.process.join()

    def _answer(self) -> Any:
        if not self._pipe.poll(BOUND_S):
            raise PairError(f"no answer within {BOUND_S:g} s")
        try:
            return self._pipe.recv()
        except EOFError:
            raise PairError("head or agents gave up: the machine is too slow or too busy for so many") from None


@dataclass(frozen=True)
class Pair:
    """Both, connected. Seconds until all had joined, and until every node had started the first attempt."""

    head: Side
    agents: Side
    connect_s: float
    first_attempt_s: float


@contextmanager
def head_and_agents(
    *, nodes: int, lease_s: float, workers: int, spread_s: float, profile: str | None
) -> Iterator[Pair]:
    """A pair that is at work; afterwards it has ended."""
    sides = []
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(nodes=nodes, lease_s=lease_s, workers=workers, run_dir=folder, spread_s=spread_s)
        try:
            sides.append(head := Side(run_head, setting, profile))
            sides.append(agents := Side(run_agents, setting, head.first))
            began = time.monotonic()
            connect_s = agents.ask("connect")
            head.ask("wait")
            yield Pair(head, agents, connect_s, time.monotonic() - began)
            agents.ask("leave")
            head.ask("leave")
        finally:
            for side in sides:
                side.end()
