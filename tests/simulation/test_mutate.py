"""The program that changes the code: what it calls caught was caught by a rule, and not by its own ways."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.simulation import mutate
from tests.simulation.draws.kinds import WEIGHTS
from tests.simulation.mutation import scenes
from tests.simulation.mutation.aimed import Trial, trials
from tests.tiers import variants

pytestmark = pytest.mark.long


def mutation_of(name: str) -> mutate.Mutation:
    """The mutation whose name begins so."""
    (found,) = [each for each in mutate.mutations() if each.name.startswith(name)]
    return found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mutate._copy_checkout(str(tmp_path_factory.mktemp("checkout")))


def test_what_is_said_of_edits_and_of_modules_names_some_that_are_there() -> None:
    """Code moves: an edit that is known to change nothing moves with it, and a module is not left out unseen."""
    names = {mutation.name for mutation in mutate.mutations()}
    assert [name for name in mutate.EQUIVALENT if name not in names] == []
    assert [name for name in mutate.NOT_EDITED if not mutate._path(f"hpc_elastic.{name}").is_file()] == []


@pytest.mark.variant(of="test_an_edit_of_what_nobody_waits_for_is_caught")
def test_the_code_as_it_is_survives(checkout: Path) -> None:
    assert mutate._try(None, 8, checkout) == mutate.SURVIVES


@pytest.mark.variant(of="test_an_edit_of_what_nobody_waits_for_is_caught")
def test_a_head_that_answers_nobody_is_caught(checkout: Path) -> None:
    mutation = mutation_of(
        "hpc_elastic.agent.drivers.head_side: left out: self._answering.received(connection, message)"
    )
    assert "BrokenRuleError" in mutate._try(mutation, 8, checkout)


@pytest.mark.variant(of="test_an_edit_of_what_nobody_waits_for_is_caught")
def test_a_module_that_cannot_be_loaded_is_neither_caught_nor_a_survivor(checkout: Path) -> None:
    mutation = mutation_of(
        "hpc_elastic.agent.drivers.head_side: left out: self._answering.received(connection, message)"
    )
    broken = checkout / "hpc_elastic" / "plan" / "roles.py"  # which itself is never mutated, nor read for it
    before = broken.read_text()
    broken.write_text("def while being edited\n")
    try:
        assert mutate._try(mutation, 8, checkout).startswith(f"{mutate.NOT_LOADED}: SyntaxError")
        assert mutate._try(None, 8, checkout) != mutate.SURVIVES
    finally:
        broken.write_text(before)


@pytest.mark.parametrize(
    ("name", "seeds"),
    variants(
        ("hpc_elastic.membership.member: condition turned round: self._discover_head(is_news=False) if is_known", 40),
        ("hpc_elastic.membership.allegiance: left out: self.head = head", 40),
        ("hpc_elastic.membership.barriers: left out: self._starts.clear()", 40),
        of="test_an_edit_of_what_nobody_waits_for_is_caught",
    ),
)
def test_an_edit_of_what_nobody_waits_for_is_caught(checkout: Path, name: str, seeds: int) -> None:
    found = [each for each in mutate.mutations() if each.name.startswith(name)]
    assert any("BrokenRuleError" in mutate._try(each, seeds, checkout) for each in found)


class Answers(mutate.Server):
    """A server that has these answers, by whether the code is edited, and the schedules that are left out or played."""

    def __init__(self, answers: dict[tuple[bool, tuple[str, ...]], str | None]) -> None:
        self._answers = answers

    def _ask(self, mutation: mutate.Mutation | None, count: int, listed: Sequence[Trial]) -> str | None:
        return self._answers[mutation is not None, tuple(trial.name for trial in listed)]


def test_a_schedule_that_the_code_as_it_is_does_not_survive_catches_nothing() -> None:
    mutation = mutate.Mutation("hpc_elastic.membership.head", 1, 1, "one edit", "a line")  # of no module that is read
    untrue, true = "any 3/1: BrokenRuleError: two worlds", "any 4: BrokenRuleError: two worlds"
    server = Answers(
        {
            (True, ()): untrue,
            (False, ("any 3/1",)): "BrokenRuleError: two worlds",
            (True, ("any 3/1",)): true,
            (False, ("any 4",)): None,
        }
    )
    assert server.verdict(mutation, 60) == true


def test_a_schedule_that_is_left_out_is_not_played() -> None:
    listed = trials([], WEIGHTS, mutate.TRIED, 2)
    assert mutate.play(None, 2, {}, listed) == mutate.SURVIVES


def test_a_test_with_a_schedule_of_its_own_notices_an_edit_and_passes_without(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenes, "FILES", ("machines",))
    monkeypatch.setenv("HPC_ELASTIC_REQUIRE_SLURM", "24.11")  # as in a run that plays on Slurm: not for those tests
    mutation = mutation_of("hpc_elastic.membership.head: left out: self.phase = HeadPhase.RUNNING")
    assert scenes.failed_test(checkout, json.dumps(asdict(mutation))).startswith("test_machines.py::")
    assert scenes.failed_test(checkout, None) == ""
