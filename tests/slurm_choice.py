"""Which Slurms a session's tests run on, and on which of them no test may skip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.slurm_sandbox import versions

OWN = "own"
REQUIRED = "HPC_ELASTIC_REQUIRE_SLURM"


class ChoiceError(ValueError):
    """What was chosen cannot be; the message says why."""


def parse_versions(text: str, *, own: str | None) -> list[str]:
    """Return the versions of `--slurm`, each once: numbers as `24.11`, and the machine's own by its number.

    Args:
        text: `own,24.11`.
        own: the number of the machine's own; None if it has no Slurm, which then stays `own`.

    Raises:
        ChoiceError: one of them is neither the machine's own nor one that a sandbox can run.
    """
    words = [own or OWN if word == OWN else word for word in text.split(",")]
    known = {OWN, *versions.SUPPORTED, *([own] if own else [])}
    if unknown := [word for word in words if word not in known]:
        raise ChoiceError(f"no Slurm {unknown[0]!r}; there are {OWN}, {', '.join(versions.SUPPORTED)}")
    return list(dict.fromkeys(words))


def parse_required(environ: Mapping[str, str], *, own: str | None) -> list[str]:
    """Return the versions that HPC_ELASTIC_REQUIRE_SLURM names; `1` is the machine's own, `0` none.

    Raises:
        ChoiceError: as of `parse_versions`.
    """
    text = environ.get(REQUIRED, "")
    words = [OWN if word == "1" else word for word in text.split(",")]
    return [] if text in ("", "0") else parse_versions(",".join(words), own=own)


def check(chosen: Sequence[str], required: Sequence[str]) -> None:
    """Make sure that what is required is run at all.

    Raises:
        ChoiceError: a version is required, and no test is to run on it.
    """
    if missing := [version for version in required if version not in chosen]:
        raise ChoiceError(f"{REQUIRED} names {missing[0]}, and --slurm does not: {','.join(chosen)}")
