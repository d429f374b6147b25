"""Which copies of other nodes' training states are on a node, complete, and where the next one goes; pure.

Of each part of the world the two newest versions are kept. A copy that is being received takes the place of the older
one, and counts when it is complete. What is neither of the attempt that runs nor the state with which it has begun is
of another history: it is not taken, and forgotten when an attempt begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

VERSIONS = 2
Version = tuple[int, int]  # attempt and step


class Lateness:
    """Counts the copies in a row that took longer than the way to the next one.

    One can be chance, such as a process that begins: only the second is a reason to copy fewer saves.
    """

    def __init__(self) -> None:
        self._late = 0

    def late(self) -> bool:
        """Count a late copy, and return whether fewer saves are to be copied from now on."""
        self._late = (self._late + 1) % 2
        return self._late == 0

    def in_time(self) -> None:
        """Count one that was in time."""
        self._late = 0


class CopyLedger:
    """The copies on one node, by part of the world."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Version | None]] = {}
        self._being_filled: set[str] = set()
        self._in_vain: set[str] = set()  # of these: who is forgotten before it is complete
        self._attempt = 0
        self._begun_with: Version | None = None

    @property
    def attempt(self) -> int:
        """The attempt that runs."""
        return self._attempt

    def begin(self, attempt: int, version: Version | None) -> None:
        """Forget all copies but those of the state with which an attempt begins; without one, those under way too."""
        self._attempt, self._begun_with = attempt, version
        if version is None:
            self._in_vain |= self._being_filled
        for part, versions in list(self._parts.items()):
            versions[:] = [each if each == version else None for each in versions]
            self._drop_if_empty(part)

    def restore(self, part: str, versions: Sequence[Version | None]) -> None:
        """Count the copies of a part that another process has left, by place, as far as they are wanted."""
        self._parts[part] = [each if each is not None and self.is_wanted(each) else None for each in versions]
        self._drop_if_empty(part)

    def is_wanted(self, version: Version) -> bool:
        """Return whether a state is of the attempt that runs, or the one with which it has begun."""
        return version[0] == self._attempt or version == self._begun_with

    def is_being_filled(self, part: str) -> bool:
        """Return whether a copy of a part is on its way."""
        return part in self._being_filled

    def start(self, part: str) -> int:
        """Return in which of the places of a part the next copy goes; what was there counts no more."""
        versions = self._parts.setdefault(part, [None] * VERSIONS)
        slot = min(range(VERSIONS), key=lambda slot: (versions[slot] is not None, versions[slot] or (0, 0)))
        versions[slot] = None
        self._being_filled.add(part)
        return slot

    def finish(self, part: str, slot: int, version: Version | None) -> None:
        """Count a copy that has been received; `version` is None for one that was broken off."""
        self._being_filled.discard(part)
        if version is not None and self.is_wanted(version) and part not in self._in_vain:
            self._parts[part][slot] = version
        self._in_vain.discard(part)
        self._drop_if_empty(part)

    def held(self) -> Iterator[tuple[str, Version]]:
        """Return the parts of which there are copies, and their versions."""
        return ((part, each) for part, versions in self._parts.items() for each in versions if each is not None)

    def find(self, part: str, version: Version) -> int | None:
        """Return in which place the copy of a part's state is, None if it is not there."""
        versions = self._parts.get(part, [])
        return versions.index(version) if version in versions else None

    def has(self, part: str) -> bool:
        """Return whether there is a copy of a part, or one on its way."""
        return part in self._parts

    def _drop_if_empty(self, part: str) -> None:
        if part not in self._being_filled and not any(self._parts.get(part, ())):
            self._parts.pop(part, None)
