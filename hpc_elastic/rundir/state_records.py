"""The training states in memory, as messages and claims name them, and those that were written from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpc_elastic.rundir.submissions import FORMAT_VERSION

OF_ANOTHER_RUN = 0  # the attempt of a state that another run has saved: older than all of this one


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StateVersion:
    """Which state: the attempt in which it was saved, and the step that was done. A later attempt's is newer."""

    attempt: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldState:
    """A state that a node holds for all its ranks, complete and undamaged.

    `part` is whose it is, as `membership.held_states` names it: the part in the world that the node had when it was
    saved, or, if it `is_copy`, that of another node; the role for one that is the same on all of its ranks. One that
    `is_partial` is not complete, and only says that some of the node's ranks have saved, which have no step in common.
    """

    attempt: int
    step: int
    part: str
    is_copy: bool = False
    is_partial: bool = False

    @property
    def version(self) -> StateVersion:
        """Return which state it is."""
        return StateVersion(attempt=self.attempt, step=self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenState:
    """The state with which all ranks of these roles begin an attempt."""

    roles: tuple[str, ...]
    attempt: int
    step: int

    @property
    def version(self) -> StateVersion:
        """Return which state it is."""
        return StateVersion(attempt=self.attempt, step=self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush:
    """Which state is to be written to the run directory, for the next allocation; `ended` is the latest attempt.

    `within_s`: what is not written then is given up, for the job's script has to ask for another start before its end.
    `copies` are the parts of lost nodes, of which this one has a copy that it writes beside its own.
    """

    ended: int
    state: StateVersion
    within_s: float | None = None
    copies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRecord:
    """`memory/NNNN/RRRRR.json`: a rank's state in a file of the run directory.

    `place` is whose it is, as `membership.held_states` names places; `length` is in bytes, `crc` the file's CRC-32.
    """

    format_version: int = FORMAT_VERSION
    attempt: int
    step: int
    place: str
    length: int
    crc: int

    @property
    def version(self) -> StateVersion:
        """Return which state it is."""
        return StateVersion(attempt=self.attempt, step=self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveManifest:
    """`memory/saved/STEP-ID/manifest.json`: a state that was written while the run went on, complete.

    `request` is the id of the person's request, `by` and `time` are who asked and when it was complete; `ended` is the
    latest attempt then. `states` are the versions, one for all roles that restart together; `files` the records of all
    files by their names.
    """

    format_version: int = FORMAT_VERSION
    request: str
    by: str
    time: str
    ended: int
    states: tuple[ChosenState, ...]
    files: Mapping[str, KeptRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptState:
    """A state that files of the run directory hold for these places; `ended` is the attempt after which they came."""

    ended: int
    version: StateVersion
    places: frozenset[str]
