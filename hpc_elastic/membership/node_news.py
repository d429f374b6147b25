"""Tells of nodes that join, and what is odd about those of a round: one line for many nodes."""

from __future__ import annotations

from dataclasses import dataclass

from hpc_elastic.hostlist import name_some
from hpc_elastic.membership.actions import Action, Log, Note
from hpc_elastic.membership.roster import Roster

TOLD_ONE_BY_ONE = 3
CROWD_S = 5.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A way to join, in words: of one node, and of several."""

    of_one: str
    of_many: str


BACK = Arrival("is back", "are back")
LATE = Arrival("joined late and waits for the next attempt", "joined late")


class Arrivals:
    """The nodes that join one after the other: after a stall of the head they may be thousands within a second.

    The first few of a crowd have a line each, and all others one line together when the next attempt opens.
    """

    def __init__(self) -> None:
        self._began = -CROWD_S
        self._count = 0
        self._untold: dict[
            Arrival, dict[str, None]
        ] = {}  # the nodes, each once: a bad link may bring one back for days

    def one(self, node: str, how: Arrival, now: float) -> list[Action]:
        """Return the log line of a node that has joined; none if many have within the last seconds."""
        if now - self._began >= CROWD_S:
            self._began, self._count = now, 0
        self._count += 1
        if self._count <= TOLD_ONE_BY_ONE:
            return [Log(text=f"{node} {how.of_one}")]
        self._untold.setdefault(how, {})[node] = None
        return []

    def others(self) -> list[Action]:
        """Return the log lines of those that have had none."""
        untold, self._untold = self._untold, {}
        lines: list[Action] = []
        for how, joined in untold.items():
            nodes = [*joined]
            lines.append(Log(text=f"{name_some(nodes)} {how.of_many if len(nodes) > 1 else how.of_one}"))
        return lines


class RoundNews:
    """What has been told of the nodes that have joined; nothing is told twice.

    Args:
        roster: the agents that have joined.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._told: set[str] = set()

    def tell(self, attempt: int) -> list[Action]:
        """Return the log lines, and the event, of what nodes have said of themselves, and of how their GPUs differ."""
        by_remark: dict[str, list[str]] = {}
        by_count: dict[int, list[str]] = {}
        by_id = sorted(self._roster, key=lambda member: member.join.node_id)
        for member in by_id:
            for remark in member.join.remarks:
                by_remark.setdefault(remark, []).append(member.node)
            if member.join.gpus is not None:
                by_count.setdefault(member.join.gpus, []).append(member.node)
        lines = [f"{name_some(nodes)}: {remark}" for remark, nodes in by_remark.items()]
        news: list[Action] = [Log(text=line, level="warning") for line in lines if line not in self._told]
        self._told.update(lines)
        if len(by_count) < 2:
            return news
        counts = sorted(by_count.items(), key=lambda item: (-len(item[1]), -item[0]))
        text = "nodes see different numbers of GPUs: " + ", ".join(f"{n} on {name_some(nodes)}" for n, nodes in counts)
        if text in self._told:
            return news
        self._told.add(text)
        metadata = {"gpus": {node: count for count, nodes in counts for node in nodes}}
        note = Note(name="nodes.gpus_differ", message=text, attempt=attempt, metadata=metadata)
        return [*news, Log(text=text, level="warning"), note]
