"""Drives the saves that people ask for: one at a time, each in the world that runs when it begins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.tasks import Tasks
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.membership.actions import Note, SendToMember
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.messages import Message
from hpc_elastic.membership.state_save import NEVER, CompleteSave, SaveAction, SaveOver, StateSave
from hpc_elastic.rundir.records import Request, utc_text
from hpc_elastic.rundir.state_records import SaveManifest

USUAL_S = 600.0  # for a request without a time of its own
LONGEST_S = 86400.0
NO_WORKERS = "its workers do not run right now: they start, restart or are being stopped"
INTERRUPTED = "its workers were stopped or restarted before the state was complete"
BUSY = "another `hpc-elastic save` is under way"


class StateSaves:
    """The saves of one head.

    Args:
        head: the machine, which knows what runs.
        journal: the run directory.
        disk: the thread for access to the run directory.
        send: sends a message to a member.
        note: writes an event.
    """

    def __init__(
        self,
        head: Head,
        *,
        journal: Journal,
        disk: BackgroundThread,
        send: Callable[[str, Message], None],
        note: Callable[[Note], None],
    ) -> None:
        self._head = head
        self._journal = journal
        self._disk = disk
        self._send = send
        self._note = note
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._save: StateSave | None = None
        self._request: Request | None = None
        self._timer: asyncio.TimerHandle | None = None

    def asked(self, request: Request) -> None:
        """Begin a save, or say why there can be none now."""
        world = self._head.running
        if world is None or self._save is not None:
            self._tell_failed(request, NO_WORKERS if world is None else BUSY)
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
            problem = await self._disk.call(lambda: self._journal.complete_save(action.folder, manifest))
        except RunDirectoryError as error:
            problem = error.message
        if save is self._save:
            self._act(save.completed(problem))

    def _over(self, action: SaveOver) -> None:
        request, self._save, self._request = self._request, None, None
        if request is None:
            return
        if action.problem is not None:
            self._tell_failed(request, action.problem)
            return
        steps = sorted({state.step for state in action.states})
        more: dict[str, Any] = {"request": request.id, "folder": action.folder, "steps": steps}
        message = f"{request.by} had step {', '.join(map(str, steps))} written to memory/saved/{action.folder}"
        self._note(Note(name="state.saved", message=message, attempt=self._head.attempt, metadata=more))

    def _tell_failed(self, request: Request, problem: str) -> None:
        self._disk.best_effort(self._journal.remove_incomplete_saves)
        message = f"no state is written for {request.by}: {problem}"
        more = {"request": request.id, "problem": problem}
        self._note(Note(name="state.not_saved", message=message, attempt=self._head.attempt, metadata=more))
