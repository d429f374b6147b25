"""Writes the job file of a run that had none: `hpc-elastic run train.py` says in it what was run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from hpc_elastic.job.names import fit_name, name_of_file


def write_job(
    *,
    command: str,
    kind: str,
    target: str,
    arguments: Sequence[str],
    workdir: str,
    options: Mapping[str, str],
    schema: str,
) -> str:
    """Return a job file as text; pure.

    Args:
        command: the command line, for the second line.
        kind: `script`, `module` or `command`.
        target: its path or name.
        arguments: the target's own.
        workdir: the directory that paths are relative to.
        options: more keys, dotted, with values in YAML; `name` among them, or the target gives it.
        schema: where the JSON Schema of job files is, for editors; the first line.
    """
    name = options.get("name") or _quoted(_name(kind, target))
    lines = [
        f"# yaml-language-server: $schema={_printable(schema)}",
        f"# {_printable(command)}",
        f"name: {name}",
        "entrypoint:",
        f"  {kind}: {_quoted(target)}",
        f"  args: [{', '.join(_quoted(_literal(argument)) for argument in arguments)}]",
        f"workdir: {_quoted(_literal(workdir))}",
    ]
    lines += _sections({key: value for key, value in options.items() if key != "name"})
    return "\n".join(lines) + "\n"


def _sections(options: Mapping[str, str]) -> list[str]:
    """Return the lines of the keys: one for each key at the top, and one for a whole section."""
    lines = [f"{key}: {value}" for key, value in options.items() if "." not in key]
    sections: dict[str, list[str]] = {}
    for key, value in options.items():
        first, dot, second = key.partition(".")
        if dot:
            sections.setdefault(first, []).append(f"{second}: {value}")
    return lines + [f"{first}: {{{', '.join(inner)}}}" for first, inner in sections.items()]


def _name(kind: str, target: str) -> str:
    return fit_name(target) if kind == "module" else name_of_file(target)


def _quoted(text: str) -> str:
    """Return a YAML double-quoted scalar: JSON's strings are that, apart from characters that YAML must escape."""
    return json.dumps(text)


def _literal(text: str) -> str:
    """Return the text with `$` escaped: the shell has expanded the variables that it was to expand."""
    return text.replace("$", "$$")


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
