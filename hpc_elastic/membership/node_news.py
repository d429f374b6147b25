"""Tells what is odd about the nodes of a round, one line for many nodes, before their workers start."""

from __future__ import annotations

from hpc_elastic.membership.actions import Action, Log, Note
from hpc_elastic.membership.roster import Roster, name_some


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
