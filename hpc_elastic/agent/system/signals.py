"""Handles the signals that an agent gets: requests to stop, and signals that are meant for its workers.

Theory of operation. A TERM of Slurm (`scancel`, a preemption, the time limit) may have been sent to this agent alone or
to every process of the step, by the plugin that tracks processes: proctrack/cgroup signals the step's tasks only, each
of which is an agent, unless cgroup.conf says `SignalChildrenProcesses=yes` (Slurm 20.11 to 26.05); proctrack/linuxproc
signals whatever is below them. An administrator's `kill` is for one process. The workers need one TERM, and take a
second one for an order to end at once. Nobody can see whether a worker has got one, for a signal that is not blocked
leaves no trace. The guard, which is as far from the agent as a worker is, blocks it: what it has got the workers have.
Slurm signals the processes of a node one right after the other, so after `TERM_ARRIVES_WITHIN_S` none comes.

The four that stop are those of torchrun's `--signals-to-handle` (torch 2.13). A HUP that this process ignores, as below
`nohup`, stays ignored: whoever set that wants the run to outlive a hang-up.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

# Slurm's TERM goes down a tree of nodes; a message from one agent to another may be faster.
TERM_ARRIVES_WITHIN_S = 1.0
LOOKS_AGAIN_S = 0.02
SAME_WITHIN_S = 1.0  # one Ctrl-C or cancel may come twice, to the agent's process group and from the script
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
FOR_WORKERS = (signal.SIGUSR1, signal.SIGUSR2)


class AgentSignals:
    """The signal handlers of this process.

    Args:
        loop: the event loop in which signals are handled.
        is_local: this node is on the local backend, where a signal reaches the agent alone; a TERM of Slurm may go to
            every process of the step, workers too.
        has_term: returns whether a process beside the workers has got a TERM.
        stop: called once, at the first request to stop, with the signal's name and whether the workers may have got it
            too.
        escalate: called when a stop is requested again, which means that it is to end at once.
        say: takes a line for the agent's log.
        terms: a pipe, each write to which counts as a TERM: the shell that has started an image gets it in this agent's
            stead. Where both get it, one right after the other, it is one request.
        same_within_s: for how many seconds after the first request another one counts as the same.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        is_local: bool,
        has_term: Callable[[], bool],
        stop: Callable[[str, bool], None],
        escalate: Callable[[], None],
        say: Callable[[str], None],
        terms: int | None = None,
        same_within_s: float = SAME_WITHIN_S,
    ) -> None:
        self._loop = loop
        self._is_local = is_local
        self._has_term = has_term
        self._stop = stop
        self._escalate = escalate
        self._say = say
        self._same_within_s = same_within_s
        self._first_at: float | None = None
        for number in STOPS:
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._got_stop, number)
        for number in FOR_WORKERS:
            loop.add_signal_handler(number, self._got_other, number)
        if terms is not None:
            loop.add_reader(terms, self._read_pipe, terms)

    def _read_pipe(self, pipe: int) -> None:
        try:
            has_term = bool(os.read(pipe, 4096))
        except OSError:
            has_term = False
        if has_term:
            self._got_stop(signal.SIGTERM)
        else:  # the shell has ended
            self._loop.remove_reader(pipe)
            os.close(pipe)

    async def is_term_here(self) -> bool:
        """Return whether the workers got a TERM from outside; waits a moment for it, since an agent got one."""
        if self._is_local:
            return False
        gives_up = self._loop.time() + TERM_ARRIVES_WITHIN_S
        while not (is_here := self._has_term()) and self._loop.time() < gives_up:
            await asyncio.sleep(LOOKS_AGAIN_S)
        return is_here

    def _got_stop(self, number: signal.Signals) -> None:
        now = self._loop.time()
        if self._first_at is None:
            self._first_at = now
            self._stop(number.name, number is signal.SIGTERM and not self._is_local)
        elif now >= self._first_at + self._same_within_s:
            self._escalate()

    def _got_other(self, number: signal.Signals) -> None:
        self._say(f"got {number.name}, which is for the workers")
