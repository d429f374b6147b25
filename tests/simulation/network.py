"""The simulated network: which ways are open, and connections as the kernels of two machines have them.

Theory of operation. A way between two nodes may be closed in one direction. What is sent there meanwhile is
sent again by the kernel when it opens, unless the sender's kernel does not remember the connection any more.
A connection keeps its order and never says a thing twice. A machine without power answers nothing, a kernel
without the connection answers with a reset, and who has hung up hears nothing more.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from hpc_elastic.membership.messages import Dropped, Message, Refused, Welcome
from tests.simulation.clock import NEVER

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

CONNECT_BOUND_S = 2.0
HANGS_UP_WITHIN_S = 5.0
RESENT_WITHIN = 0.3  # of how long a way was closed: the kernel tries less and less often
END, ACCEPTED = "end", "accepted"  # besides messages


class Network:
    """The ways between all nodes."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._closed: dict[tuple[int, int], tuple[float, float]] = {}  # since and until when
        self.dice = random.Random(f"{run.scenario.seed}/network")

    def close(self, source: int, target: int, until: float) -> None:
        """Nothing gets through from source to target for a while."""
        if source != target:
            since, before = self._closed.get((source, target), (self._run.clock.now, 0.0))
            since = since if self._run.clock.now < before else self._run.clock.now
            self._closed[source, target] = since, max(before, until)

    def opens_at(self, source: int, target: int) -> float:
        return self._closed.get((source, target), (0.0, 0.0))[1]

    def was_closed_for(self, source: int, target: int) -> float:
        since, until = self._closed.get((source, target), (0.0, 0.0))
        return until - since

    def is_open(self, source: Agent, target: Agent) -> bool:
        """Whether what is sent now gets there."""
        return target.is_powered and self._run.clock.now >= self.opens_at(source.number, target.number)

    def calm_since(self, one: int, other: int) -> float:
        """Since when both ways are open, or will be."""
        return max(self.opens_at(one, other), self.opens_at(other, one))

    def delay_s(self) -> float:
        return self.dice.choice(self._run.scenario.delays_s)


class End:
    """One side of a connection, as the process there has it."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.other: End
        self.is_open = True
        self.on_message: Callable[[End, Message], object] = lambda _end, _message: None
        self.on_closed: Callable[[End, str, bool], object] = lambda _end, _why, _is_by_peer: None
        self._network = agent.run.network
        self._is_forgotten = False  # the kernel sends nothing again
        self._latest = 0.0
        self._queue: deque[Message | str] = deque()
        agent.ends[self] = None

    # What the process does.

    def send(self, message: Message | str) -> None:
        if self.is_open:
            self._put(message)

    def close(self) -> None:
        """Hangs up after what was sent is delivered."""
        if self.is_open:
            self._put(END)
            self._forget_end()

    def abort(self) -> None:
        """Hangs up at once; the kernel may know nothing of the connection from then on."""
        if self.is_open:
            self._is_forgotten = self._network.dice.random() < 0.5
            self.close()

    def reset_both(self) -> None:
        """Somebody between the two machines ends the connection."""
        self.agent.do(lambda: self._ends("connection reset by peer"))
        self.other.agent.do(lambda: self.other._ends("connection reset by peer"))

    def time_out(self, why: str) -> None:
        """This machine's own kernel gives the connection up; the other knows nothing of it."""
        self._is_forgotten = True
        self._queue.clear()
        self.agent.do(lambda: self._ends(why, is_by_peer=False))

    def hang_up(self) -> None:
        """Hangs up after the last words, and some time later without them."""
        self.close()
        self.agent.run.clock.after(HANGS_UP_WITHIN_S, self._forget)

    def _forget(self) -> None:
        self._is_forgotten = True

    def vanish(self) -> None:
        """The machine has no power."""
        self._forget_end()
        self._is_forgotten = True

    def _forget_end(self) -> None:
        self.is_open = False
        self.agent.ends.pop(self, None)

    # What the network does.

    def _put(self, item: Message | str) -> None:
        clock = self.agent.run.clock
        self._latest = max(self._latest, clock.now + self._network.delay_s())
        self._queue.append(item)
        clock.at(self._latest, self._arrive)

    def _arrive(self) -> None:
        """The next one in the queue: none overtakes another, however long the way was closed."""
        clock, here, there = self.agent.run.clock, self.agent, self.other.agent
        if not self._queue:
            return
        opens_at = self._network.opens_at(here.number, there.number)
        if not there.is_powered or (clock.now < opens_at and self._is_forgotten):
            self._queue.clear()
        elif opens_at == NEVER:
            return
        elif clock.now < opens_at:
            if self._latest < opens_at:  # the kernel's next try; the rest follows it at once
                closed_s = self._network.was_closed_for(here.number, there.number)
                self._latest = opens_at + self._network.dice.uniform(0, RESENT_WITHIN * closed_s)
            clock.at(self._latest, self._arrive)
        else:
            self.other._take(self._queue.popleft())

    def _take(self, item: Message | str) -> None:
        if not self.is_open:
            if item is not END:
                self._answer_reset()
        elif item is END:
            self.agent.do(lambda: self._ends("the other side closed the connection"))
        else:
            self.agent.do(lambda: self.on_message(self, item) if self.is_open else None)  # type: ignore[arg-type]

    def _answer_reset(self) -> None:
        other = self.other

        def reset() -> None:
            if self._network.is_open(self.agent, other.agent):
                other.agent.do(lambda: other._ends("connection reset by peer"))

        clock = self.agent.run.clock
        self._latest = max(self._latest, clock.now + self._network.delay_s())
        clock.at(self._latest, reset)

    def _ends(self, why: str, *, is_by_peer: bool = True) -> None:
        """A kernel has ended the connection, that of the other side most often."""
        if self.is_open:
            self._forget_end()
            self.on_closed(self, why, is_by_peer)


