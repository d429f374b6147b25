"""What comes of moving a script in: keys of a job file, and a remark on each line that is not in them; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Kind(Enum):
    """What a remark says of a line; the value is how it is told."""

    NOT_CARRIED = "not carried over"
    NOT_NEEDED = "not needed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Remark:
    """A line of the script that the job file does not have as it was, and why, or what to do."""

    line: int
    kind: Kind
    what: str
    why: str

    def describe(self, file: str) -> str:
        """Return the remark for people, with the place first as compilers do."""
        return f"{file}:{self.line}: {self.kind.value}: {self.what}: {self.why}"


@dataclass(slots=True)
class Moved:
    """The keys so far, dotted as `--set` names them, and the remarks, in the order in which they were found."""

    keys: dict[str, Any] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)
    sbatch: dict[str, Any] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)
    launch_line: int = 0  # of the command that starts the training

    def not_carried(self, line: int, what: str, why: str) -> None:
        """Name a line that the job file does not have."""
        self.remarks.append(Remark(line, Kind.NOT_CARRIED, what, why))

    def not_needed(self, line: int, what: str, why: str) -> None:
        """Name a line that the job file does not need."""
        self.remarks.append(Remark(line, Kind.NOT_NEEDED, what, why))

    def changed(self, line: int, what: str, why: str) -> None:
        """Name a line that means something a little different in the job file."""
        self.remarks.append(Remark(line, Kind.CHANGED, what, why))

    def document(self) -> Mapping[str, Any]:
        """Return the keys as a nested map, in the order in which a reader expects them."""
        nested: dict[str, Any] = {}
        keys = dict(self.keys)
        if self.setup:
            keys["setup"] = list(self.setup)
        if self.sbatch:
            keys["sbatch"] = dict(self.sbatch)
        for key in sorted(keys, key=_place):
            first, _, second = key.partition(".")
            if second:
                nested.setdefault(first, {})[second] = keys[key]
            else:
                nested[first] = keys[key]
        return nested


_ORDER = (
    *("name", "entrypoint", "workdir", "python", "setup", "env", "nodes", "workers_per_node", "resources", "time"),
    *("sbatch", "restart", "requeue", "signals"),
)


def _place(key: str) -> int:
    first = key.partition(".")[0]
    return _ORDER.index(first) if first in _ORDER else len(_ORDER)
