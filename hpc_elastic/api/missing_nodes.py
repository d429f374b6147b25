"""Finds out which nodes a run that ended with `nodes_missing` has waited for, and why they did not join."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from hpc_elastic.errors import MissingNode, RendezvousCause, RunDirectoryError
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout

_EVENT = "rendezvous.timeout"


def read_missing_nodes(layout: RunLayout, head: str) -> tuple[MissingNode, ...]:
    """Return the nodes that did not join, in the order of the head's event `rendezvous.timeout`.

    Where the head's events are gone, the nodes' own `rendezvous.json` say it, without those whose agent never started.

    Args:
        layout: the run's.
        head: the node that wrote the result.
    """
    told = _last_event(layout.events(head)) if _is_name(head) else None
    if told is not None:
        return tuple(_parse_all(told))
    return tuple(_parse_all(_own_words(layout)))


def _last_event(path: str) -> list[Any] | None:
    """Return `metadata.missing` of the last event about missing nodes, None if there is no such event."""
    missing = None
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if _EVENT in line:
                    missing = _missing_of(line) or missing
    except OSError:
        return missing
    return missing


def _missing_of(line: str) -> list[Any] | None:
    try:
        event = json.loads(line)
        is_it, missing = event["name"] == _EVENT, event["metadata"]["missing"]
    except (ValueError, LookupError, TypeError, RecursionError):  # a torn line, or another event that names this one
        return None
    return missing if is_it and isinstance(missing, list) else None


def _own_words(layout: RunLayout) -> Iterator[Any]:
    try:
        nodes = sorted(os.listdir(layout.nodes))
    except OSError:
        return
    for node in nodes:
        try:
            yield store.read_json(layout.rendezvous(node))
        except RunDirectoryError:
            continue


def _parse_all(items: Iterable[Any]) -> Iterator[MissingNode]:
    """Yield what can be read; an item of another version of this package is left out."""
    for item in items:
        try:
            node, cause, detail = (item[name] for name in ("node", "cause", "detail"))
            yield MissingNode(node=str(node), cause=RendezvousCause(cause), detail=str(detail))
        except (LookupError, TypeError, ValueError):
            continue


def _is_name(node: str) -> bool:
    return bool(node) and os.path.basename(node) == node
