"""Names of nodes: expands Slurm's host list expressions, without Slurm, and names many nodes in one line.

A compute node's image may not hold `scontrol`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from math import prod

from hpc_elastic.errors import AllocationError

NODES_NAMED = 8  # at most so many names in one line
MOST_HOSTS = 65536  # also Slurm 22.05's limit of a range (MAX_RANGE in src/common/hostlist.c)

_EXPRESSION = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_NAME = re.compile(r"[A-Za-z0-9._-]+")  # names become file names: no slash
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")

_Part = str | list[tuple[int, int, int]]  # a text, or ranges: first, last, least number of digits


class HostlistError(AllocationError, ValueError):
    """A text is not a host list, or it names too many hosts. Exit code 3."""


def expand_hostlist(text: str, *, limit: int = MOST_HOSTS) -> tuple[str, ...]:
    """Return the host names of an expression such as `node[1-3,7],gpu[01-02]-ib,a[1-2]b[3-4]`.

    As `scontrol show hostnames` does, this keeps order and duplicates, and takes the zero padding of a
    range from its first number. Of several brackets in a name, the last one runs fastest. An empty
    text has no hosts.

    Args:
        text: what Slurm calls a node list.
        limit: the largest number of names; they are counted before any is made.

    Raises:
        HostlistError: the text is no host list, or there are more names than `limit`.
    """
    rest = _EXPRESSION.sub("", text)
    if rest.strip(", \t\n"):
        raise _error(text, "the brackets do not match")
    hosts = [_parts(expression, text) for expression in _EXPRESSION.findall(text)]
    count = sum(prod(_count(part) for part in parts) for parts in hosts)
    if count > limit:
        raise _error(text, f"it names {count} hosts, and {limit} are the most")
    return tuple("".join(choice) for parts in hosts for choice in product(*map(_choices, parts)))


def _parts(expression: str, text: str) -> list[_Part]:
    """Split an expression at its brackets."""
    parts: list[_Part] = []
    for match in _PART.finditer(expression):
        brackets, name = match.groups()
        if name is None:
            parts.append([_range(item, text) for item in brackets.split(",")])
        elif _NAME.fullmatch(name):
            parts.append(name)
        else:
            raise _error(text, f"{_shown(name)} is no part of a host name")
    return parts


def _range(item: str, text: str) -> tuple[int, int, int]:
    match = _RANGE.fullmatch(item)
    if not match:
        raise _error(text, f"{_shown(item)} is no number and no range of numbers")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise _error(text, f"the range {item!r} runs backwards")
    return first, last, len(match[1])


def _count(part: _Part) -> int:
    """Return how many texts this part of an expression stands for."""
    return 1 if isinstance(part, str) else sum(last - first + 1 for first, last, _ in part)


def _choices(part: _Part) -> list[str]:
    """Return the texts that this part of an expression stands for."""
    if isinstance(part, str):
        return [part]
    return [f"{number:0{width}d}" for first, last, width in part for number in range(first, last + 1)]


def _error(text: str, problem: str) -> HostlistError:
    return HostlistError(
        f"{_shown(text)} is not a host list: {problem}", tip="Slurm writes them as node[1-3,7],gpu[01-02]"
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:100] + "...")


def name_some(nodes: Sequence[str]) -> str:
    """Return the nodes as text for one line: the first few by name, the others as a number."""
    more = f" and {len(nodes) - NODES_NAMED} more" if len(nodes) > NODES_NAMED else ""
    return ", ".join(nodes[:NODES_NAMED]) + more
