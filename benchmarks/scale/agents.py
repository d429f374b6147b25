"""The agents' process of `rendezvous_scale`: real members on real connections, with pretended workers."""

from __future__ import annotations

import contextlib
import heapq
import math
import os
import select
import socket
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe

from benchmarks.scale.setting import ADDRESS, SCOPE, SECRET, Setting, carry_out
from hpc_elastic.membership.authentication import NONCE_BYTES, Session, Side
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import Beat, Echo, Join, Message, Welcome, decode_message, encode_message
from hpc_elastic.membership.timing import Timing

RECEIVED_AT_ONCE = 64 * 1024
DIALS_EVERY_S = 0.001
DIALLING_AT_ONCE = 1024  # a job's tasks do not start all at the same moment either


def run_agents(pipe: Pipe, setting: Setting, port: int) -> None:
    """Says when it is there, answers `connect` once all have joined, `usage` and `leave`, and ends with its pipe."""
    SimulatedAgents(pipe, setting, port).run()


class SimulatedAgent:
    """A member and its connection."""

    __slots__ = ("join", "member", "session", "socket")

    def __init__(self, join: Join, lease_s: float) -> None:
        self.join = join
        self.member = Member(join, run="run", timing=Timing(lease_s=lease_s))
        self.session = Session(Side.DIALLING, secret=SECRET, scope=SCOPE, nonce=os.urandom(NONCE_BYTES))
        self.socket = socket.socket()
        self.socket.setblocking(False)

    def dial(self, port: int) -> None:
        self.socket.connect_ex((ADDRESS, port))

    def connected(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.send(self.session.open())

    def send(self, message: Message) -> None:
        self.socket.send(self.session.send(encode_message(message)))

    def read(self) -> Iterator[Message]:
        data = self.socket.recv(RECEIVED_AT_ONCE)
        if not data:
            raise SystemExit(f"the head closed the connection of {self.join.node}")
        was_authenticated = self.session.is_authenticated
        answer, bodies = self.session.receive(data)
        if answer:
            self.socket.send(answer)
        if self.session.is_authenticated and not was_authenticated:
            self.send(self.join)
        return map(decode_message, bodies)


class SimulatedAgents:
    """All agents but the head's, in one thread."""

    def __init__(self, pipe: Pipe, setting: Setting, port: int) -> None:
        self._pipe, self._port, self._spread_s = pipe, port, setting.spread_s
        agents = [SimulatedAgent(setting.join(number), setting.lease_s) for number in range(1, setting.nodes)]
        self._agents = {agent.socket.fileno(): agent for agent in agents}
        self._numbers = list(self._agents)
        self._dialled = 0
        self._ticks: list[tuple[float, int]] = []
        self._messages: Counter[type] = Counter()
        self._began = math.inf
        self._poll = select.epoll()
        self._poll.register(pipe.fileno(), select.EPOLLIN)

    def run(self) -> None:
        self._pipe.send(True)
        while True:
            for number, what in self._poll.poll(self._wait_s()):
                if number == self._pipe.fileno():
                    if not self._answer(self._pipe.recv()):
                        return
                elif what & select.EPOLLOUT:
                    self._agents[number].connected()
                    self._poll.modify(number, select.EPOLLIN)
                else:
                    self._read(number)
            self._dial()
            self._beat()

    def _wait_s(self) -> float:
        if self._dialled < len(self._numbers) and self._began < math.inf:
            return DIALS_EVERY_S
        return max(0.0, self._ticks[0][0] - time.monotonic()) if self._ticks else -1

    def _answer(self, asked: str) -> bool:
        if asked == "connect":
            self._began = time.monotonic()
            return True  # the answer goes when all are welcome
        beats = self._messages[Beat]
        messages = self._messages.total() - beats - self._messages[Echo]
        self._pipe.send({"cpu_s": time.process_time(), "messages": messages, "beats": beats})
        if asked != "leave":
            return True
        with contextlib.suppress(EOFError):  # the connections stay open until the head has left, or it would lose them
            self._pipe.recv()
        return False

    def _dial(self) -> None:
        """Whose turn it is; those who have dialled and are not welcome yet are never very many."""
        passed_s = time.monotonic() - self._began
        due = len(self._numbers) * min(1.0, passed_s / self._spread_s if self._spread_s else 1.0)
        while self._dialled < min(due, len(self._ticks) + DIALLING_AT_ONCE):
            number = self._numbers[self._dialled]
            self._agents[number].dial(self._port)
            self._poll.register(number, select.EPOLLOUT)
            self._dialled += 1

    def _read(self, number: int) -> None:
        agent, now = self._agents[number], time.monotonic()
        for message in agent.read():
            self._messages[type(message)] += 1
            if isinstance(message, Welcome):
                agent.member.connected(now, is_joined=True)
            for told in carry_out(agent.member, agent.member.received(message, now)):
                self._messages[type(told)] += 1
                agent.send(told)
            if isinstance(message, Welcome):
                self._is_welcome(number)

    def _is_welcome(self, number: int) -> None:
        """From now on it beats."""
        heapq.heappush(self._ticks, (self._agents[number].member.next_tick(), number))
        if len(self._ticks) == len(self._agents):
            self._pipe.send(time.monotonic() - self._began)

    def _beat(self) -> None:
        now = time.monotonic()
        while self._ticks and self._ticks[0][0] <= now:
            number = self._ticks[0][1]
            agent = self._agents[number]
            for message in carry_out(agent.member, agent.member.tick(now)):
                self._messages[type(message)] += 1
                agent.send(message)
            heapq.heapreplace(self._ticks, (agent.member.next_tick(), number))
