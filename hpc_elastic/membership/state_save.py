"""Has the newest state that all ranks hold written to the run directory while they go on to save, as a person asks.

Theory of operation. Ranks overwrite their states as they train, so all nodes first pin one state, and the head looks if
it is the same one. At first each node pins the newest but one that it holds, which no rank is ahead of, and names those
that are newer. Then the head asks for the newest that all have named; if there is none, or one has overwritten it
meanwhile, for the first one that is saved a little later, and later again if that was too soon: it is pinned before any
rank has made it. When all nodes have pinned the same state, each makes it firm. A rank that has room for one more slot
saves there. One that has not overwrites its newest state from now on, again and again, for all ranks hold the pinned
one if they are killed; before it was firm, it overwrites the pinned one, and its node says that it is gone.

Each node writes its part then, and the manifest comes last, when all files are there. Whatever else happens, the save
is given up: nothing counts that has no manifest, and the pins end with the time of the request, on each node by itself.

Roles that do not restart together begin with steps of their own, so each group of them agrees for itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from hpc_elastic.membership.actions import SendToMember
from hpc_elastic.membership.held_states import role_groups, states_to_flush
from hpc_elastic.membership.messages import Message, Pinned, PinState, Saved, SaveState, UnpinState
from hpc_elastic.rundir.records import World
from hpc_elastic.rundir.saved_states import save_name
from hpc_elastic.rundir.state_records import ChosenState, HeldState, KeptRecord, StateVersion

NEVER = float("inf")
MOST_QUESTIONS = 12  # the last one looks more than a thousand saves ahead
NO_ROOM = "there is no room for one more copy of it (`state.limit`), and steps are short"


class SavePhase(Enum):
    """Where a save stands."""

    PINNING = "pinning"
    WRITING = "writing"
    COMPLETING = "completing"  # all files are there, and the manifest is being written
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteSave:
    """All parts are on disk: write the manifest into this folder, then call `completed` with what came of it."""

    folder: str
    ended: int
    states: tuple[ChosenState, ...]
    files: dict[str, KeptRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOver:
    """The save is over: `problem` says why nothing is saved, None if it is; `folder` is what may be left of it."""

    problem: str | None
    folder: str | None
    states: tuple[ChosenState, ...] = ()


SaveAction = SendToMember | CompleteSave | SaveOver


class StateSave:
    """One request for a save, in one world.

    Args:
        world: the world whose workers run.
        request: the id of the request.
        now: monotonic seconds, as in every method.
        within_s: after which time it is given up.
    """

    def __init__(self, world: World, *, request: str, now: float, within_s: float) -> None:
        self._world = world
        self._request = request
        self._ends_at = now + within_s
        self._number = 0
        self._nodes = {node.node: node.role for node in world.nodes}
        self._groups = role_groups(world)
        self._ahead: dict[tuple[str, ...], int] = dict.fromkeys(self._groups, 0)
        self._pinned: dict[str, Pinned] = {}
        self._saved: dict[str, Saved] = {}
        self._asked: set[str] = set()  # the nodes that keep the state, or write it
        self._empty: set[str] = set()  # the nodes that had no state at first
        self._agreed: dict[tuple[str, ...], StateVersion] = {}
        self._folder: str | None = None
        self.phase = SavePhase.PINNING

    @property
    def attempt(self) -> int:
        """Return the attempt whose workers run."""
        return self._world.attempt

    def next_tick(self) -> float:
        """Return when `tick` must be called at the latest."""
        return NEVER if self.phase in (SavePhase.OVER, SavePhase.COMPLETING) else self._ends_at

    def begin(self, now: float) -> list[SaveAction]:
        """Ask all nodes to pin a state."""
        return self._ask(dict.fromkeys(self._groups), now)

    def received(self, node: str, message: Message, now: float) -> list[SaveAction]:
        """Handle the answer of a node."""
        if not isinstance(message, (Pinned, Saved)) or node not in self._nodes:
            return []
        if message.request != self._request or message.number != self._number:
            return []
        if isinstance(message, Pinned) and self.phase is SavePhase.PINNING:
            self._pinned[node] = message
            return self._agree(now) if len(self._pinned) == len(self._nodes) else []
        if isinstance(message, Saved) and self.phase is SavePhase.WRITING and node in self._asked:
            return self._wrote(node, message, now)
        return []

    def tick(self, now: float) -> list[SaveAction]:
        """Give the save up if its time is over."""
        if now < self.next_tick():
            return []
        answered = self._pinned if self.phase is SavePhase.PINNING else self._saved
        asked = self._nodes if self.phase is SavePhase.PINNING else sorted(self._asked)
        missing = [node for node in asked if node not in answered]
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        if self.phase is SavePhase.PINNING and missing and self._empty.issuperset(missing):
            return self.give_up(f"{missing[0]}{more} had no state in memory, and saved none in time")
        did = "agreed on a state" if self.phase is SavePhase.PINNING else "written its part"
        return self.give_up(f"{missing[0]}{more} had not {did} in time" if missing else "no step was agreed on in time")

    def give_up(self, problem: str) -> list[SaveAction]:
        """End the save, for this reason, unless all of it is on disk already; nothing of it counts."""
        return self._end(problem) if self.phase in (SavePhase.PINNING, SavePhase.WRITING) else []

    def completed(self, problem: str | None) -> list[SaveAction]:
        """Handle that the manifest is written, or why it is not."""
        return self._end(problem) if self.phase is SavePhase.COMPLETING else []

    def _end(self, problem: str | None) -> list[SaveAction]:
        self.phase = SavePhase.OVER
        unpin = [SendToMember(node=node, message=UnpinState(request=self._request)) for node in self._nodes]
        states = () if problem is not None else self._states()
        return [*unpin, SaveOver(problem=problem, folder=self._folder, states=states)]

    def _ask(self, first: dict[tuple[str, ...], StateVersion | None], now: float) -> list[SaveAction]:
        self._number += 1
        self._pinned.clear()
        self._saved.clear()
        self._agreed.clear()
        self.phase = SavePhase.PINNING
        of_role = {role: version for group, version in first.items() for role in group}
        left_s = max(0.0, self._ends_at - now)
        return [
            SendToMember(
                node=node,
                message=PinState(request=self._request, number=self._number, first=of_role[role], within_s=left_s),
            )
            for node, role in self._nodes.items()
        ]

    def _agree(self, now: float) -> list[SaveAction]:
        """Look if all nodes have pinned the same state, now that all have answered; else ask again."""
        if self._number == 1:
            self._empty = {node for node, pinned in self._pinned.items() if not pinned.held}
        wanted: dict[tuple[str, ...], StateVersion | None] = {}
        is_agreed = True
        for group in self._groups:
            held = [self._pinned[node].held for node, role in self._nodes.items() if role in group]
            if not any(held):
                wanted[group] = None
                continue
            pinned = {states[0].version if states else None for states in held}
            common = max(set.intersection(*(_versions(states) for states in held)), default=None)
            version = next(iter(pinned)) if len(pinned) == 1 else None
            if version is not None and (self._number > 1 or version == common):
                self._agreed[group] = wanted[group] = version
                continue
            is_agreed = False
            wanted[group] = common if common is not None and self._number == 1 else self._later(group, held)
        if not self._agreed and is_agreed:
            return self.give_up("no rank has a state in memory yet: the training calls memory.save, or the like, later")
        if is_agreed:
            return self._write()
        if self._number >= MOST_QUESTIONS:
            return self.give_up("the ranks have no step in common: do all of them save the same steps?")
        return self._ask(wanted, now)

    def _later(self, group: tuple[str, ...], held: Iterable[tuple[HeldState, ...]]) -> StateVersion:
        """Return a version a little later than any that the ranks of a group hold, each time a little later."""
        newest = max(version for states in held for version in _versions(states))
        ahead = self._ahead[group]
        self._ahead[group] = max(1, 2 * ahead)
        return StateVersion(attempt=newest.attempt, step=newest.step + ahead)

    def _write(self) -> list[SaveAction]:
        """Have the parts written of the states that all nodes have pinned."""
        held: dict[str, tuple[HeldState, ...]] = {}
        for group, version in self._agreed.items():
            for node, role in self._nodes.items():
                if role in group:
                    held[node] = tuple(each for each in self._pinned[node].held if each.version == version)
        writers = states_to_flush(self._world, held, self._world.attempt)
        if {flush.state for flush in writers.values()} != set(self._agreed.values()):
            return self.give_up("the states in memory belong to other ranks than there are now")
        self.phase = SavePhase.WRITING
        self._folder = save_name(max(version.step for version in self._agreed.values()), self._request)
        role_of = {role: version for group, version in self._agreed.items() for role in group}
        self._asked = {node for node, role in self._nodes.items() if role in role_of}
        return [
            SendToMember(
                node=node,
                message=SaveState(
                    request=self._request,
                    number=self._number,
                    version=role_of[role],
                    folder=self._folder,
                    flush=writers.get(node),
                ),
            )
            for node, role in self._nodes.items()
            if role in role_of
        ]

    def _wrote(self, node: str, message: Saved, now: float) -> list[SaveAction]:
        if message.is_gone and self._number >= MOST_QUESTIONS:
            return self.give_up(f"{node} had overwritten each state before all had agreed on it: {NO_ROOM}")
        if message.is_gone:
            # It was overwritten before it was firm: the next one is named before it is made.
            held = {
                group: [self._pinned[each].held for each, r in self._nodes.items() if r in group]
                for group in self._groups
            }
            return self._ask(
                {group: self._later(group, states) if any(states) else None for group, states in held.items()}, now
            )
        if message.problem is not None:
            return self.give_up(f"{node}: {message.problem}")
        self._saved[node] = message
        if len(self._saved) < len(self._asked) or self._folder is None:
            return []
        self.phase = SavePhase.COMPLETING
        files = {name: record for each in self._saved.values() for name, record in each.files.items()}
        return [CompleteSave(folder=self._folder, ended=self._world.attempt, states=self._states(), files=files)]

    def _states(self) -> tuple[ChosenState, ...]:
        return tuple(
            ChosenState(roles=group, attempt=version.attempt, step=version.step)
            for group, version in self._agreed.items()
        )


def _versions(states: Iterable[HeldState]) -> set[StateVersion]:
    return {state.version for state in states}
