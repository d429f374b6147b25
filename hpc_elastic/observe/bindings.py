"""Reads what the workers of each node of a run are bound to, from the agents' events."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpc_elastic.rundir.layout import RunLayout

_BOUND = b'"node.bound"'


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBinding:
    """The binding of one or more nodes: its word, the threads of each worker, and what each worker has."""

    nodes: tuple[str, ...]
    binding: str
    threads: int | None
    workers: Sequence[Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Return the same as JSON."""
        return {
            "nodes": list(self.nodes),
            "binding": self.binding,
            "threads": self.threads,
            "workers": [dict(worker) for worker in self.workers],
        }


def read_bindings(layout: RunLayout) -> list[NodeBinding]:
    """Return the binding of every node that has told one, equal ones together, in the order of the nodes' names.

    A node that has started more than once counts by its latest start.
    """
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(layout.nodes))
    found: dict[str, tuple[list[str], Mapping[str, Any]]] = {}
    for name in names:
        told = _read_latest(layout.events(name))
        if told is not None:
            key = json.dumps({**told, "node": ""}, sort_keys=True)
            found.setdefault(key, ([], told))[0].append(name)
    return [
        NodeBinding(
            nodes=tuple(nodes),
            binding=str(told.get("binding")),
            threads=told["threads"] if isinstance(told.get("threads"), int) else None,
            workers=[worker for worker in told.get("workers", ()) if isinstance(worker, dict)],
        )
        for nodes, told in found.values()
    ]


def _read_latest(path: str) -> Mapping[str, Any] | None:
    """Return what the latest such event in a file says; a file of a long run has very many others."""
    latest = None
    with contextlib.suppress(OSError), open(path, "rb") as file:
        for line in file:
            if _BOUND in line:
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    metadata = event.get("metadata") if isinstance(event, dict) else None
                    if isinstance(metadata, dict) and isinstance(metadata.get("workers"), list):
                        latest = metadata
    return latest
