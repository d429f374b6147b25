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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpc_elastic.agent.keeper.channel import Channel, dial_keeper
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.children import Child, adopt_process
from hpc_elastic.agent.system.processes import ATTEMPT_VARIABLE
from hpc_elastic.frames import receive_frame, send_frame
from hpc_elastic.membership.authentication import Scope
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.rundir.state_records import HeldState, StateVersion

ANSWERS_WITHIN_S = 2.0
LEAVES_WITHIN_S = 2.0
TAKES_WITHIN_S = 2.0


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
    `is_source`: other nodes get the state that the attempt begins with from this one.
    """

    attempt: int
    part: str
    shared: str
    version: StateVersion | None
    copies_to: Endpoint | None
    is_source: bool = False


class KeeperLink:
    """The agent's handle of its keeper (see `agent.keeper.process`), which ends when this agent does, in whatever way.

    One that has ended is started again with the next attempt; the copies that it held are lost.

    Args:
        settings: what it is told once.
        listener: the listening socket on which other keepers dial, which this object owns.
        thread: starts it, and talks to it.
        say: takes a line for the agent's log; may be called in any thread.
    """

    def __init__(
        self, settings: KeeperSettings, listener: socket.socket, *, thread: BackgroundThread, say: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._thread = thread
        self._say = say
        self._child: Child | None = None
        self._link: socket.socket | None = None
        self._answers: list[dict[str, Any]] = []
        self._answered = threading.Condition()
        self._question = 0  # an answer that came too late is none to the next question

    @property
    def port(self) -> int:
        """The port on which the keeper listens, or will listen."""
        return int(self._listener.getsockname()[1])

    @property
    def is_running(self) -> bool:
        """Whether there is a keeper."""
        return self._link is not None

    def pids(self) -> list[int]:
        """Return the keeper's process id, if there is one."""
        return [self._child.pid] if self._child is not None else []

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
        """Return the states of other nodes that are here; none if the keeper does not answer in time."""
        if not self.is_running:
            return ()
        return await asyncio.get_running_loop().run_in_executor(None, self._ask)

    async def close(self) -> None:
        """End the keeper."""
        await self._thread.call(self._end)
        self._listener.close()

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
        }
        try:
            for _ in range(2):  # the one that there is may have just ended
                try:
                    self._start()
                    self._tell(message, memories)
                    return
                except OSError as error:
                    problem = error.strerror or str(error)
                    self._end()
            self._say(f"no copies of training states are kept on other nodes: the keeper cannot be started ({problem})")
        finally:
            for descriptor in memories:
                os.close(descriptor)

    def _tell(self, message: dict[str, Any], memories: Sequence[int]) -> None:
        if self._link is None:
            return
        for descriptor in memories:
            send_frame(self._link, {"do": "memory"}, [descriptor])
        send_frame(self._link, message)

    def _start(self) -> None:
        """Start a keeper, if there is none.

        Raises:
            OSError: it cannot be started.
        """
        if self._child is not None and not _has_ended(self._child, 0.0):
            return
        self._end()
        ours, theirs = socket.socketpair()
        # A keeper that hangs takes nothing: it must not hold up the thread in which workers are started and stopped.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(TAKES_WITHIN_S), 0))
        launch = os.path.join(self._settings.package_dir, "launch.py")
        command = [sys.executable, launch, "hpc_elastic.agent.keeper.process"]
        environment = {name: value for name, value in os.environ.items() if name != ATTEMPT_VARIABLE}
        with theirs:
            try:
                process = subprocess.Popen(command, stdin=theirs.fileno(), env=environment, start_new_session=True)
                self._child = adopt_process(process)
            except OSError:
                ours.close()
                raise
        self._link = ours
        threading.Thread(target=self._listen, args=(ours,), name="keeper", daemon=True).start()
        settings = self._settings
        scope = {
            "run": settings.scope.run,
            "job_id": settings.scope.job_id,
            "restart_count": settings.scope.restart_count,
        }
        told = {"do": "serve", "secret": settings.secret.hex(), "scope": scope}
        send_frame(ours, {**told, "rate": settings.rate, "most": settings.most}, [self._listener.fileno()])

    def _listen(self, link: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while (frame := receive_frame(link)) is not None:
                message, _ = frame
                if "say" in message:
                    self._say(str(message["say"]))
                    continue
                self._take_answer(message)
        self._take_answer({"copies": []})  # nobody waits for one that has ended

    def _take_answer(self, message: dict[str, Any]) -> None:
        with self._answered:
            if message.get("question") not in (None, self._question):
                return
            self._answers.append(message)
            self._answered.notify_all()

    def _ask(self) -> tuple[HeldState, ...]:
        link = self._link
        with self._answered:
            self._question += 1
            self._answers.clear()
            try:
                if link is None:
                    return ()
                send_frame(link, {"do": "copies", "question": self._question})
            except OSError:
                return ()
            if not self._answered.wait_for(lambda: bool(self._answers), ANSWERS_WITHIN_S):
                self._say("the keeper of training states does not answer: its copies are not counted")
                return ()
            answer = self._answers.pop()
        return tuple(
            HeldState(attempt=attempt, step=step, part=part, is_copy=True) for part, attempt, step in answer["copies"]
        )

    def _end(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()
        child, self._child = self._child, None
        if child is not None:
            if not _has_ended(child, LEAVES_WITHIN_S):
                child.kill()
            if _has_ended(child, LEAVES_WITHIN_S):  # else it hangs in the kernel
                child.collect()


def _has_ended(child: Child, within_s: float) -> bool:
    ending = select.poll()
    ending.register(child.pidfd, select.POLLIN)
    return bool(ending.poll(within_s * 1000))
