"""The agent's side of the keeper: starts it, tells it of each attempt, and asks which copies it has."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpc_elastic.agent.keeper.channel import Channel, dial_keeper
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.children import Child, adopt_process
from hpc_elastic.agent.system.processes import ATTEMPT_VARIABLE
from hpc_elastic.frames import MOST_DESCRIPTORS, receive_frame, send_frame
from hpc_elastic.membership.authentication import Scope
from hpc_elastic.membership.held_states import part_of, shared_place
from hpc_elastic.membership.messages import Assign
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.rundir.state_records import HeldState, StateVersion
from hpc_elastic.state_memory import bytes_taken

ANSWERS_WITHIN_S = 2.0
LEAVES_WITHIN_S = 2.0
TAKES_WITHIN_S = 2.0
SAYS_WITHIN_S = 10.0  # a frame that it has begun
ASKS_EVERY_S = 2.0
ASKED_AT_MOST = 6  # times in a row, without an answer: a keeper of an agent that is busy gets little of the processor
STARTS_AGAIN_AFTER_S = 30.0  # from the start of the one before, if that has ended by itself
ENDS_WITHIN_S = 0.2  # after its last word


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperSettings:
    """What a keeper is told once: with whom it talks, how fast, and how much memory states may take.

    `rate` is in bytes a second, None for no limit; `most` in bytes.
    """

    package_dir: str
    secret: bytes
    scope: Scope
    rate: float | None
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAttempt:
    """An attempt as a keeper is told of it.

    `part` and `shared` are whose the states of this node are, of each rank's own and of one that is the same on all.
    `is_source`: other nodes get the state that the attempt begins with from this one. `takes_copies`: there is memory
    for copies of other nodes' states here.
    """

    attempt: int
    part: str
    shared: str
    version: StateVersion | None
    copies_to: Endpoint | None
    is_source: bool = False
    takes_copies: bool = True


def kept_attempt(assign: Assign, *, takes_copies: bool) -> KeptAttempt:
    """Return what the keeper of this node is told of an attempt."""
    return KeptAttempt(
        attempt=assign.attempt,
        part=part_of(assign),
        shared=shared_place(assign.role),
        version=assign.state,
        copies_to=assign.copies_to,
        is_source=assign.is_source,
        takes_copies=takes_copies,
    )


@dataclass(slots=True, kw_only=True)
class _Running:
    """A keeper that runs, or has run until a moment ago; `is_over` is set when nothing is wanted of it any more."""

    child: Child
    link: socket.socket
    began: float
    sending: threading.Lock
    is_over: threading.Event
    listening: threading.Thread | None = None

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message.

        Raises:
            OSError: it takes nothing any more.
        """
        with self.sending:
            send_frame(self.link, message, descriptors)


