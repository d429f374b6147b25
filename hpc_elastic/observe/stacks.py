"""Reads the stacks of a run's ranks, and the agents' answers to a request for them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.failures.stacks import RankStack
from hpc_elastic.observe.roster import read_roster
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.new_names import exists, open_anew

MOST_PROBED = 64  # ranks of an attempt, and less than as many again


@dataclass(frozen=True, slots=True, kw_only=True)
class StackAnswer:
    """One agent's answer: the ranks whose stacks it has written, and in which attempt."""

    node: str
    attempt: int
    ranks: tuple[int, ...]


@dataclass(slots=True)
class StackAnswers:
    """The answers of agents to a request, as they come in.

    Make it before the request: what the agents' files hold then is passed over.

    Args:
        layout: the run's.
        nodes: the nodes that are asked.
    """

    layout: RunLayout
    nodes: Collection[str]
    found: dict[str, StackAnswer] = field(default_factory=dict)
    _read: dict[str, int] = field(default_factory=dict)  # by node, the bytes that were read

    def __post_init__(self) -> None:
        for node in self.nodes:
            with contextlib.suppress(OSError):
                self._read[node] = os.path.getsize(self.layout.events(node))

    @property
    def missing(self) -> list[str]:
        """The nodes that have not answered."""
        return [node for node in self.nodes if node not in self.found]

    def look(self, request: str) -> None:
        """Read what the agents that are missing have written since the last look."""
        for node in self.missing:
            for event in self._new_events(node):
                answer = _answer(node, event, request)
                if answer is not None:
                    self.found[node] = answer

    def _new_events(self, node: str) -> Iterator[object]:
        start = self._read.get(node, 0)
        content = b""
        with contextlib.suppress(OSError), open(self.layout.events(node), "rb", opener=open_anew) as file:
            file.seek(start)
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._read[node] = start + len(complete)
        for line in complete.splitlines():
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def _answer(node: str, event: object, request: str) -> StackAnswer | None:
    """Return the answer in an event, None if it is none or is not of the form that agents write."""
    if not isinstance(event, dict) or event.get("name") != "stacks.taken":
        return None
    more, attempt = event.get("metadata"), event.get("attempt")
    if not isinstance(more, dict) or more.get("request") != request or not isinstance(attempt, int):
        return None
    ranks = more.get("ranks")
    numbers = [rank for rank in ranks if isinstance(rank, int)] if isinstance(ranks, list) else []
    return StackAnswer(node=node, attempt=attempt, ranks=tuple(numbers))


def read_stacks(layout: RunLayout, answers: Iterable[StackAnswer]) -> list[RankStack]:
    """Return the stacks of the ranks in the answers; those that cannot be read say so."""
    return [
        RankStack(rank=rank, node=answer.node, text=_read_stack(layout.stack(answer.attempt, rank)))
        for answer in answers
        for rank in answer.ranks
    ]


def find_last_stacks(layout: RunLayout) -> tuple[int, list[RankStack]]:
    """Return the latest attempt of which there are stacks, and these; 0 and none if there are none.

    Stacks are taken of all ranks, so some ranks tell whether they were: 4,096 ranks in 200 attempts would be 800,000
    questions to a file server.

    Raises:
        RunDirectoryError: the run directory cannot be read.
    """
    for attempt in reversed(store.list_numbers(layout.attempts)):
        started = store.list_numbers(layout.ranks(attempt))
        some = started[:: max(1, len(started) // MOST_PROBED)]
        if not any(os.path.exists(layout.stack(attempt, rank)) for rank in some):
            continue
        nodes = read_nodes_of_ranks(layout, attempt)
        return attempt, [
            RankStack(rank=rank, node=nodes.get(rank, "?"), text=_read_stack(layout.stack(attempt, rank)))
            for rank in started
            if os.path.exists(layout.stack(attempt, rank))
        ]
    return 0, []


def read_nodes_of_ranks(layout: RunLayout, attempt: int) -> Mapping[int, str]:
    """Return the node of each rank of an attempt; none for a roster that is missing or cannot be read."""
    with contextlib.suppress(RunDirectoryError):
        return {rank: place.node for rank, place in read_roster(layout, attempt).items()}
    return {}


def _read_stack(path: str) -> str:
    exists(path)  # it is there, but this client may remember that it was not
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError as error:
        return f"no stack: {path} cannot be read: {error.strerror}\n"
