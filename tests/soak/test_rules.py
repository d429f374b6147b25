from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.soak.rules import Mark, broken_rules, parse_marks, whole_lines

NODES = ("local0", "local1")


def claim(number: int, **changes: Any) -> dict[str, Any]:
    made = {
        "attempt": number,
        "predecessor": number - 1 or None,
        "head": "local0",
        "members": [*NODES],
        "spend": {"restarts": 0, "node_losses": number - 1},
    }
    return {**made, **changes}


def mark(moment: int, attempt: int, rank: int, kind: str, step: int = 0) -> Mark:
    return Mark(moment, attempt, rank, 2, 100 * attempt + rank, NODES[rank], kind, step)


def good_marks() -> list[Mark]:
    """Twelve steps, of which ten were saved; then a second attempt from there on."""
    first = [mark(0, 1, 0, "begin"), mark(1, 1, 1, "begin")]
    first += [mark(10 + step, 1, 0, "step", step) for step in range(1, 11)] + [mark(20, 1, 0, "saved", 10)]
    first += [mark(21, 1, 0, "step", 11), mark(22, 1, 0, "step", 12), mark(23, 1, 1, "work")]
    return [*first, mark(30, 2, 1, "begin", 10), mark(31, 2, 0, "begin", 10), mark(32, 2, 0, "step", 11)]


def test_a_run_that_goes_on_from_its_checkpoint_breaks_no_rule() -> None:
    assert list(broken_rules(good_marks(), [claim(1), claim(2)])) == []
    assert parse_marks(["7 2 1 2 201 local1 begin 10"]) == [replace(mark(7, 2, 1, "begin", 10))]


@pytest.mark.parametrize("part", ["", "8", "8 2 0 2 200", "8 2 0 2 200 local0 begin 1"])
def test_a_mark_that_is_being_written_is_not_there_yet(part: str) -> None:
    whole = "7 2 1 2 201 local1 begin 10\n"
    assert parse_marks(whole_lines(whole + part)) == [mark(7, 2, 1, "begin", 10)]


@pytest.mark.parametrize(
    ("extra", "rule"),
    [
        (mark(33, 1, 1, "work"), "two worlds at work: rank 1 on local1 worked in attempt 1"),
        (replace(mark(33, 2, 1, "work"), pid=7), "rank 1 of attempt 2 was there 2 times"),
        (replace(mark(33, 2, 1, "work"), world_size=3), "attempt 2 has several world sizes"),
        (replace(mark(33, 2, 1, "work"), node="local7"), "local7'], which are not in its claim"),
        (mark(33, 3, 0, "begin", 11), "attempt 3 was at work without a claim"),
        (mark(33, 2, 0, "step", 13), "attempt 2 did step 13 after 11"),
        (mark(33, 2, 0, "step", 11), "attempt 2 did step 11 after 11"),
    ],
)
def test_a_mark_that_should_not_be_there_is_found(extra: Mark, rule: str) -> None:
    assert rule in "\n".join(broken_rules([*good_marks(), extra], [claim(1), claim(2)]))


@pytest.mark.parametrize("began", [0, 9, 13])
def test_steps_that_were_forgotten_or_left_out_are_found(began: int) -> None:
    marks = [replace(one, step=began) if one == mark(31, 2, 0, "begin", 10) else one for one in good_marks()]
    found = "\n".join(broken_rules(marks, [claim(1), claim(2)]))
    assert f"attempt 2 began at step {began}; 10 was saved, 12 done" in found


def test_a_node_that_is_set_aside_may_open_an_attempt_in_which_it_is_not() -> None:
    second = claim(2, head="local9", set_aside=[{"node": "local9"}])
    assert list(broken_rules(good_marks(), [claim(1), second])) == list(
        broken_rules(good_marks(), [claim(1), claim(2)])
    )


@pytest.mark.parametrize(
    ("second", "rule"),
    [
        (claim(2, attempt=3), "the attempts are [1, 3]"),
        (claim(2, predecessor=None), "attempt 2 follows None"),
        (claim(2, spend={"restarts": 0, "node_losses": -1}), "attempt 2 has forgotten node_losses"),
        (claim(2, head="local9"), "opened by local9, which is not in it"),
    ],
)
def test_a_claim_that_does_not_follow_from_the_last_is_found(second: dict[str, Any], rule: str) -> None:
    assert rule in "\n".join(broken_rules(good_marks(), [claim(1), second]))
