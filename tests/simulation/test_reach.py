"""Which seeds an edit is played with: those that run its line come first, and every edit gets as many."""

from __future__ import annotations

from tests.simulation.reach import schedules

KINDS = dict.fromkeys(("one", "other", "third"), 1.0)


def test_seeds_that_ran_the_line_come_first_in_turn_of_the_kinds() -> None:
    found = schedules([("one", 3), ("one", 5), ("other", 1)], KINDS, 12, 3)
    assert found == [("one", 3), ("other", 1), ("one", 5)]


def test_new_seeds_are_of_the_kinds_that_ran_the_line_as_often_as_they_did() -> None:
    reached = [("one", 0), ("one", 1), ("other", 0)]
    found = schedules(reached, KINDS, 4, 9)[len(reached) :]
    assert [kind for kind, _ in found].count("one") == 4
    assert min(seed for _, seed in found) == 4
    assert "third" not in {kind for kind, _ in found}


def test_every_kind_takes_its_turn_if_no_seed_ran_the_line() -> None:
    assert schedules([], KINDS, 12, 4) == [("one", 0), ("other", 0), ("third", 0), ("one", 1)]


def test_every_edit_gets_as_many_different_seeds() -> None:
    for reached in ([], [("one", 3)], [(kind, seed) for kind in KINDS for seed in range(12)]):
        found = schedules(reached, KINDS, 12, 20)
        assert len(found) == len(set(found)) == 20


def test_a_kind_of_twice_the_weight_gives_twice_as_many_seeds() -> None:
    for reached in ([], [(kind, seed) for kind in KINDS for seed in range(4)]):
        kinds = [kind for kind, _ in schedules(reached, {**KINDS, "other": 2.0}, 4, 40)]
        assert kinds.count("other") == 2 * kinds.count("one") == 2 * kinds.count("third") == 20
