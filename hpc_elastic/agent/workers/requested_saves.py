"""Pins a training state on this node while its ranks go on, and writes it to the run directory, as the head asks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from hpc_elastic.agent.system.tasks import Tasks
from hpc_elastic.agent.workers.rank_states import RankStates
from hpc_elastic.agent.workers.state_files import StateGoneError, StatePart, write_parts
from hpc_elastic.membership.messages import Message, Pinned, PinState, Saved, SaveState, UnpinState
from hpc_elastic.rundir.layout import RunLayout

LOOKS_EVERY_S = 0.02
GONE = "the state is not in memory any more"
AT_WORK = "this node still writes the state of an earlier request: its file system is slow, or hangs"


class RequestedSaves:
    """This node's part of the saves that people ask for.

    Nothing here waits for a disk but a thread of its own, which the end of the agent does not wait for.

    Args:
        states: the memories of the node's ranks.
        layout: the run directory.
    """

    def __init__(self, states: RankStates, layout: RunLayout) -> None:
        self._states = states
        self._layout = layout
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._request: str | None = None  # whose state is pinned
        self._number = 0
        self._release: asyncio.TimerHandle | None = None
        self._writing: threading.Thread | None = None
        self.answer: Callable[[Message], None] = lambda _: None  # sends a message to the head

    def received(self, message: PinState | SaveState | UnpinState) -> None:
        """Handle a message of the head."""
        if isinstance(message, PinState):
            self._begin(message)
            self._tasks.run(self._pin(message))
        elif isinstance(message, SaveState):
            self._save(message)
        elif message.request == self._request:
            self._end()

    async def close(self) -> None:
        """Let go of what is pinned, and wait for nothing else."""
        self._end()
        await self._tasks.cancel()

    def _begin(self, message: PinState) -> None:
        self._end()
        self._request, self._number = message.request, message.number
        self._release = self._loop.call_later(max(0.0, message.within_s), self._end)  # if no head lives to say it

    def _end(self) -> None:
        if self._release is not None:
            self._release.cancel()
        if self._request is not None:
            self._states.unpin()
        self._request, self._release = None, None

    def _is_current(self, message: PinState | SaveState) -> bool:
        return (message.request, message.number) == (self._request, self._number)

    async def _pin(self, message: PinState) -> None:
        """Pin a state, which the ranks may have still to save, and tell the head what they hold from it on."""
        while self._is_current(message):
            held = self._states.pin(message.first)
            if held or message.first is None:
                self.answer(Pinned(request=message.request, number=message.number, held=held))
                return
            await asyncio.sleep(LOOKS_EVERY_S)

    def _save(self, message: SaveState) -> None:
        if not self._is_current(message):
            return
        saved = Saved(request=message.request, number=message.number, files={})
        parts = [] if message.flush is None else self._states.parts_of(message.flush, self._layout)
        is_here = any(state.version == message.version for state in self._states.hold())
        if not is_here or any(part.state is None for part in parts):
            self.answer(replace(saved, problem=GONE, is_gone=True))
            return
        self._states.make_pin_firm(message.version)
        if not parts:
            self.answer(saved)
            return
        if self._writing is not None and self._writing.is_alive():
            self.answer(replace(saved, problem=AT_WORK))
            return
        # An attempt that ends meanwhile may close these memories, and their numbers be those of other files then.
        own: list[StatePart] = []
        folder = self._layout.saved_states(message.folder)
        try:
            for part in parts:
                own.append(replace(part, descriptor=os.dup(part.descriptor)))
            writing = threading.Thread(target=self._write, args=(message, folder, own, saved), name="save", daemon=True)
            writing.start()
        except (OSError, RuntimeError) as error:  # there can be no more descriptors, or threads
            _close(own)
            self.answer(replace(saved, problem=str(error)))
        else:
            self._writing = writing

    def _write(self, message: SaveState, folder: str, parts: Sequence[StatePart], saved: Saved) -> None:
        """Write the parts; runs in a thread of its own."""
        try:
            records, errors = write_parts(folder, parts)
        finally:
            _close(parts)
        if errors:
            is_gone = all(isinstance(error, StateGoneError) for error in errors)
            saved = replace(saved, problem=str(errors[0]), is_gone=is_gone)
        else:
            saved = replace(saved, files=records)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing uses the answer
            self._loop.call_soon_threadsafe(self._answer_saved, message, saved)

    def _answer_saved(self, message: SaveState, saved: Saved) -> None:
        if self._is_current(message):
            self.answer(saved)


def _close(parts: Sequence[StatePart]) -> None:
    for part in parts:
        os.close(part.descriptor)
