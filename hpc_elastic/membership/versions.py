"""Which versions of software make a node unfit to work with the head's, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hpc_elastic.membership.messages import Join


def other_version(head: str, versions: Mapping[str, str], join: Join) -> str | None:
    """Return which versions make a node unfit to work with the head's node, None if none does.

    The text continues a sentence that begins with the node's name. Patch releases of one minor version of Python are
    compatible; those of torch and hpc_elastic are not. A version that only one of the two nodes has reported is not
    compared: a role without torch reports none of torch.
    """
    differ = []
    for name in sorted(set(versions) & set(join.versions)):
        here, there = versions[name], join.versions[name]
        parts = 2 if name == "python" else None
        if here.split(".")[:parts] != there.split(".")[:parts]:
            differ.append(f"{name} is {there}, on {head} {here}")
    if not differ:
        return None
    remedy = _upgrade(head, versions, join) if len(differ) == 1 and differ[0].startswith("torch ") else ""
    return f"has another version: {'; '.join(differ)}{remedy}"


def _upgrade(head: str, versions: Mapping[str, str], join: Join) -> str:
    """Return the words that say on which of two nodes torch has to change, and to which version."""
    here, there = versions["torch"], join.versions["torch"]
    if _numbers(here) == _numbers(there):
        return f"; install the same build of torch on both, such as {max(here, there)}"
    older, found, wanted = (join.node, there, here) if _numbers(there) < _numbers(here) else (head, here, there)
    return f"; upgrade torch on {older} to {wanted}" if _numbers(found) else f"; install torch {wanted} on {older}"


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version without its local part: (2, 13, 0) of `2.13.0+cpu`; none of other words."""
    public = version.partition("+")[0]
    return tuple(int(number) for number in re.findall(r"[0-9]+", public)[:3]) if public[:1].isdigit() else ()
