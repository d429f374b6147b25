"""What people have written while ranks go on: the node's part and the files, and the rules for them.

The head's side, the node's side and the pins are the shipped ones. Files are what a rank had in its slot, with whose it
truly is; to write one takes two questions to the server, and what is overwritten in memory meanwhile is gone.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from hpc_elastic.agent.workers.rank_states import RankStates
from hpc_elastic.agent.workers.requested_saves import RequestedSaves
from hpc_elastic.agent.workers.state_files import StateFileError, StateGoneError, StatePart
from hpc_elastic.membership.actions import Note
from hpc_elastic.membership.held_states import rank_places, shared_place
from hpc_elastic.membership.messages import PinState
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Request
from hpc_elastic.rundir.saved_states import save_name
from hpc_elastic.rundir.state_records import Flush, HeldState, KeptRecord, KeptState, SaveManifest, StateVersion
from hpc_elastic.state_memory import (
    CONTROL_BYTES,
    NOTHING,
    PIN_IS_FIRM,
    PIN_STEP,
    SlotState,
    choose_slot,
    pin_states,
    pinned_state,
)
from tests.simulation.disk import LAYOUT
from tests.simulation.file_system import DiskThread, _thread
from tests.simulation.rules.invariants import require
from tests.simulation.scenario import Fault

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.rules.states import NodeStates, Saved
    from tests.simulation.world import SimulatedRun

LATE_S = 1.0  # a node's clock and the head's, and a message
ANSWERS_WITHIN_S = 5.0  # a head that nothing disturbs, once it has begun to go
SAVES = ("ask_save",)


class PinnedStates:
    """What the shipped `RequestedSaves` asks of a node's memories: `agent.workers.rank_states.RankStates`."""

    pin = RankStates.pin
    unpin = RankStates.unpin

    def __init__(self, agent: Agent, states: NodeStates) -> None:
        self._agent = agent
        self._states = states
        self._numbers: list[memoryview] = []

    def begin(self, workers: int) -> None:
        """An attempt begins, in memories that there are or in new ones."""
        del self._numbers[workers:]
        while len(self._numbers) < workers:
            self._numbers.append(memoryview(bytearray(CONTROL_BYTES)).cast("q"))
        for numbers in self._numbers:
            pin_states(numbers, None)

    @property
    def are_pinned(self) -> bool:
        return any(numbers[PIN_STEP] for numbers in self._numbers)

    def hold(self) -> tuple[HeldState, ...]:
        return self._held()

    def _held(self) -> tuple[HeldState, ...]:
        return self._states.complete()

    def make_pin_firm(self, version: StateVersion) -> None:
        RankStates.make_pin_firm(cast(RankStates, self), version)
        self._agent.run.asked_saves.is_firm(self._agent, version)

    def parts_of(self, flush: Flush, layout: RunLayout) -> list[StatePart]:
        assign = self._states.assign
        if assign is None:
            return []
        if self._states.is_replicated:
            whose = [(layout.kept_of_all(assign.role), shared_place(assign.role))]
        else:
            ranks = range(assign.first_rank, assign.first_rank + assign.workers)
            whose = list(zip(map(layout.kept_of_rank, ranks), rank_places(assign), strict=True))
        wanted = flush.state.attempt, flush.state.step
        return [
            StatePart(
                name=name,
                place=place,
                descriptor=rank,
                state=next((each for each in self._states.slots(rank) if each.version == wanted), None),
            )
            for rank, (name, place) in enumerate(whose)
        ]

    def beside(self, local_rank: int, held: list[SlotState], with_memory: set[int], every: int) -> int | None:
        """As `worker.rank_state`: the slot for a state if another one is pinned."""
        numbers = self._numbers[local_rank]
        if (pinned := pinned_state(numbers, held)) is None:
            return None
        slots = [choose_slot(held, with_memory, every, pinned)]
        if numbers[PIN_IS_FIRM]:
            slots += [choose_slot(held, with_memory, 0, pinned), *sorted(with_memory)]
        has_room = len(with_memory) < self._agent.run.scenario.room
        able = (slot for slot in slots if slot not in (NOTHING, pinned.slot) and (has_room or slot in with_memory))
        return next(able, None)


