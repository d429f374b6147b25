"""The version of the contract between templates and what they are rendered with; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Each version with what a template of the one before it must change. A template says for which one it was written in a
# comment, `{# contract: 1 #}`; raise the version when a block, a variable or a rule of templates/README.md changes in a
# way that breaks templates.
CHANGES: Mapping[int, str] = {1: "the six blocks and the variables of templates/README.md"}
_DECLARED = re.compile(r"\{#-?\s*contract:\s*([0-9]{1,6})\s*-?#\}")


def declared_contract(text: str) -> int | None:
    """Return the version that a template's text says it was written for; None if it does not say."""
    found = _DECLARED.search(text)
    return int(found[1]) if found else None


def contract_line(changes: Mapping[int, str] = CHANGES) -> str:
    """Return the comment by which a template declares today's version."""
    return f"{{# contract: {max(changes)} #}}"


def why_refused(text: str, changes: Mapping[int, str] = CHANGES) -> str | None:
    """Return why a template cannot be used with this version of the contract; None if it can.

    Args:
        text: the template's source. One that declares no version counts as written for today's.
        changes: each version with what changed.
    """
    declared, current = declared_contract(text), max(changes)
    if declared is None or declared == current:
        return None
    if declared > current:
        return f"it is written for contract {declared}, and this hpc_elastic has {current}; install a newer one"
    changed = "; ".join(f"{version}: {changes[version]}" for version in sorted(changes) if version > declared)
    return f"it is written for contract {declared}, and {current} is in force; what changed: {changed}"
