"""What a head knows of training states over its attempts: which may be begun with, and which are kept at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hpc_elastic.membership.decisions import History
from hpc_elastic.membership.held_states import (
    Held,
    choose_states,
    role_of,
    state_for,
    states_to_flush,
    why_not_flushed,
)
from hpc_elastic.membership.members import Members
from hpc_elastic.membership.rounds import HeadSettings, starting_roles
from hpc_elastic.rundir.records import AttemptClaim, World
from hpc_elastic.rundir.state_records import ChosenState, Flush, HeldState, KeptState, StateVersion


class RunStates:
    """The training states of one head: those that nodes hold in memory, and those that the run directory has.

    A state with which the same failure came again, and one that a node could not provide, is not begun with again.

    Args:
        settings: the head's settings.
        members: the head's members, with the states that each says it holds.
        history: the run so far, from its latest claim.
        kept: the training states that the run directory had when the allocation began.
    """

    def __init__(
        self, settings: HeadSettings, members: Members, history: History, kept: Sequence[KeptState] = ()
    ) -> None:
        self._settings = settings
        self._members = members
        self.lines: tuple[str, ...] = ()  # about what the next attempt begins with
        self.lines_at_end: tuple[str, ...] = ()  # about what is not written as the allocation ends
        self.chosen: tuple[ChosenState, ...] = ()  # with which the roles that start begin
        self.sources: Mapping[str, tuple[str, ...]] = {}  # the nodes from which each node gets it that has not got it
        self._claimed: tuple[ChosenState, ...] = ()  # of these, and of roles that run on
        self._began_after: dict[str, str | None] = {}  # by role: the signature of the failure before its latest start
        self._distrusted: tuple[ChosenState, ...] = ()  # after whose loading the same failure came again
        self._missing: set[tuple[str, StateVersion]] = set()  # states that a node of a role could not provide
        succession = members.gathering.succession
        self._world_to_succeed = None if succession is None else succession.world  # until this head claims its first
        self._kept = tuple(state for state in kept if state.ended == history.attempts)
        if succession is not None:  # of the states that the allocation found at its begin, those that it goes on with
            self._kept = _of_roles(kept, lambda role, version: state_for(history.states, role) == version)

    def failed_again(self, role: str | None, begun: Sequence[ChosenState], signature: str | None) -> None:
        """Distrust the states in which the reason for a role's failure can be, if it failed so before it began, too.

        What has failed since then, in the same pause too, is no reason to distrust the state with which it began.

        Args:
            role: whose failure it is: it counts for its own state, if it restarts alone, else for those of all.
            begun: the states with which the roles had begun.
            signature: of the failure.
        """
        if signature == self._began_after.get(role or ""):
            is_alone = self._settings.restarts.get(role or "") == "restart_role"
            self._distrusted += tuple(state for state in begun if role in state.roles or not is_alone)

    def choose(self, claim: AttemptClaim, world: World, begun: Sequence[ChosenState]) -> AttemptClaim:
        """Return the claim with the training states in memory with which its roles begin; `begun`: those before."""
        held = self._held()
        kept = [state for state in self._usable() if not _has_newer(held, state)]
        keepers = [member.node for member in self._members.roster if member.join.keeper_port]
        choice = choose_states(
            world,
            claim.roles,
            held,
            distrusted=self._distrusted,
            kept=kept,
            keepers=keepers,
            at_odds=self._at_odds(),
        )
        self.sources = choice.sources
        self.lines, self._distrusted = choice.lines, ()
        running = (state for state in begun if not set(state.roles) <= set(claim.roles))
        self.chosen, self._claimed = choice.states, (*choice.states, *running)
        return replace(claim, states=self._claimed)

    def attempt_claimed(self, signature: str | None) -> tuple[ChosenState, ...]:
        """Take note that the attempt is claimed, after a failure of this signature; return the states it is begun with.

        With another state, or none, a role does steps of which the run directory knows nothing.
        """
        begun, self._world_to_succeed = self._claimed, None
        if (world := self._members.world) is not None:
            self._began_after.update(dict.fromkeys(starting_roles(world), signature))
        self._kept = _of_roles(self._kept, lambda role, version: state_for(begun, role) == version)
        return begun

    def misses(self, role: str, state: StateVersion) -> None:
        """Let a role begin no further attempt with a state that one of its nodes could not provide.

        Another role may have its own state of the same attempt and step, which is whole.
        """
        self._missing.add((role, state))

    def flushes(self, latest: int, *, within_s: float | None = None) -> dict[str, Flush]:
        """Return which training states are written as the allocation ends after the attempt `latest`, by node.

        None are if nothing newer is held than what the allocation before has written, which a broken writing must not
        cost (see `unused`).
        """
        if (world := self._members.world) is None:
            return {}
        flushes = states_to_flush(world, self._held(), latest)
        lines = why_not_flushed(world, self._held(), at_odds=self._at_odds())
        self.lines_at_end = lines if self.unused(latest) is None else ()
        written = {state.version for state in self._kept if state.ended}
        if self.unused(latest) is not None and all(flush.state in written for flush in flushes.values()):
            return {}
        return {node: replace(flush, within_s=within_s) for node, flush in flushes.items()}

    def unused(self, latest: int) -> int | None:
        """Return the attempt after which states were written that this allocation has begun with and not gone beyond.

        They serve the next allocation as well, as those of the attempt `latest`; None if there are none, or newer ones.
        """
        held = self._held()
        kept = [state for state in self._usable() if state.ended < latest and not _has_newer(held, state)]
        return kept[0].ended if kept else None

    def _held(self) -> dict[str, tuple[HeldState, ...]]:
        """Return the states that nodes hold, but for those that a node of their role could not provide."""
        missing = self._missing
        return {
            member.node: tuple(
                state
                for state in member.held
                if not state.is_partial and (role_of(state.part), state.version) not in missing
            )
            for member in self._members.roster
        }

    def _at_odds(self) -> frozenset[str]:
        """Return the nodes whose ranks have saved, and have no step in common."""
        return frozenset(
            member.node for member in self._members.roster if any(state.is_partial for state in member.held)
        )

    def _usable(self) -> tuple[KeptState, ...]:
        """Return the states that the run directory has, but for those that a node of their role could not provide.

        To a head that has succeeded another one, nodes of the lost head's world say that their role has none that is
        newer. Where none of a role is here any more, its ranks may have saved long ago, to disk as well.
        """
        last, names = self._world_to_succeed, set(self._members.roster.names())
        silent = (
            ()
            if last is None
            else {role.role for role in last.roles}.difference(node.role for node in last.nodes if node.node in names)
        )
        return _of_roles(self._kept, lambda role, version: (role, version) not in self._missing and role not in silent)


def _of_roles(kept: Sequence[KeptState], counts: Callable[[str, StateVersion], bool]) -> tuple[KeptState, ...]:
    """Return kept states with the parts of only those roles of which this version counts."""
    parts = (
        replace(state, places=frozenset(each for each in state.places if counts(role_of(each), state.version)))
        for state in kept
    )
    return tuple(state for state in parts if state.places)


def _has_newer(held: Held, kept: KeptState) -> bool:
    """Return whether a node holds a state that is newer than a kept one: then the disk may have one, too."""
    return any(state.version > kept.version for states in held.values() for state in states)
