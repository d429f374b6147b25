"""The training states in memory of simulated nodes, and the rules for which of them an attempt may begin with.

Ranks save in step, as training does that synchronises: no rank saves a step before all that share its store have saved
the one before. A kill may come in the middle of a save, and then the slot that was written to holds nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpc_elastic.errors import ExitCode
from hpc_elastic.failures.classes import FailureClass
from hpc_elastic.membership.held_states import part_of, rank_places, ranks_of, shared_place
from hpc_elastic.membership.messages import Assign
from hpc_elastic.rundir.records import AttemptClaim, World
from hpc_elastic.rundir.state_records import Flush, HeldState, KeptState, StateVersion
from hpc_elastic.state_memory import SLOTS, SlotState, choose_slot, is_copied
from tests.simulation.rules.asked_saves import PinnedStates
from tests.simulation.rules.copies import CopiesSeen, NodeCopies
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.workers import Worker
    from tests.simulation.world import SimulatedRun

COPY_S = 0.02
TRIES_AGAIN_S = 0.05


@dataclass(frozen=True)
class Saved:
    """What is in a slot. `rank` of `world_size` and `history` say whose it truly is: the attempts that led to it.

    `ordinal` is the how manieth save of its attempt it was, 0 for the state with which an attempt has begun.
    """

    version: StateVersion
    rank: int
    history: tuple[int, ...]
    is_damaged: bool = False
    ordinal: int = 0
    world_size: int = 0
    role: str = ""


class NodeStates:
    """The slots of one agent's local ranks; they are gone with the agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._run = agent.run
        self._slots: dict[int, list[Saved | None]] = {}
        self._part, self._shared = "", ""
        self._before: tuple[str, dict[int, list[Saved | None]]] = "", {}
        self._loaded: dict[int, Saved] = {}
        self._assign: Assign | None = None
        self._touched: dict[int, set[int]] = {}  # slots that have memory
        self._looked_at: tuple[object, ...] = ()  # for the newest that is copied: what there was, and what was found
        self._newest: list[Saved] | None = None
        self._others: tuple[int, list[Agent]] = (0, [])  # of an attempt
        self.copies = NodeCopies(agent, self)
        self.pinned = PinnedStates(agent, self)

    # What `pinned` asks for.

    @property
    def assign(self) -> Assign | None:
        return self._assign

    @property
    def is_replicated(self) -> bool:
        return self._is_replicated

    def complete(self) -> tuple[HeldState, ...]:
        """What all local ranks hold, without a look at more than the headers."""
        return self._in_all(list(self._slots.values()))

    def contents(self, local_rank: int) -> list[Saved | None]:
        return self._slots.get(local_rank, [None] * SLOTS)

    def slots(self, local_rank: int) -> list[SlotState]:
        return slot_states(self.contents(local_rank))

    @property
    def _is_replicated(self) -> bool:
        return self._run.scenario.are_replicated

    # What the agent does.

    def fetch(self, assign: Assign) -> StateVersion | None:
        """As `NodeWorkers._fetch_state`; return the state that is neither in memory nor in files."""
        wanted = assign.state
        if wanted is None:
            return None
        self._check(wanted)
        sources = [0] if self._is_replicated else list(range(assign.workers))
        slots = [self._slots.get(source, []) for source in sources]
        whose = (shared_place(assign.role), self._shared) if self._is_replicated else (part_of(assign), self._part)
        is_same_part = self._is_its_own(*whose)
        self._before = self._part, {}
        if is_same_part and all(any(each is not None and each.version == wanted for each in found) for found in slots):
            return None
        places = [shared_place(assign.role)] if self._is_replicated else rank_places(assign)
        copied = self.copies.fetch(assign, wanted)
        found = [self._run.kept.fetch(place, wanted) for place in places] if copied is None else copied
        if None in found:
            self._run.states.copied.lacks(self._agent, assign)
            return wanted
        empty = [None] * (SLOTS - 1)
        self._before = self._part, self._slots if assign.is_source else {}  # its keeper gives these for a while
        self._slots = {source: [saved, *empty] for source, saved in zip(sources, found, strict=True)}
        self._touched = {}
        return None

    def _is_its_own(self, wanted: str, here: str) -> bool:
        return wanted == here

    def own(self, part: str, shared: str, wanted: StateVersion) -> list[Saved] | None:
        """As `agent.keeper.own_states.OwnStates.find`."""
        role = self._assign.role if self._assign is not None else ""
        if self._is_replicated:
            memories = self._slots if shared == shared_place(role) else {}
        else:
            memories = {self._before[0]: self._before[1], self._part: self._slots}.get(part, {})
        sources = [memories.get(0, [])] if self._is_replicated else list(memories.values())
        if not sources:
            return None
        found = [
            next((each for each in slots if each is not None and each.version == wanted), None) for slots in sources
        ]
        return [each for each in found if each is not None] if None not in found else None

    def newest_copied(self) -> list[Saved] | None:
        """As `agent.keeper.own_states.OwnStates.newest_copied`."""
        if self._is_replicated or not self._slots:
            return None
        every = self.copies.every
        looked_at = (every, *map(tuple, self._slots.values()))
        if looked_at != self._looked_at:  # the keeper looks often, and rarely is anything new
            found = [
                {each.version: each for each in slots if each is not None and is_copied(each.ordinal, every)}
                for slots in self._slots.values()
            ]
            version = max(set.intersection(*map(set, found)), default=None)
            self._newest = None if version is None else [states[version] for states in found]
            self._looked_at = looked_at
        return self._newest

    def flush(self, flush: Flush) -> None:
        """As `LocalWorkers.flush_state`."""
        if (assign := self._assign) is None:
            return
        places = [shared_place(assign.role)] if self._is_replicated else rank_places(assign)
        for local_rank, place in enumerate(places):
            slots = self._slots.get(local_rank, [])
            saved = next((each for each in slots if each is not None and each.version == flush.state), None)
            if saved is not None:
                self._run.kept.write(flush.ended, place, saved)
        for part in flush.copies:
            for (rank, place), saved in zip(ranks_of(part), self.copies.copy_of(part, flush.state), strict=False):
                is_its_own = rank == saved.rank or self._is_replicated
                require(is_its_own, f"{self._agent.name} writes the state of rank {saved.rank} as that of {rank}")
                self._run.kept.write(flush.ended, place, saved)

    def begin(self, assign: Assign) -> None:
        """As `agent.workers.rank_states.RankStates.begin`."""
        self._part, self._shared, self._assign = part_of(assign), shared_place(assign.role), assign
        self._slots = {rank: self._slots.get(rank, [None] * SLOTS) for rank in range(assign.workers)}
        self._loaded = {}
        for local_rank in range(assign.workers):
            source = 0 if self._is_replicated else local_rank
            found = next((each for each in self._slots[source] if each and each.version == assign.state), None)
            require(assign.state is None or found is not None, f"{self._agent.name} has not got {assign.state}")
            if found is not None:
                self._loaded[local_rank] = found
        self._forget(assign.state)
        for slots in self._slots.values():
            slots[:] = [None if each is None else replace(each, ordinal=0) for each in slots]
        self.pinned.begin(assign.workers)
        self.copies.begin(assign, self._part)
        for local_rank in range(assign.workers):
            self._run.states.begins(assign, assign.first_rank + local_rank, self._loaded.get(local_rank))

    def _forget(self, but: StateVersion | None) -> None:
        for slots in self._slots.values():
            slots[:] = [each if each is not None and each.version == but else None for each in slots]

    def verify(self) -> tuple[HeldState, ...]:
        """As `RankStates.verify`."""
        for state in sorted(self._held(), key=lambda each: each.version, reverse=True):
            self._check(state.version)
            if state in self._held():
                break
        return self._held() + self.copies.held()

    def _held(self) -> tuple[HeldState, ...]:
        return self._in_all(list(self._slots.values()))

    def _check(self, version: StateVersion) -> None:
        """As `RankStates._check`: what is damaged of a version is forgotten."""
        for slots in self._slots.values():
            for slot, each in enumerate(slots):
                if each is not None and each.version == version and self._is_found_damaged(each):
                    slots[slot] = None

    def _is_found_damaged(self, saved: Saved) -> bool:
        return saved.is_damaged

    def truth(self) -> tuple[HeldState, ...]:
        """What all local ranks hold, whether or not anybody has looked at the newest of it, which is undamaged."""
        slots = [{each.version: each for each in slots if each is not None} for slots in self._slots.values()]
        found = sorted(self._held(), key=lambda each: each.version)
        while found and any(each[found[-1].version].is_damaged for each in slots if found[-1].version in each):
            found.pop()
        return tuple(found)

    def _in_all(self, slots_of_ranks: Iterable[Iterable[Saved | None]]) -> tuple[HeldState, ...]:
        held = [{each.version for each in slots if each is not None} for slots in slots_of_ranks]
        if self._is_replicated:
            held = held[:1]
        part = self._shared if self._is_replicated else self._part
        common = sorted(set.intersection(*held)) if held else []
        return tuple(HeldState(attempt=each.attempt, step=each.step, part=part) for each in common)

    # What the ranks do.

    def work(self, worker: Worker, dice: random.Random) -> None:
        """A rank has begun."""
        if (every_s := self._run.scenario.keeps_every_s) is not None:
            loaded = self._loaded.get(worker.local_rank)
            step = loaded.version.step if loaded is not None else 0
            history = (*(loaded.history if loaded is not None else ()), worker.attempt)
            self._first_step = step + 1
            self._save_later(worker, step + 1, history, every_s, dice)

    def _save_later(
        self, worker: Worker, step: int, history: tuple[int, ...], after_s: float, dice: random.Random
    ) -> None:
        pause_s = after_s * dice.uniform(0.5, 1.5)
        self._run.clock.after(pause_s, lambda: self._save(worker, step, history, dice))

    def _is_alive(self, worker: Worker) -> bool:
        return self._agent.workers.alive.get(worker.local_rank) is worker

    def _are_others_reached(self, worker: Worker) -> bool:
        """Whether a step that takes a collective can be made: else no rank gets so far that it saves."""
        if self._run.scenario.copy_s is None:
            return True
        here, network = self._agent, self._run.network
        if self._others[0] != worker.attempt:
            names = {node.node for node in self._run.disk.worlds[worker.attempt].nodes} - {here.name}
            self._others = worker.attempt, [self._run.peer(here, name) for name in names]
        return all(network.is_open(here, each) and network.is_open(each, here) for each in self._others[1])

    def _save(self, worker: Worker, step: int, history: tuple[int, ...], dice: random.Random) -> None:
        every_s = self._run.scenario.keeps_every_s
        if not self._is_alive(worker) or every_s is None:
            return
        if not self._run.states.may_save(worker, step) or not self._are_others_reached(worker):
            self._save_later(worker, step, history, TRIES_AGAIN_S, dice)
            return
        if self._is_replicated and worker.local_rank:
            self._run.states.saved(worker, step)
            self._save_later(worker, step + 1, history, every_s, dice)
            return
        slots = self._slots[worker.local_rank]
        touched = self._touched.setdefault(worker.local_rank, set())
        beside = self._beside_pinned(worker.local_rank, slots, touched)
        slot = self._victim(slots, touched) if beside is None else beside
        slots[slot] = None
        self._touched[worker.local_rank].add(slot)
        is_damaged = dice.random() < self._run.scenario.damage_chance
        version = self._version(worker, step)
        world_size = len(self._run.disk.worlds[worker.attempt].ranks)
        ordinal = step - self._first_step + 1
        saved = Saved(version, worker.rank, history, is_damaged, ordinal, world_size, worker.role)

        def commit() -> None:
            if self._is_alive(worker) and self._slots.get(worker.local_rank) is slots:
                slots[slot] = saved
                self._run.states.saved(worker, step)
                self._save_later(worker, step + 1, history, every_s, dice)

        self._run.clock.after(COPY_S, commit)

    def _version(self, worker: Worker, step: int) -> StateVersion:
        return StateVersion(attempt=worker.attempt, step=step)

    def _beside_pinned(self, local_rank: int, slots: list[Saved | None], touched: set[int]) -> int | None:
        every = 0 if self._is_replicated else self.copies.every
        with_memory = touched | {number for number, each in enumerate(slots) if each is not None}
        return self.pinned.beside(local_rank, slot_states(slots), with_memory, every)

    def _victim(self, slots: list[Saved | None], touched: set[int]) -> int:
        """As `worker.rank_state`."""
        every = 0 if self._is_replicated else self.copies.every
        with_memory = touched | {number for number, each in enumerate(slots) if each is not None}
        return choose_slot(slot_states(slots), with_memory, every)


