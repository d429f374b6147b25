"""Drives the saves that people ask for: one at a time, each in the world that runs when it begins.

Theory of operation. The manifest is written, and what is left of other saves removed, in a thread of its own, in which
no claim and no result waits: to remove the files of thousands of ranks takes a file server seconds. The answers go the
way of all events, but are tried again: the disk may be full, which is why there is no state.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.retries import retry
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.tasks import Tasks
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.membership.actions import Note, SendToMember
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.messages import Message, Saved
from hpc_elastic.membership.state_save import NEVER, CompleteSave, SaveAction, SaveOver, StateSave
from hpc_elastic.rundir.records import Request, utc_text
from hpc_elastic.rundir.state_records import SaveManifest

USUAL_S = 600.0  # for a request without a time of its own
LONGEST_S = 86400.0
ANSWERS_FOR_S = 60.0  # an answer that the file system refuses is tried again for so long
CLOSES_WITHIN_S = 2.0
NO_WORKERS = "its workers do not run right now: they start, restart or are being stopped"
INTERRUPTED = "its workers were stopped or restarted before the state was complete"
BUSY = "another `hpc-elastic save` is under way"


class StateSaves:
    """The saves of one head.

    Args:
        head: the machine, which knows what runs.
        journal: the run directory.
        disk: the thread for access to the run directory, in which events are written.
        send: sends a message to a member.
        say: takes a line for the agent's log.
    """

    def __init__(
        self,
        head: Head,
        *,
        journal: Journal,
        disk: BackgroundThread,
        send: Callable[[str, Message], None],
        say: Callable[[str], None],
    ) -> None:
        self._head = head
        self._attempts = head.attempt  # that others have opened
        self._journal = journal
        self._disk = disk
        self._send = send
        self._say = say
        self._files: BackgroundThread | None = None  # writes manifests, and removes files
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._save: StateSave | None = None
        self._request: Request | None = None
        self._timer: asyncio.TimerHandle | None = None

    def asked(self, request: Request) -> None:
        """Begin a save, or say why there can be none now."""
        world = self._head.running
        if world is None and 0 < self._head.attempt == self._attempts:
            return  # the head before this one may be at work still, and is asked as well
        if self._save is not None or world is None:
            self._tell_failed(request, NO_WORKERS if self._save is None else BUSY)
            return
        within_s = USUAL_S if request.seconds_left is None else min(max(0.0, request.seconds_left), LONGEST_S)
        now = self._loop.time()
        self._request = request
        self._save = StateSave(world, request=request.id or "", now=now, within_s=within_s)
        self._act(self._save.begin(now))

    def received(self, node: str, message: Message) -> None:
        """Handle the answer of a member."""
        if self._save is not None:
            self._act(self._save.received(node, message, self._loop.time()))
        is_of_now = self._request is not None and isinstance(message, Saved) and message.request == self._request.id
        if isinstance(message, Saved) and message.files and not is_of_now:  # it was given up before this node was done
            self._clear_up(message.request)

    def look(self) -> None:
        """Give the save up if other workers run than when it began."""
        if self._save is None:
            return
        world = self._head.running
        if world is None or world.attempt != self._save.attempt:
            self._act(self._save.give_up(INTERRUPTED))

    async def close(self) -> None:
        """End without a word; members let go of what they have pinned by themselves."""
        self._save = None
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.cancel()
        if self._files is not None:
            await self._files.close(CLOSES_WITHIN_S)

    def run_ended(self) -> None:
        """Remove what is left of saves that were given up: no later head does, where the job does not start again."""
        if self._files is not None:
            self._files.best_effort(self._journal.remove_incomplete_saves)

    def _act(self, actions: Sequence[SaveAction]) -> None:
        for action in actions:
            if isinstance(action, SendToMember):
                self._send(action.node, action.message)
            elif isinstance(action, CompleteSave):
                self._tasks.run(self._complete(action))
            else:
                self._over(action)
        if self._timer is not None:
            self._timer.cancel()
        at = NEVER if self._save is None else self._save.next_tick()
        self._timer = self._loop.call_at(at, self._tick) if at < NEVER else None

    def _tick(self) -> None:
        if self._save is not None:
            self._act(self._save.tick(self._loop.time()))

    async def _complete(self, action: CompleteSave) -> None:
        save, request = self._save, self._request
        if save is None or request is None:
            return
        manifest = SaveManifest(
            request=request.id or "",
            by=request.by,
            time=utc_text(time.time()),
            ended=action.ended,
            states=action.states,
            files=action.files,
        )
        try:
            problem = await self._thread().call(lambda: self._journal.complete_save(action.folder, manifest))
        except RunDirectoryError as error:
            problem = error.message
        if save is self._save:
            self._act(save.completed(problem))

    def _over(self, action: SaveOver) -> None:
        request, self._save, self._request = self._request, None, None
        if request is None:
            return
        if action.problem is not None:
            if action.folder is not None:
                self._clear_up(request.id or "")
            self._tell_failed(request, action.problem)
            return
        steps = sorted({state.step for state in action.states})
        more: dict[str, Any] = {"request": request.id, "folder": action.folder, "steps": steps}
        message = f"{request.by} had step {', '.join(map(str, steps))} written to memory/saved/{action.folder}"
        self._answer(Note(name="state.saved", message=message, attempt=self._head.attempt, metadata=more))

    def _tell_failed(self, request: Request, problem: str) -> None:
        message = f"no state is written for {request.by}: {problem}"
        more = {"request": request.id, "problem": problem}
        self._answer(Note(name="state.not_saved", message=message, attempt=self._head.attempt, metadata=more))

    def _clear_up(self, request: str) -> None:
        """Remove what is left of this request, and not of another one, which may be under way already."""
        self._thread().best_effort(lambda: self._journal.remove_incomplete_saves(request))

    def _thread(self) -> BackgroundThread:
        if self._files is None:
            self._files = BackgroundThread("saves", self._loop)
        return self._files

    def _answer(self, note: Note) -> None:
        moment = time.time_ns()

        def write() -> asyncio.Future[None]:
            return self._disk.call(lambda: self._journal.answer(note, moment))

        self._tasks.run(self._repeat([write()], write))  # the first one is in the queue even if this head ends now

    async def _repeat(self, first: list[asyncio.Future[None]], write: Callable[[], asyncio.Future[None]]) -> None:
        with contextlib.suppress(RunDirectoryError):
            await retry(lambda: first.pop() if first else write(), say=self._say, within_s=ANSWERS_FOR_S)
