"""Every kind of schedule: no rule is broken, and what the first ones cost is what is recorded of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.draws.kinds import DRAWN_ANYHOW, KINDS, LONG
from tests.simulation.garbage import Held
from tests.simulation.recorded import WRITE, difference, recorded, seeds_of
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

ALL = {DRAWN_ANYHOW: 2000} | dict.fromkeys(LONG, 60)
OTHERS = 200


def _cases() -> Iterator[Any]:
    """Parts of each kind's schedules: `make test` plays few of those recorded, `make test-all` all, and more."""
    for kind in KINDS:
        seeds = range(ALL.get(kind, OTHERS))
        test = 4 if kind == DRAWN_ANYHOW else 1 if kind in LONG else 2
        check = test if kind == DRAWN_ANYHOW else 0
        most = 20 if kind in LONG else 100
        for part in parts_of(
            seeds, check=check, test=test, of="test_no_rule_is_broken_and_costs_are_as_recorded", part=most
        ):
            yield pytest.param(kind, *part.values, id=f"{kind}-{part.id}", marks=part.marks)


@pytest.mark.parametrize(("kind", "seeds"), list(_cases()))
def test_no_rule_is_broken_and_costs_are_as_recorded(kind: str, seeds: range, held: Held) -> None:
    for seed in seeds:
        held.collect_if_grown()  # a run of many nodes leaves 100 MB
        run = SimulatedRun(KINDS[kind](seed))
        again = f"play it again with `python -m tests.simulation -v --{kind} --seed {seed}`"
        try:
            run.play()
        except BrokenRuleError as error:
            pytest.fail(f"{kind} {seed}: {error}; {again}")
        what = difference(kind, seed, run)
        assert what is None, f"{kind} {seed} costs something else than is recorded: {what}; if that is meant: {WRITE}"


def test_every_kind_is_recorded_and_nothing_else() -> None:
    assert sorted(recorded()) == sorted((kind, seed) for kind in KINDS for seed in seeds_of(kind))
