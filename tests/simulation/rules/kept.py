"""The training states that simulated agents have written to the run directory as their allocation ended."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from hpc_elastic.rundir.records import RunState
from hpc_elastic.rundir.state_records import KeptState, StateVersion
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.rules.states import Saved
    from tests.simulation.world import SimulatedRun


class Kept:
    """The files, by the attempt after which they were written, and by whose they are."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._files: defaultdict[int, dict[str, Saved]] = defaultdict(dict)
        self.whole = True  # no file is lost or damaged so far

    @cached_property
    def _dice(self) -> random.Random:
        return random.Random(f"{self._run.scenario.seed}/kept")

    def write(self, ended: int, place: str, saved: Saved) -> None:
        """As `agent.workers.state_files.write_states`; the agent may be killed before, and the file may be damaged."""
        self._check_place(ended, place, saved)
        chance = self._run.scenario.damage_chance
        if saved.is_damaged or self._dice.random() < chance:
            self.whole = False
            return
        is_damaged = self._dice.random() < chance
        self.whole = self.whole and not is_damaged
        self._files[ended][place] = replace(saved, is_damaged=is_damaged)

    def _check_place(self, ended: int, place: str, saved: Saved) -> None:
        """A file is of the rank whose state it has, or of all ranks of a role: who reads it finds it by that."""
        world = self._run.disk.worlds[ended]
        ranks = {(each.role, each.rank): each.role_rank for each in world.ranks}
        sizes = {role.role: role.size for role in world.roles}
        role_rank = ranks.get((saved.role, saved.rank))
        whose = f"{saved.rank}/{len(world.ranks)} {role_rank}/{sizes.get(saved.role)} {saved.role}"
        is_so = place in (whose, f"* {saved.role}")
        require(is_so, f"the state of {whose!r} is kept after attempt {ended} as that of {place!r}")

    def rename(self, ended: int, latest: int) -> None:
        """As `agent.records.kept_states.rename_kept`."""
        require(ended is not None, f"a head keeps the states of no attempt as those of attempt {latest}")
        if not self._files[latest]:
            self._files[latest] = self._files.pop(ended, {})
        self._run.asked_saves.rename(ended, latest)

    def remove(self) -> None:
        """As `agent.records.kept_states.remove_kept`: all of them."""
        self._files.clear()

    def check_end(self) -> None:
        """Nobody runs any more: a run that has succeeded leaves no states, where its last head could remove them."""
        run = self._run
        writers = [run.agent(result.written_by) for result in run.disk.results if result.state is RunState.SUCCEEDED]
        if any(each.exit_code == 0 and not each.was_killed for each in writers):
            left = sorted(ended for ended, files in self._files.items() if files)
            require(not left, f"the run has succeeded, and the states written after attempts {left} are there")

    def read(self, ended: int) -> tuple[KeptState, ...]:
        """As `agent.records.kept_states.read_kept`: what the records say, whatever is in the files."""
        places: defaultdict[StateVersion, set[str]] = defaultdict(set)
        for place, saved in self._files[ended].items():
            places[saved.version].add(place)
        for kept in self._run.asked_saves.read(ended):
            places[kept.version] |= kept.places
        return tuple(
            KeptState(ended=ended, version=version, places=frozenset(whose)) for version, whose in places.items()
        )

    def fetch(self, place: str, version: StateVersion) -> Saved | None:
        """As `agent.workers.state_files.read_states`, from the latest folder."""
        latest = max((ended for ended, files in self._files.items() if files), default=0)
        saved = self._files[latest].get(place)
        if saved is None or saved.version != version or self._is_found_damaged(saved):
            saved = self._run.asked_saves.fetch(place, version)
        return saved if saved is not None and saved.version == version and not self._is_found_damaged(saved) else None

    def _is_found_damaged(self, saved: Saved) -> bool:
        return saved.is_damaged
