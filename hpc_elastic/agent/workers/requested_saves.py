"""Pins a training state on this node while its ranks go on, and writes it to the run directory, as the head asks.

Theory of operation. A request is current from the head's first question until the head, the end of its time or a stop
of the workers ends it; then the state is not pinned any more, and nothing more is written. What a node has written of
a request that is not current any more when that is done, as after a hanging file system, it removes itself: the head
has long cleared up by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hpc_elastic.agent.system.tasks import Tasks
from hpc_elastic.agent.workers.rank_states import RankStates
from hpc_elastic.agent.workers.state_files import StateGoneError, StatePart, write_parts
from hpc_elastic.membership.messages import Message, Pinned, PinState, Saved, SaveState, UnpinState
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.saved_states import remove_parts

LOOKS_EVERY_S = 0.02
GIVES_UP_WITHIN_S = 5.0  # a writer that is told to, unless its file system hangs: the time for one piece
GONE = "the state is not in memory any more"
AT_WORK = "this node still writes the state of an earlier request: its file system is slow, or hangs"


@dataclass(slots=True, kw_only=True)
class _Writing:
    """The writing of this node's parts of one state, in a thread; `names` are those of the parts' files."""

    message: SaveState
    folder: str
    names: tuple[str, ...]
    is_given_up: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        return self.thread is not None and self.thread.is_alive()


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
        self._writing: _Writing | None = None  # the latest one
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

    def interrupt(self) -> None:
        """Let go of what is pinned, and write no more: the workers are stopped, and what they held is another's soon.

        The head gives the save up as well. If it is lost, nobody else would say it.
        """
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
        if self._writing is not None:
            self._writing.is_given_up.set()
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
        folder, names = self._layout.saved_states(message.folder), tuple(part.name for part in parts)
        writing = _Writing(message=message, folder=folder, names=names)
        if self._writing is not None and self._writing.is_alive:
            self._tasks.run(self._write_after(self._writing, writing, parts, saved))
        else:
            self._start(writing, parts, saved)

    async def _write_after(self, before: _Writing, writing: _Writing, parts: Sequence[StatePart], saved: Saved) -> None:
        """Write when the thread has ended that wrote for an earlier question, and is told to give up."""
        until = self._loop.time() + GIVES_UP_WITHIN_S
        while before.is_alive and self._loop.time() < until:
            await asyncio.sleep(LOOKS_EVERY_S)
        if not self._is_current(writing.message):
            return
        if before.is_alive:
            self.answer(replace(saved, problem=AT_WORK))
        else:
            self._start(writing, parts, saved)

    def _start(self, writing: _Writing, parts: Sequence[StatePart], saved: Saved) -> None:
        # An attempt that ends meanwhile may close these memories, and their numbers be those of other files then.
        own: list[StatePart] = []
        try:
            for part in parts:
                own.append(replace(part, descriptor=os.dup(part.descriptor)))
            thread = threading.Thread(target=self._write, args=(writing, own, saved), name="save", daemon=True)
            thread.start()
        except (OSError, RuntimeError) as error:  # there can be no more descriptors, or threads
            _close(own)
            self.answer(replace(saved, problem=str(error)))
        else:
            self._writing, writing.thread = writing, thread

    def _write(self, writing: _Writing, parts: Sequence[StatePart], saved: Saved) -> None:
        """Write the parts; runs in a thread of its own."""
        try:
            records, errors = write_parts(writing.folder, parts, is_wanted=lambda: not writing.is_given_up.is_set())
        finally:
            _close(parts)
        if writing.is_given_up.is_set():
            remove_parts(writing.folder, writing.names)
            return
        if errors:
            is_gone = all(isinstance(error, StateGoneError) for error in errors)
            saved = replace(saved, problem=str(errors[0]), is_gone=is_gone)
        else:
            saved = replace(saved, files=records)
        try:
            self._loop.call_soon_threadsafe(self._answer_saved, writing, saved)
        except RuntimeError:  # the loop is closed
            remove_parts(writing.folder, writing.names)

    def _answer_saved(self, writing: _Writing, saved: Saved) -> None:
        if self._is_current(writing.message):
            self.answer(saved)
        elif self._writing is writing:  # else the next one may have files of the same names
            removing = threading.Thread(
                target=remove_parts, args=(writing.folder, writing.names), name="save", daemon=True
            )
            with contextlib.suppress(RuntimeError):  # there can be no more threads: the head's next start removes them
                removing.start()
                writing.thread = removing


def _close(parts: Sequence[StatePart]) -> None:
    for part in parts:
        os.close(part.descriptor)
