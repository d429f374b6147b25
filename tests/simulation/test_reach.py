"""Which lines a schedule runs, and which schedules an edit is played with: those that run its line come first."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from tests.simulation.mutation.aimed import (
    Trial,
    aimed,
    lines_after,
    lines_that_read,
    lines_that_show,
    lines_that_use,
    reached,
    telling,
    trial_in,
    trials,
)
from tests.simulation.mutation.mutated_code import ROOT

KINDS = dict.fromkeys(("one", "other", "third"), 1.0)
TIMING = "hpc_elastic.membership.timing"


def number_of(module: str, wanted: Callable[[ast.AST], bool]) -> tuple[int, int]:
    """The number and the line of the first node of a module's tree for which this holds."""
    tree = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text())
    return next((number, node.lineno) for number, node in enumerate(ast.walk(tree)) if wanted(node))  # type: ignore[attr-defined]


def test_seeds_that_ran_the_line_come_first_in_turn_of_the_kinds() -> None:
    found = trials([("one", 3), ("one", 5), ("other", 1)], KINDS, 12, 3)
    assert found == [Trial("one", 3), Trial("other", 1), Trial("one", 5)]


def test_later_schedules_are_new_seeds_of_kinds_that_often_ran_the_line_and_others_with_new_dice() -> None:
    ran = [("one", seed) for seed in range(4)] + [("other", 2)]
    found = [trial for trial in trials(ran, KINDS, 4, 20) if trial[:2] not in ran or trial.dice]
    assert {(trial.seed, trial.dice > 0) for trial in found if trial.kind == "other"} >= {(2, True)}
    assert min(trial.seed for trial in found if trial.kind == "one" and not trial.dice) == 4
    assert "third" not in {trial.kind for trial in found}


def test_every_kind_takes_its_turn_if_no_seed_ran_the_line() -> None:
    found = trials([], KINDS, 12, 4)
    assert found == [Trial("one", 0), Trial("other", 0), Trial("third", 0), Trial("one", 1)]


def test_every_edit_gets_as_many_different_schedules() -> None:
    for ran in ([], [("one", 3)], [(kind, seed) for kind in KINDS for seed in range(12)]):
        found = trials(ran, KINDS, 12, 20)
        assert len(found) == len(set(found)) == 20


def test_a_kind_of_twice_the_weight_gives_twice_as_many_schedules() -> None:
    kinds = [trial.kind for trial in trials([], {**KINDS, "other": 2.0}, 4, 40)]
    assert kinds.count("other") == 2 * kinds.count("one") == 2 * kinds.count("third") == 20
    ran = [(kind, seed) for kind in KINDS for seed in range(4)]
    kinds = [trial.kind for trial in trials(ran, {**KINDS, "other": 2.0}, 4, 400)]
    assert kinds.count("other") / kinds.count("one") == pytest.approx(2.0, rel=0.05)


def test_a_line_that_hardly_any_seed_runs_is_looked_for_in_other_kinds_at_last() -> None:
    few, enough = [("one", 3)], [("one", seed) for seed in range(12)]
    assert {trial.kind for trial in trials(few, KINDS, 12, 10)} == {"one"}
    assert {trial.kind for trial in trials(few, KINDS, 12, 100)} == set(KINDS)
    assert {trial.kind for trial in trials(enough, KINDS, 12, 100)} == {"one"}


def test_a_schedule_with_other_dice_has_the_same_faults_and_another_seed() -> None:
    own, other = Trial("failures", 3).scenario(), Trial("failures", 3, 1).scenario()
    assert own.seed != other.seed
    assert (own.faults, own.roles, own.lease_s) == (other.faults, other.roles, other.lease_s)


def test_a_verdict_names_its_schedule() -> None:
    for trial in (Trial("any", 7), Trial("any", 7, 2), Trial("asked-saves", 3, 1)):
        assert trial_in(f"{trial.name}: BrokenRuleError: two worlds: 1: 2") == trial
    assert trial_in("survives 60 seeds; 3 of 184 run the line, 9 in all") is None