class KeeperLink:
    """The agent's handle of its keeper (see `agent.keeper.process`), which ends when this agent does, in whatever way.

    A thread listens to it, and asks for a sign of life when it is silent. One that has ended, or that is silent for
    too long, is replaced: the next one is told of the attempt, and gets the memories of copies, whose descriptors this
    object has, too.

    Args:
        settings: what it is told once.
        listener: the listening socket on which other keepers dial, which this object owns.
        thread: starts it, and talks to it.
        say: takes a line for the agent's log; may be called in any thread.
        asks_every_s: after how much silence it is asked for a sign of life.
    """

    def __init__(
        self,
        settings: KeeperSettings,
        listener: socket.socket,
        *,
        thread: BackgroundThread,
        say: Callable[[str], None],
        asks_every_s: float = ASKS_EVERY_S,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._thread = thread
        self._say = say
        self._asks_every_s = asks_every_s
        self._running: _Running | None = None
        self._answers: list[dict[str, Any]] = []
        self._answered = threading.Condition()
        self._question = 0  # an answer that came too late is none to the next question
        self._attempt: tuple[dict[str, Any], list[int]] | None = None  # as it was told of last, with the memories
        self._copies: dict[str, list[int]] = {}  # the memories of copies, by part; of the thread that listens

    @property
    def port(self) -> int:
        """The port on which the keeper listens, or will listen."""
        return int(self._listener.getsockname()[1])

    @property
    def is_running(self) -> bool:
        """Whether there is a keeper."""
        return self._running is not None

    def pids(self) -> list[int]:
        """Return the keeper's process id, if there is one."""
        running = self._running
        return [running.child.pid] if running is not None else []

    def bytes_taken(self) -> int:
        """Return how many bytes the copies of other nodes' states take here; any thread may ask."""
        taken = 0
        for descriptor in [each for memories in list(self._copies.values()) for each in memories]:
            with contextlib.suppress(OSError):  # it was freed just now
                taken += bytes_taken(descriptor)
        return taken

    def dial(self, address: str, port: int) -> Channel:
        """Connect to another node's keeper.

        Raises:
            ChannelError: nothing answers there, or it is no keeper of this run.
        """
        return dial_keeper(address, port, secret=self._settings.secret, scope=self._settings.scope)

    async def start(self) -> None:
        """Start the keeper, so that it is ready when the first state is saved; `begin` tries again if it cannot be."""

        def start() -> None:
            with contextlib.suppress(OSError):
                self._start()

        await self._thread.call(start)

    async def begin(self, attempt: KeptAttempt, memories: Sequence[int]) -> None:
        """Tell the keeper of an attempt, with the memories of its ranks; the descriptors stay the caller's."""
        copies = [os.dup(descriptor) for descriptor in memories]
        await self._thread.call(lambda: self._begin(attempt, copies))

    async def copies(self) -> tuple[HeldState, ...]:
        """Return the states of other nodes that are here; none if no keeper answers in time.

        One that does not is replaced, and the next one is asked.
        """
        loop = asyncio.get_running_loop()
        if (running := self._running) is None:
            return ()
        if (held := await loop.run_in_executor(None, self._ask)) is None:
            await self._thread.call(lambda: self._replace(running))
            held = await loop.run_in_executor(None, self._ask)
        if held is None:
            self._say("the keeper of training states does not answer: its copies are not counted")
        return held or ()

    async def close(self) -> None:
        """End the keeper."""
        await self._thread.call(self._close)
        self._listener.close()

    def _close(self) -> None:
        self._end()
        _, memories = self._attempt or ({}, [])
        for descriptor in [*memories, *(each for copy in self._copies.values() for each in copy)]:
            os.close(descriptor)
        self._attempt = None
        self._copies.clear()

    def _begin(self, attempt: KeptAttempt, memories: list[int]) -> None:
        version, to = attempt.version, attempt.copies_to
        message = {
            "do": "begin",
            "attempt": attempt.attempt,
            "part": attempt.part,
            "shared": attempt.shared,
            "version": None if version is None else [version.attempt, version.step],
            "copies_to": None if to is None else [to.address, to.port],
            "is_source": attempt.is_source,
            "takes_copies": attempt.takes_copies,
        }
        _, before = self._attempt or ({}, [])
        problem = ""
        for _ in range(2):  # the one that there is may have just ended
            try:
                self._start()
                self._attempt = message, memories
                self._tell_attempt()
                break
            except OSError as error:
                problem = error.strerror or str(error)
                self._end()
        else:
            self._say(f"no copies of training states are kept on other nodes: the keeper cannot be started ({problem})")
        self._attempt = message, memories
        for descriptor in before:
            os.close(descriptor)

    def _tell_attempt(self) -> None:
        """Tell the keeper of the attempt.

        Raises:
            OSError: it takes nothing any more.
        """
        if self._running is None or self._attempt is None:
            return
        message, memories = self._attempt
        for descriptor in memories:
            self._running.send({"do": "memory"}, [descriptor])
        self._running.send(message)

    def _replace(self, running: _Running) -> None:
        """Start another keeper in the place of this one, unless that has been done; in the thread."""
        if self._running is not running:
            return
        has_ended = _has_ended(running.child, ENDS_WITHIN_S)
        self._end(is_hung=True)
        what = "has ended" if has_ended else "does not answer, and is ended"
        try:
            self._start()
        except OSError as error:
            self._say(f"the keeper of training states {what}; another one cannot be started ({error.strerror})")
        else:
            self._say(f"the keeper of training states {what}; another one is started, with the copies that it had")

    def _start(self) -> None:
        """Start a keeper, if there is none, with all that the one before was told and had.

        Raises:
            OSError: it cannot be started.
        """
        if self._running is not None and not _has_ended(self._running.child, 0.0):
            return
        self._end()
        ours, theirs = socket.socketpair()
        # A keeper that hangs takes nothing: it must not hold up the thread in which workers are started and stopped.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(TAKES_WITHIN_S), 0))
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(SAYS_WITHIN_S), 0))
        launch = os.path.join(self._settings.package_dir, "launch.py")
        command = [sys.executable, launch, "hpc_elastic.agent.keeper.process"]
        environment = {name: value for name, value in os.environ.items() if name != ATTEMPT_VARIABLE}
        with theirs:
            try:
                process = subprocess.Popen(command, stdin=theirs.fileno(), env=environment, start_new_session=True)
                child = adopt_process(process)
            except OSError:
                ours.close()
                raise
        running = self._running = _Running(
            child=child, link=ours, began=time.monotonic(), sending=threading.Lock(), is_over=threading.Event()
        )
        settings = self._settings
        scope = {
            "run": settings.scope.run,
            "job_id": settings.scope.job_id,
            "restart_count": settings.scope.restart_count,
        }
        told = {"do": "serve", "secret": settings.secret.hex(), "scope": scope}
        running.send({**told, "rate": settings.rate, "most": settings.most})
        self._tell_attempt()
        for part, memories in self._copies.items():
            for first in range(0, len(memories), MOST_DESCRIPTORS):
                some, is_last = memories[first : first + MOST_DESCRIPTORS], first + MOST_DESCRIPTORS >= len(memories)
                running.send({"do": "restore", "part": part, "is_last": is_last}, some)
        running.send({"do": "listen"}, [self._listener.fileno()])
        running.listening = threading.Thread(target=self._listen, args=(running,), name="keeper", daemon=True)
        running.listening.start()

    def _listen(self, running: _Running) -> None:
        """Listen to a keeper as long as it answers, and have it replaced then."""
        with contextlib.suppress(OSError, ValueError):
            self._hear_until_silent(running)
        self._take_answer({})  # nobody waits for one that has ended
        if running.is_over.is_set():
            return
        again_s = STARTS_AGAIN_AFTER_S - (time.monotonic() - running.began)
        if not running.is_over.wait(max(0.0, again_s) if _has_ended(running.child, ENDS_WITHIN_S) else 0.0):
            self._thread.best_effort(lambda: self._replace(running))

    def _hear_until_silent(self, running: _Running) -> None:
        """Hear what a keeper says, until it has ended, or is silent although it was asked some times.

        Times are counted, not seconds: an agent that was frozen itself has not listened.
        """
        coming, asked = select.poll(), 0
        coming.register(running.link, select.POLLIN)
        while asked < ASKED_AT_MOST:
            if not coming.poll(self._asks_every_s * 1000):
                asked += 1
                with contextlib.suppress(OSError):
                    running.send({"do": "answer"})
                continue
            if (frame := receive_frame(running.link)) is None:
                return
            self._hear(*frame)
            asked = 0

    def _hear(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "say" in message:
            self._say(str(message["say"]))
        elif "opened" in message:
            memories = self._copies.setdefault(message["opened"], [])
            if message["is_first"]:
                self._forget(message["opened"])
                memories = self._copies[message["opened"]] = []
            memories += descriptors
        elif "freed" in message:
            self._forget(message["freed"])
        elif "copies" in message:
            self._take_answer(message)

    def _forget(self, part: str) -> None:
        for descriptor in self._copies.pop(part, ()):
            os.close(descriptor)

    def _take_answer(self, message: dict[str, Any]) -> None:
        with self._answered:
            if message.get("question") not in (None, self._question):
                return
            self._answers.append(message)
            self._answered.notify_all()

    def _ask(self) -> tuple[HeldState, ...] | None:
        """Return which copies the keeper has, None if it does not answer in time."""
        running = self._running
        with self._answered:
            self._question += 1
            self._answers.clear()
            try:
                if running is None:
                    return None
                running.send({"do": "copies", "question": self._question})
            except OSError:
                return None
            if not self._answered.wait_for(lambda: bool(self._answers), ANSWERS_WITHIN_S):
                return None
            answer = self._answers.pop()
        if "copies" not in answer:
            return None
        return tuple(
            HeldState(attempt=attempt, step=step, part=part, is_copy=True) for part, attempt, step in answer["copies"]
        )

    def _end(self, *, is_hung: bool = False) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        running.is_over.set()
        if is_hung:
            running.child.kill()
        with contextlib.suppress(OSError):
            running.link.shutdown(socket.SHUT_RDWR)
        if running.listening is not None:
            running.listening.join(LEAVES_WITHIN_S)
        running.link.close()
        if not is_hung and not _has_ended(running.child, LEAVES_WITHIN_S):
            running.child.kill()
        if _has_ended(running.child, LEAVES_WITHIN_S):  # else it hangs in the kernel
            running.child.collect()


def _has_ended(child: Child, within_s: float) -> bool:
    ending = select.poll()
    ending.register(child.pidfd, select.POLLIN)
    return bool(ending.poll(within_s * 1000))