class NodeSaves(RequestedSaves):
    """The shipped one, whose files are simulated."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(cast(RankStates, agent.workers.states.pinned), LAYOUT)
        self._agent = agent
        self.begun_in = 0  # the attempt whose workers ran as the head asked

    def _begin(self, message: PinState) -> None:
        super()._begin(message)
        self.begun_in = self._agent.workers.attempt

    @property
    def request(self) -> str | None:
        return self._request


class WriterThread:
    """As `threading.Thread`, of an agent: it is frozen and killed with it."""

    def __init__(self, *, target: Any, args: tuple[Any, ...], name: str, daemon: bool) -> None:
        self._agent: Agent = cast(Any, asyncio.get_running_loop()).agent
        self._work: Callable[[], object] = lambda: target(*args)
        self._is_alive = False

    def is_alive(self) -> bool:
        return self._is_alive

    def start(self) -> None:
        agent, self._is_alive = self._agent, True
        thread = DiskThread(agent, agent.run.scenario.disk_s, agent.run.asked_saves.dice)
        thread.stalled_until, thread.fails_until = agent.disk.stalled_until, agent.disk.fails_until

        def work() -> None:
            self._work()
            self._is_alive = False

        clock = agent.run.clock
        clock.at(clock.now, lambda: agent.process.when_thawed(lambda: thread._run(work)))


def write_parts(
    folder: str, parts: list[StatePart], *, is_wanted: Any
) -> tuple[dict[str, KeptRecord], list[Exception]]:
    """As `agent.workers.state_files.write_parts`, of one agent, in its writer's thread."""
    thread = _thread()
    agent, records, errors = thread.agent, dict[str, KeptRecord](), list[Exception]()
    slots = {part.descriptor: agent.workers.states.contents(part.descriptor) for part in parts}
    for part in parts:
        assert part.state is not None
        content = slots[part.descriptor]
        saved = content[part.state.slot]
        try:
            if saved is None or (saved.version.attempt, saved.version.step) != part.state.version:
                raise StateGoneError("it is gone")
            for _ in range(2):
                thread.sleep(agent.run.scenario.write_s / 2)
                thread.ask(lambda: None, is_write=True)
                if not is_wanted():
                    raise StateFileError("it is not wanted any more")
            if content[part.state.slot] is not saved:
                raise StateGoneError("it was overwritten")
        except (StateFileError, OSError) as error:
            errors.append(error)
            continue
        agent.run.asked_saves.files[folder][part.name] = part.place, saved
        records[part.name] = KeptRecord(
            attempt=saved.version.attempt, step=saved.version.step, place=part.place, length=1, crc=0
        )
    return records, errors


def remove_parts(folder: str, names: tuple[str, ...]) -> None:
    """As `rundir.saved_states.remove_parts`."""
    files = _thread().agent.run.asked_saves.files
    for name in names:
        files[folder].pop(name, None)
    if not files[folder]:
        del files[folder]