@pytest.mark.long
def test_a_bound_shows_where_its_name_is_read() -> None:
    number, line = number_of(TIMING, lambda node: isinstance(node, ast.Constant) and node.value == 5.0)
    (readers, *_) = lines_that_show(TIMING, number, line)
    assert any(each.startswith("hpc_elastic.membership.timing:") for each in readers)  # CLOSING_BOUND_S


def test_an_edit_in_a_function_shows_in_its_line_and_else_in_the_function() -> None:
    number, line = number_of(TIMING, lambda node: isinstance(node, ast.BinOp) and "self." in ast.unparse(node))
    own, function, *_ = lines_that_show(TIMING, number, line)
    assert own == [f"{TIMING}:{line}"]
    assert set(own) < set(function)
    assert reached({function[0]: [("any", 1)]}, [own, function]) == [("any", 1)]
    assert reached({own[0]: [("any", 2)], function[0]: [("any", 1)]}, [own, function]) == [("any", 2)]


def test_seeds_of_the_rarest_reader_come_first() -> None:
    assert reached({"a": [("any", 1), ("any", 2)], "b": [("any", 3)]}, [["a", "b"]])[0] == ("any", 3)


def test_of_the_seeds_that_keep_a_value_those_come_first_that_read_it_where_few_do() -> None:
    leases = "hpc_elastic.membership.leases"
    number, line = number_of(leases, lambda node: isinstance(node, ast.Assign) and "self._world =" in ast.unparse(node))
    read, rarely = lines_that_read(leases, number)
    seeds = [("any", 1), ("any", 2), ("any", 3)]
    reach = {f"{leases}:{line}": seeds, read: [*seeds[:2], ("any", 4)], rarely: [seeds[2]]}
    assert aimed(reach, leases, number, line) == [seeds[2], *seeds[:2]]


@pytest.mark.long
def test_seeds_that_run_the_rarest_line_after_an_edit_are_played_first_whatever_their_kind() -> None:
    coordinator, watch = "hpc_elastic.agent.drivers.coordinator", "hpc_elastic.agent.drivers.head_watch"
    number, line = number_of(
        coordinator, lambda node: isinstance(node, ast.Expr) and "self._watch.watch_missing()" in ast.unparse(node)
    )
    often, rarely = [each for each in lines_after(coordinator, number) if each.startswith(f"{watch}:")][:2]
    seeds = [("one", 1), ("one", 2), ("other", 3)]
    reach = {f"{coordinator}:{line}": seeds, often: seeds, rarely: [seeds[2], ("third", 4)]}
    first = telling(reach, coordinator, number, seeds)
    assert first == [seeds[2], *seeds[:2]]
    assert trials(seeds, KINDS, 12, 6, first)[:2] == [Trial("other", 3), Trial("one", 1)]


@pytest.mark.long
def test_seeds_that_read_elsewhere_what_an_edit_is_kept_as_take_turns_with_those_that_run_lines_after_it() -> None:
    roster, states = "hpc_elastic.membership.roster", "hpc_elastic.membership.run_states"
    number, line = number_of(
        roster, lambda node: isinstance(node, ast.Assign) and "self.held = self.join.held" in ast.unparse(node)
    )
    read = next(each for each in lines_that_use(roster, number) if each.startswith(f"{states}:"))
    seeds = [("one", 1), ("one", 2), ("other", 3)]
    assert telling({f"{roster}:{line}": seeds, read: [seeds[2], ("third", 4)]}, roster, number, seeds) == [
        seeds[0],
        seeds[2],
        seeds[1],
    ]


def test_seeds_that_tell_most_are_a_part_of_the_schedules() -> None:
    ran = [("one", seed) for seed in range(60)] + [("other", 2)]
    found = trials(ran, KINDS, 60, 30, [("one", seed) for seed in reversed(range(60))])
    assert [trial.seed for trial in found[:10]] == [*range(59, 49, -1)]
    assert found[10:12] == [Trial("one", 0), Trial("other", 2)]
    assert len(found) == len(set(found)) == 30
