"""Handles the signals that an agent gets: requests to stop, and signals that are meant for its workers.

The four that stop are those of torchrun's `--signals-to-handle` (torch 2.13). A HUP that this process ignores, as below
`nohup`, stays ignored: whoever set that wants the run to outlive a hang-up.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable

# Slurm's TERM goes down a tree of nodes; a message from one agent to another may be faster.
TERM_ARRIVES_WITHIN_S = 1.0
SAME_WITHIN_S = 1.0  # one Ctrl-C or cancel may come twice, to the agent's process group and from the script
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
FOR_WORKERS = (signal.SIGUSR1, signal.SIGUSR2)


class AgentSignals:
    """The signal handlers of this process.

    Args:
        loop: the event loop in which signals are handled.
        is_local: this node is on the local backend, where a signal reaches the agent alone; Slurm's
            TERM goes to every process of the step, workers too.
        stop: called once, at the first request to stop, with the signal's name and whether the workers got it too.
        escalate: called when a stop is requested again, which means that it is to end at once.
        say: takes a line for the agent's log.
        same_within_s: for how many seconds after the first request another one counts as the same.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        is_local: bool,
        stop: Callable[[str, bool], None],
        escalate: Callable[[], None],
        say: Callable[[str], None],
        same_within_s: float = SAME_WITHIN_S,
    ) -> None:
        self._loop = loop
        self._is_local = is_local
        self._stop = stop
        self._escalate = escalate
        self._say = say
        self._same_within_s = same_within_s
        self._first_at: float | None = None
        self._have_workers_term = asyncio.Event()
        for number in STOPS:
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._got_stop, number)
        for number in FOR_WORKERS:
            loop.add_signal_handler(number, self._got_other, number)

    async def is_term_here(self) -> bool:
        """Return whether the workers got a TERM from outside; waits a moment for it, since another node got one."""
        if not self._is_local:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._have_workers_term.wait(), TERM_ARRIVES_WITHIN_S)
        return self._have_workers_term.is_set()

    def _got_stop(self, number: signal.Signals) -> None:
        now = self._loop.time()
        have_workers = number is signal.SIGTERM and not self._is_local
        if have_workers:
            self._have_workers_term.set()
        if self._first_at is None:
            self._first_at = now
            self._stop(number.name, have_workers)
        elif now >= self._first_at + self._same_within_s:
            self._escalate()

    def _got_other(self, number: signal.Signals) -> None:
        self._say(f"got {number.name}, which is for the workers")
