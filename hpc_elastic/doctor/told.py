"""The answers of all nodes of the job, as the verdicts read them; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hpc_elastic.doctor.probes.answers import ProbeAnswer
from hpc_elastic.doctor.results import name_nodes

Seen = TypeVar("Seen")
"""What a check found on a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswers:
    """The answers of all nodes.

    `sent` and `read` are the times of the machine that asks: before the job was started, and after each answer of a
    node was read.
    """

    nodes: tuple[str, ...]
    answers: tuple[ProbeAnswer, ...]
    sent: float
    read: Mapping[str, float]

    def of(self, check: str) -> dict[str, ProbeAnswer]:
        """Return the answers to one check, by node in their order."""
        found = {each.node: each for each in self.answers if each.check == check}
        return {node: found[node] for node in self.nodes if node in found}

    def values(self, check: str, kind: type[Seen]) -> dict[str, Seen]:
        """Return what a check found, by node; a node on which it could not be made is left out."""
        return {node: each.value for node, each in self.of(check).items() if isinstance(each.value, kind)}

    def name(self, nodes: Sequence[str]) -> str:
        """Return some of the nodes in words."""
        return name_nodes(nodes, len(self.nodes))