class Call:
    """One attempt to be taken in by the agent of another node.

    Args:
        agent: who calls.
        target: who is called.
        within_s: how long the answer may take; None: as long as that machine is there.
        answered: gets the connection, the first message, and when the join was sent by the caller's clock.
        failed: told why there is none.
    """

    def __init__(
        self,
        agent: Agent,
        target: Agent,
        *,
        within_s: float | None,
        answered: Callable[[End, Message, float], object],
        failed: Callable[[str], object],
    ) -> None:
        self._agent = agent
        self._target = target
        self._answered = answered
        self._failed = failed
        self._is_over = False
        self._is_connected = False
        self._asked_at = 0.0
        self._end: End | None = None
        self._network = agent.run.network
        agent.run.clock.after(self._network.delay_s(), self._knock)
        bound_s = CONNECT_BOUND_S if within_s is None else min(CONNECT_BOUND_S, within_s)
        agent.later(bound_s, lambda: None if self._is_connected else self.give_up("timed out"))
        if within_s is not None:
            agent.later(within_s, lambda: self.give_up("no answer"))

    def give_up(self, why: str) -> None:
        """Nobody waits for the answer any more."""
        if not self._is_over:
            self._is_over = True
            if self._end is not None:
                self._agent.parted_at = self._agent.run.clock.now
                if self._is_connected:
                    self._end.send(Dropped(reason=why))
                self._end.hang_up()
            self._failed(why)

    def _knock(self) -> None:
        agent, target = self._agent, self._target
        if self._is_over or not self._network.is_open(agent, target) or not agent.is_running:
            return
        if not target.is_running:
            if self._network.is_open(target, agent):
                agent.run.clock.after(self._network.delay_s(), lambda: agent.do(lambda: self.give_up("refused")))
            return
        self._end, theirs = End(agent), End(target)
        self._end.other, theirs.other = theirs, self._end
        self._end.on_message, self._end.on_closed = self._hears, lambda _end, why, _by_peer: self.give_up(why)
        target.do(lambda: self._accept(theirs))

    def _accept(self, theirs: End) -> None:
        theirs.send(ACCEPTED)
        self._target.accepts(theirs)

    def _hears(self, end: End, message: Message | str) -> None:
        if self._is_over:
            return
        if message == ACCEPTED:
            self._is_connected = True
            self._asked_at = self._agent.now
            end.send(self._agent.member.asks())
            return
        self._is_over = True
        assert isinstance(message, (Welcome, Refused))
        self._answered(end, message, self._asked_at)