def slot_states(slots: list[Saved | None]) -> list[SlotState]:
    """As `state_memory.read_slots`."""
    found = [
        SlotState(
            slot=number,
            sequence=1,
            attempt=saved.version.attempt,
            step=saved.version.step,
            length=1,
            is_replicated=False,
            crc=None,
            ordinal=saved.ordinal,
        )
        for number, saved in enumerate(slots)
        if saved is not None
    ]
    return sorted(found, key=lambda state: state.version, reverse=True)


class StatesSeen:
    """What the ranks of a run have saved and begun with, and the rules for it."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._last: dict[tuple[str, int], dict[int, int]] = {}  # by group and attempt: by rank, the latest step saved
        self._begun: dict[tuple[str, int], tuple[int, Saved | None]] = {}
        # By role, who begins with the same step: the roles that restart together, or one that does not.
        self._groups = {role.name: "*" if role.restart == "restart_all" else role.name for role in run.scenario.roles}
        self._ranks: dict[tuple[str, int], list[int]] = {}  # by group and attempt
        self.loads = 0  # attempts that began with a state in memory
        self.copied = CopiesSeen(run)

    def begins(self, assign: Assign, rank: int, saved: Saved | None) -> None:
        """A rank begins with this state."""
        key = (self._groups[assign.role], assign.attempt)
        other, found = self._begun.setdefault(key, (rank, saved))
        self.loads += rank == other and saved is not None
        what = f"ranks {other} and {rank} begin attempt {assign.attempt} with {found} and {saved}"
        require((found is None) == (saved is None), f"{what}: one in memory, one on disk")
        if saved is None or found is None:
            return
        require(not saved.is_damaged, f"rank {rank} begins with a damaged state")
        require((saved.version, saved.history) == (found.version, found.history), f"{what}: two steps")
        is_its_own = (saved.rank, saved.world_size) == (rank, assign.world_size) or self._run.scenario.are_replicated
        require(is_its_own, f"rank {rank} begins with the state of rank {saved.rank}")
        require(saved.role == assign.role, f"rank {rank} of role {assign.role} begins with a state of {saved.role}")

    def may_save(self, worker: Worker, step: int) -> bool:
        """Whether all ranks that share this one's store have saved the step before, if they have begun after it."""
        group = self._groups[worker.role]
        part = group, worker.attempt
        loaded = self._begun[part][1]
        if step <= 1 + (loaded.version.step if loaded is not None else 0):
            return True
        ranks = self._ranks.get(part)
        if ranks is None:
            world = self._run.disk.worlds[worker.attempt]
            ranks = self._ranks[part] = [each.rank for each in world.ranks if self._groups[each.role] == group]
        last = self._last.get(part, {})
        return all(last.get(rank, 0) >= step - 1 for rank in ranks)

    def saved(self, worker: Worker, step: int) -> None:
        """A rank has committed a state."""
        self._last.setdefault((self._groups[worker.role], worker.attempt), {})[worker.rank] = step

    def claimed(self, head: Agent, claim: AttemptClaim, world: World, before: AttemptClaim | None) -> None:
        """An attempt is claimed: each group begins with the newest state that all of its nodes hold."""
        if self._run.scenario.keeps_every_s is None:
            return
        chosen = {role: state.version for state in claim.states for role in state.roles}
        tried = {state.version for state in before.states} if before is not None else set()
        for group in {self._groups[role] for role in claim.roles}:
            names = [node.node for node in world.nodes if self._groups[node.role] == group]
            newest = max(self._common(head, world, names, before), default=None)
            found = next(chosen.get(role) for role in claim.roles if self._groups[role] == group)
            again = f"attempt {claim.attempt} begins {group} with {found}, with which it has failed as it had before"
            require(found is None or found not in tried or not self._has_failed_again(claim, before), again)
            if self._run.scenario.copy_s is not None:
                latest = 0 if before is None else before.attempt
                self.copied.claimed(head, world, names, found, before, self._last.get((group, latest), {}))
                continue
            is_given_up = found is None and newest in tried
            text = f"attempt {claim.attempt} begins {group} with {found}, and all its nodes hold {newest}"
            require(found == newest or is_given_up, text)
            if before is not None and not is_given_up:
                self._check_survived(world, group, before, found)

    def _has_failed_again(self, claim: AttemptClaim, before: AttemptClaim | None) -> bool:
        """Whether the attempt before has failed as the one before that had, which this head saw, and nothing else did.

        Left out: roles that restart alone, of which each has failures of its own; and signals from outside, whose
        reason is in no state.
        """
        if before is None or before.head != claim.head or before.allocation != claim.allocation:
            return False
        signature = claim.failure_signature
        is_inside = signature is not None and not signature.startswith(f"{FailureClass.SIGNAL.value}/")
        is_same = is_inside and signature == before.failure_signature
        is_charged = (
            claim.spend.restarts == before.spend.restarts + 1 and claim.spend.node_losses == before.spend.node_losses
        )
        return is_same and is_charged and len(set(self._groups.values())) == 1 and "*" in self._groups.values()

    def _check_survived(self, world: World, group: str, before: AttemptClaim, found: StateVersion | None) -> None:
        """Nothing that all ranks had saved is lost, if no node and no state was."""
        earlier = self._run.disk.worlds[before.attempt]
        is_kept = before.allocation == world.allocation or self._have_all_left_one_head(earlier)
        if earlier.ranks != world.ranks or not is_kept or self._run.scenario.damage_chance:
            return
        if self._run.scenario.room < 3 and self._run.asked_saves.are_asked:
            return  # a rank that dies in the middle of a save costs the steps since the one that is written
        ranks = [each.rank for each in earlier.ranks if self._groups[each.role] == group]
        attempt = next(each.attempt for each in earlier.roles if self._groups[each.role] == group)
        last = self._last.get((group, attempt), {})
        step = min(last.get(rank, 0) for rank in ranks)
        text = f"attempt {world.attempt} begins with {found}, and all ranks had saved step {step} of attempt {attempt}"
        require(step == 0 or (found is not None and found >= StateVersion(attempt=attempt, step=step)), text)

    def _have_all_left_one_head(self, world: World) -> bool:
        """Whether each agent of a world of the job's start before was told to leave by its head, and to go on later.

        Who has lost that head since, as one that is cut off, may leave with 75 as well; no head knows what it holds.
        """
        names, began_at = {node.node for node in world.nodes}, self._run.disk.asked_at[world.attempt]
        earlier = [agent for agent in self._run.earlier if agent.name in names]
        return all(
            agent.left_at < agent.died_at and agent.exit_code == ExitCode.REQUEUE and agent.searched_at < began_at
            for agent in earlier
        )

    def _kept(self, world: World, before: AttemptClaim | None) -> list[KeptState]:
        """What the files say that the allocation before has left, if no step was done since."""
        if before is None:
            return []
        if before.allocation != world.allocation:
            return list(self._run.kept.read(before.attempt))
        begun = {state.version for state in before.states}
        earlier = [self._run.kept.read(attempt) for attempt in range(1, before.attempt)]
        since = {step for (_, attempt), steps in self._last.items() for step in steps if attempt == before.attempt}
        return [] if since else [each for kept in earlier for each in kept if each.version in begun]

    def _common(
        self, head: Agent, world: World, names: Iterable[str], before: AttemptClaim | None
    ) -> set[StateVersion]:
        fitting, kept = [], self._kept(world, before)
        for name in names:
            node = next(each for each in world.nodes if each.node == name)
            role = next(each for each in world.roles if each.role == node.role)
            first = world.ranks[node.first_rank].role_rank
            shape = f"{node.first_rank}+{node.workers}/{len(world.ranks)} {first}/{role.size} {node.role}"
            held = self._run.peer(head, name).workers.states.truth()
            places = {
                f"{rank}/{len(world.ranks)} {world.ranks[rank].role_rank}/{role.size} {node.role}"
                for rank in range(node.first_rank, node.first_rank + node.workers)
            }
            fitting.append(
                {each.version for each in held if each.part in (shape, shared_place(node.role))}
                | {each.version for each in kept if places <= each.places or f"* {node.role}" in each.places}
            )
        return set.intersection(*fitting) if fitting else set()
