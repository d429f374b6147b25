"""Reads what became of a request to have the training state of a run written."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from hpc_elastic.rundir.layout import RunLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveAnswer:
    """The head's answer: the folder and the steps that are written, or the problem."""

    folder: str | None
    steps: tuple[int, ...]
    problem: str | None


@dataclass(slots=True)
class SaveAnswers:
    """Waits for the answer in the events of all nodes, of which any may have the head.

    Make it before the request: what the agents' files hold then is passed over.
    """

    layout: RunLayout
    nodes: Collection[str]
    _read: dict[str, int] = field(default_factory=dict)  # by node, the bytes that were read

    def __post_init__(self) -> None:
        for node in self.nodes:
            with contextlib.suppress(OSError):
                self._read[node] = os.path.getsize(self.layout.events(node))

    def look(self, request: str) -> SaveAnswer | None:
        """Return the answer to a request, None as long as there is none."""
        answers = (_answer(event, request) for node in self.nodes for event in self._new_events(node))
        return next((answer for answer in list(answers) if answer is not None), None)

    def _new_events(self, node: str) -> Iterator[object]:
        start = self._read.get(node, 0)
        content = b""
        with contextlib.suppress(OSError), open(self.layout.events(node), "rb") as file:
            file.seek(start)
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._read[node] = start + len(complete)
        for line in complete.splitlines():
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def _answer(event: object, request: str) -> SaveAnswer | None:
    if not isinstance(event, dict) or event.get("name") not in ("state.saved", "state.not_saved"):
        return None
    more = event.get("metadata")
    if not isinstance(more, dict) or more.get("request") != request:
        return None
    problem, folder, steps = more.get("problem"), more.get("folder"), more.get("steps")
    if event["name"] == "state.not_saved" or not isinstance(folder, str) or not isinstance(steps, list):
        return SaveAnswer(folder=None, steps=(), problem=str(problem))
    return SaveAnswer(folder=folder, steps=tuple(step for step in steps if isinstance(step, int)), problem=None)