FAKE_OS = SimpleNamespace(dup=lambda descriptor: descriptor, close=lambda _: None)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request, and when it was made; `could_be_heard`: a head was at work, which nobody has disturbed before."""

    request: Request
    moment: float
    could_be_heard: bool


class AskedSaves:
    """Of one run: the files and the answers. Every method that checks raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self.files: defaultdict[str, dict[str, tuple[str, Saved]]] = defaultdict(dict)  # by folder and name
        self.manifests: dict[str, SaveManifest] = {}
        self._asked: dict[str, Asked] = {}
        self._answers: dict[str, Note] = {}
        self._firm: set[tuple[Agent, StateVersion]] = set()
        self._complete: set[str] = set()  # requests whose state has counted
        self.saved = 0

    @cached_property
    def dice(self) -> random.Random:
        """Of the threads that see to the files."""
        return random.Random(f"{self._run.scenario.seed}/asked saves")

    @property
    def are_asked(self) -> bool:
        return bool(self._asked)

    def ask(self, fault: Fault) -> None:
        """A person asks now."""
        run, name = self._run, f"{len(self._asked):08x}{'0' * 24}"
        request = Request(kind="save", by="ada@login", time="", id=name, seconds_left=fault.lasts_s)
        could_be_heard = bool(run.disk.claims) and not run.is_disturbed
        self._asked[name] = Asked(request=request, moment=run.clock.now, could_be_heard=could_be_heard)
        run.requests.append(request)

    def is_firm(self, agent: Agent, version: StateVersion) -> None:
        """A node's ranks keep this state from now on, even if there is no room for another."""
        self._firm.add((agent, version))

    def complete(self, head: Agent, folder: str, manifest: SaveManifest) -> str | None:
        """As `agent.records.journal.complete_save`."""
        path = LAYOUT.saved_states(folder)
        found, world = self.files.get(path, {}), self._run.disk.worlds[manifest.ended]
        missing = sorted(set(manifest.files) - set(found))
        require(not missing, f"{missing} of {folder}, which {head.name} completes, are not there any more")
        for state in manifest.states:
            nodes = [node for node in world.nodes if node.role in state.roles]
            loose = [node.node for node in nodes if (self._run.peer(head, node.node), state.version) not in self._firm]
            require(not loose, f"{folder} has {state.version}, which {loose} do not keep")
            files = [saved for _, saved in found.values() if saved.role in state.roles]
            mixed = {(saved.version, saved.history) for saved in files}
            require(len(mixed) == 1, f"{folder} has {mixed} for {state.roles}")
            ranks = {rank.rank for rank in world.ranks if rank.role in state.roles}
            is_whole = self._run.scenario.are_replicated or {saved.rank for saved in files} == ranks
            require(is_whole, f"{folder} has not the states of all ranks {ranks}")
            roles = {saved.role for saved in files}
            require(roles == set(state.roles), f"{folder} has the states of {roles}, expected {state.roles}")
        self.manifests = {path: manifest}
        for other in [each for each in self.files if each != path]:
            del self.files[other]
        self._complete.add(manifest.request)
        self._run.trace(head, manifest)
        self.saved += 1
        return None

    def remove(self, request: str | None) -> None:
        """As `rundir.saved_states.remove_incomplete_saves`."""
        whose = "" if request is None else save_name(0, request)[1:]
        for folder in [each for each in self.files if each.endswith(whose) and each not in self.manifests]:
            self._run.trace("files", f"{folder} is removed")
            del self.files[folder]

    def answered(self, note: Note) -> None:
        """A person reads what came of a request."""
        request = str(note.metadata["request"])
        before = self._answers.setdefault(request, note)
        require(before == note, f"{request} is answered twice: {before.message}; {note.message}")
        is_complete = request in self._complete
        require(note.name != "state.saved" or is_complete, f"{request} is said to be saved, and is not")
        self._run.trace("answer", note.message)

    def watch(self) -> None:
        """From time to time, and when an agent goes."""
        for agent in self._run.everybody:
            saves = agent.saves
            if saves is None or not agent.is_running or agent.is_paused:
                continue
            is_pinned, now = agent.workers.states.pinned.are_pinned, self._run.clock.now
            if not is_pinned:
                continue
            asked = self._asked.get(saves.request or "")
            require(asked is not None, f"{agent.name} has a state pinned, and nobody asks for it")
            assert asked is not None
            same = saves.begun_in == agent.workers.attempt
            require(same, f"{agent.name} has a state of attempt {agent.workers.attempt} pinned, asked for before")
            until = asked.moment + (asked.request.seconds_left or 0.0)
            late_s = now - until * 1.01 - LATE_S - self._run.progress.slack_s
            require(late_s < 0 or agent.process.has_ever_frozen, f"{agent.name} has a state pinned {late_s:.1f} s late")

    def check_end(self) -> None:
        """When nobody runs any more."""
        run = self._run
        if run.is_disturbed or not run.disk.results:
            return
        for name, asked in self._asked.items():
            # On a slow disk the head reads it late, and its result is there long after it has decided.
            is_early = asked.moment < run.disk.ended_at - ANSWERS_WITHIN_S - run.progress.slack_s
            require(name in self._answers or not (asked.could_be_heard and is_early), f"{name} was never answered")
        left = [folder for folder in self.files if folder not in self.manifests]
        require(not left, f"{left} are left of saves that were given up")

    # As what was kept.

    def rename(self, ended: int, latest: int) -> None:
        self.manifests = {
            path: replace(each, ended=latest) if each.ended == ended else each for path, each in self.manifests.items()
        }

    def read(self, ended: int) -> list[KeptState]:
        places: defaultdict[StateVersion, set[str]] = defaultdict(set)
        for manifest in self.manifests.values():
            for record in manifest.files.values() if manifest.ended == ended else ():
                places[record.version].add(record.place)
        return [KeptState(ended=ended, version=version, places=frozenset(each)) for version, each in places.items()]

    def fetch(self, place: str, version: StateVersion) -> Saved | None:
        found = (self.files[path].values() for path in self.manifests)
        return next(
            (saved for files in found for whose, saved in files if (whose, saved.version) == (place, version)), None
        )
