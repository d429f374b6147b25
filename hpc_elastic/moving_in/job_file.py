"""The text of a commented job file: its keys with what each means, and what a script had beside them; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpc_elastic.job.text import job_text
from hpc_elastic.moving_in.moved import Kind, Remark


def commented(
    document: Mapping[str, Any],
    meanings: Mapping[str, str],
    *,
    head: Sequence[str],
    remarks: Sequence[Remark],
    file: str,
) -> str:
    """Return a job file.

    Args:
        document: the keys, nested.
        meanings: a line for people for each key at the top; a key without one has no comment.
        head: comments at the top.
        remarks: what a script had that the job file has not, in the order of its lines.
        file: the script's name.
    """
    lines = [f"# {line}".rstrip() for line in head]
    left = [each for each in remarks if each.kind is not Kind.NOT_NEEDED]
    if left:
        lines += ["#", f"# Look at these lines of {file}:"]
        lines += [f"#   line {each.line}: {_printable(each.what)}: {each.kind.value}: {each.why}" for each in left]
    for key, value in document.items():
        lines.append("")
        if key in meanings:
            lines.append(f"# {meanings[key]}")
        lines.append(job_text({key: value}).rstrip("\n"))
    return "\n".join(lines) + "\n"


def _printable(text: str) -> str:
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())
