"""Sends signals from outside, and that of `signals.notice`, to the rank processes that have a handler for them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection, Mapping

from hpc_elastic.processes import has_handler
from hpc_elastic.rank_set import name_ranks

LOOKS_EVERY_S = 0.5


class NoticeSignal:
    """The signal of a notice: once to each rank process that has a handler for it, because it kills one without.

    A signal that the agent passes on goes to the same ones.

    Args:
        name: the signal's name, without SIG; empty if job.yaml asks for none.
        running: returns the process ids of the workers that run, by global rank.
        send: sends a signal to the worker of a global rank, and to no process that it has started.
        say: takes a line for the agent's log.
        looks_every_s: how often the workers without a handler are looked at again; they may still be starting.
    """

    def __init__(
        self,
        name: str,
        *,
        running: Callable[[], Mapping[int, int]],
        send: Callable[[int, signal.Signals], None],
        say: Callable[[str], None],
        looks_every_s: float = LOOKS_EVERY_S,
    ) -> None:
        self.number = signal.Signals[f"SIG{name}"] if name else None
        self._running = running
        self._send = send
        self._say = say
        self._looks_every_s = looks_every_s
        self._sending: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Send the signal to the workers that run, unless that has begun."""
        if self.number is not None and self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_to_all(self.number))

    def pass_on(self, number: signal.Signals) -> None:
        """Send a signal that the agent got to the workers that run and have a handler for it, now and once."""
        sent, without = self._send_where_handled(number, self._running())
        told = [f"sent to {name_ranks(sent)}"] if sent else []
        if without:
            told.append(f"not to {name_ranks(without)}, which it would end for want of a handler")
        self._say(f"got {number.name}: {'; '.join(told) or 'no worker runs here'}")

    async def end(self) -> None:
        """Send no more; the workers of this attempt are to end, or are gone."""
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send_to_all(self, number: signal.Signals) -> None:
        told: set[int] = set()
        has_said = False
        while left := {rank: pid for rank, pid in self._running().items() if pid not in told}:
            sent, without = self._send_where_handled(number, left)
            told.update(left[rank] for rank in sent)
            if without and not has_said:
                self._say(_describe(without, number))
                has_said = True
            await asyncio.sleep(self._looks_every_s)

    def _send_where_handled(self, number: signal.Signals, pids: Mapping[int, int]) -> tuple[list[int], list[int]]:
        """Send a signal to the ranks of these processes that have a handler; return these ranks, and the others."""
        ranks = sorted(pids)
        sent = [rank for rank in ranks if has_handler(pids[rank], number)]
        for rank in sent:
            self._send(rank, number)
        return sent, [rank for rank in ranks if rank not in sent]


def _describe(ranks: Collection[int], number: signal.Signals) -> str:
    have = "has" if len(ranks) == 1 else "have"
    name = number.name.removeprefix("SIG")
    return (
        f"notice: {name_ranks(ranks)} {have} no handler for {name} (signals.notice), which would end the "
        "process: it is sent once there is one"
    )
