"""Handles the signals that an agent gets: requests to stop, and signals that are meant for its workers.

Theory of operation. A TERM of Slurm (`scancel`, a preemption, the time limit) may have been sent to this agent alone or
to every process of the step, by the plugin that tracks processes: proctrack/cgroup signals the step's tasks only, each
of which is an agent, unless cgroup.conf says `SignalChildrenProcesses=yes` (Slurm 20.11 to 26.05); proctrack/linuxproc
signals whatever is below them. An administrator's `kill` is for one process. The workers need one TERM, and take a
second one for an order to end at once. Nobody can see whether a worker has got one, for a signal that is not blocked
leaves no trace. The guard, which is as far from the agent as a worker is, blocks it: what it has got the workers have.
Slurm signals the processes of a node one right after the other, so after `ARRIVES_WITHIN_S` none comes. It is the same
with USR1 and USR2, which `scancel --signal` sends as often as somebody wants: those that come while one is looked after
are one.

Who asks a second time for the end wants it at once. Slurm asks a second time, too, when the grace of a preemption is
over, and kills `KillWait` later, time that the workers may use. It sends a CONT with the TERM then, as always when it
ends a job, and none for a person's `scancel --signal=TERM` (22.05 to 26.05).

The four that stop are those of torchrun's `--signals-to-handle` (torch 2.13). A HUP that this process ignores, as below
`nohup`, stays ignored: whoever set that wants the run to outlive a hang-up.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from hpc_elastic.agent.system.tasks import Tasks

# A signal of Slurm goes down a tree of nodes; a message from one agent to another may be faster.
ARRIVES_WITHIN_S = 1.0
LOOKS_AGAIN_S = 0.02
SAME_WITHIN_S = 1.0  # one Ctrl-C or cancel may come twice, to the agent's process group and from the script
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
FOR_WORKERS = (signal.SIGUSR1, signal.SIGUSR2)
HANDLED = (signal.SIGCONT, *STOPS, *FOR_WORKERS)


class AgentSignals:
    """The signal handlers of this process.

    Args:
        loop: the event loop in which signals are handled.
        is_local: this node is on the local backend, where a signal reaches the agent alone; a TERM of Slurm may go to
            every process of the step, workers too.
        has_got: returns whether a process beside the workers has got this signal, TERM or one of `FOR_WORKERS`.
        forget: has that process forget that it got this one of `FOR_WORKERS`.
        pass_on: called with one of `FOR_WORKERS` that the workers have not got.
        stop: called once, at the first request to stop, with the signal's name and whether the workers may have got it
            too.
        escalate: called when a stop is requested again, which means that it is to end at once.
        say: takes a line for the agent's log.
        outside: a pipe with a line (TERM, CONT, USR1, USR2) for each signal that the shell outside of an image got in
            this agent's stead. Where both get it, one right after the other, it is one.
        same_within_s: for how many seconds after the first request another one counts as the same, and how far from it
            the CONT may be that comes with a TERM.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        is_local: bool,
        has_got: Callable[[signal.Signals], bool],
        forget: Callable[[signal.Signals], None],
        pass_on: Callable[[signal.Signals], None],
        stop: Callable[[str, bool], None],
        escalate: Callable[[], None],
        say: Callable[[str], None],
        outside: int | None = None,
        same_within_s: float = SAME_WITHIN_S,
    ) -> None:
        self._loop = loop
        self._is_local = is_local
        self._has_got = has_got
        self._forget = forget
        self._pass_on = pass_on
        self._stop = stop
        self._escalate = escalate
        self._say = say
        self._same_within_s = same_within_s
        self._first_at: float | None = None
        self._continued_at = -float("inf")
        self._tasks = Tasks()
        self._looked_after: set[signal.Signals] = set()
        for number in HANDLED:
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._got, number)
        if outside is not None:
            loop.add_reader(outside, self._read_pipe, outside)

    def _read_pipe(self, pipe: int) -> None:
        try:
            names = os.read(pipe, 4096).split()
        except OSError:
            names = []
        if not names:  # the shell has ended
            self._loop.remove_reader(pipe)
            os.close(pipe)
        for number in HANDLED:
            if number.name.removeprefix("SIG").encode() in names:
                self._got(number)

    async def is_term_here(self) -> bool:
        """Return whether the workers got a TERM from outside; waits a moment for it, since an agent got one."""
        return await self._is_here(signal.SIGTERM)

    async def _is_here(self, number: signal.Signals) -> bool:
        if self._is_local:
            return False
        gives_up = self._loop.time() + ARRIVES_WITHIN_S
        while not (is_here := self._has_got(number)) and self._loop.time() < gives_up:
            await asyncio.sleep(LOOKS_AGAIN_S)
        return is_here

    def _got(self, number: signal.Signals) -> None:
        if number is signal.SIGCONT:
            self._continued_at = self._loop.time()
        elif number in STOPS:
            self._got_stop(number)
        elif number not in self._looked_after:
            self._looked_after.add(number)
            self._tasks.run(self._look_after(number))

    def _got_stop(self, number: signal.Signals) -> None:
        now = self._loop.time()
        if self._first_at is None:
            self._first_at = now
            self._stop(number.name, number is signal.SIGTERM and not self._is_local)
        elif now >= self._first_at + self._same_within_s:
            if number is signal.SIGTERM and not self._is_local:
                self._loop.call_later(self._same_within_s, self._escalate_unless_continued)
            else:
                self._escalate()

    def _escalate_unless_continued(self) -> None:
        if self._loop.time() > self._continued_at + 2 * self._same_within_s:
            self._escalate()

    async def _look_after(self, number: signal.Signals) -> None:
        """Pass a signal on to the workers, unless they have got it themselves."""
        ends_at = self._loop.time() + ARRIVES_WITHIN_S
        if await self._is_here(number):
            await asyncio.sleep(ends_at - self._loop.time())  # the shell outside of an image may tell of it, too
            self._forget(number)
            self._say(f"got {number.name}, as the workers did")
        else:
            self._pass_on(number)
        self._looked_after.discard(number)
