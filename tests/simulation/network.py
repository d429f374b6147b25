"""Simulated connections: they take time and keep their order, and what is under way is lost when one is cut."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING

from hpc_elastic.membership.messages import Message
from tests.simulation.clock import Event

if TYPE_CHECKING:
    from tests.simulation.agent import Agent


class Link:
    """One connection, from an agent to the agent with the head."""

    def __init__(self, member: Agent, head: Agent, delays_s: tuple[float, ...], dice: random.Random) -> None:
        self.member = member
        self.head = head
        self._delays_s = delays_s
        self._dice = dice
        self._latest = {"up": 0.0, "down": 0.0}
        self._open = {"up": True, "down": True}  # whether the side where it arrives still listens
        self._queues: dict[str, deque[tuple[Event, bool]]] = {"up": deque(), "down": deque()}
        self._is_cut = False

    def up(self, message: Message) -> None:
        """From the member to the head."""
        self._deliver("up", lambda: self.head.head_hears(self, message))

    def down(self, message: Message) -> None:
        """From the head to the member."""
        self._deliver("down", lambda: self.member.hears(self, message))

    def close(self, side: str, why: str) -> None:
        """The side where `side` arrives closes; the other learns it behind what was sent before."""
        if self._open[side]:
            self._open[side] = False
            self._tell_closed("down" if side == "up" else "up", why)

    def cut(self) -> None:
        """What is under way is lost, and both sides learn that."""
        if not self._is_cut:
            self._is_cut = True
            self._tell_closed("up", "connection reset by peer")
            self._tell_closed("down", "connection reset by peer")

    def _tell_closed(self, way: str, why: str) -> None:
        def closed() -> None:
            self._open[way] = False
            if way == "up":
                self.head.head_loses(self, why)
            else:
                self.member.loses_head(self, why)

        self._deliver(way, closed, is_news_of_cut=self._is_cut)

    def _deliver(self, way: str, event: Event, *, is_news_of_cut: bool = False) -> None:
        clock = self.head.run.clock
        if not self._open[way] or (self._is_cut and not is_news_of_cut):
            return
        at = max(self._latest[way], clock.now + self._dice.choice(self._delays_s), self._stalled_until)
        self._latest[way] = at
        self._queues[way].append((event, is_news_of_cut))
        clock.at(at, lambda: self._arrive(way))

    def _arrive(self, way: str) -> None:
        """The next one in the queue: none overtakes another, however long a stall."""
        clock, receiver = self.head.run.clock, self.head if way == "up" else self.member
        if clock.now < self._stalled_until:
            clock.at(self._stalled_until, lambda: self._arrive(way))
        elif self.member.is_powered and self.head.is_powered:
            event, is_news_of_cut = self._queues[way].popleft()
            if self._open[way] and (is_news_of_cut or not self._is_cut):
                receiver.do(event)

    @property
    def _stalled_until(self) -> float:
        return max(self.member.link_stalled_until, self.head.link_stalled_until)
