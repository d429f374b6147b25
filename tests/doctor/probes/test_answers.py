"""Answers come whole through a job's output, whatever else is in it."""

from __future__ import annotations

import random

from hpc_elastic.doctor.probes.answers import (
    FolderSeen,
    ProbeAnswer,
    other_lines,
    read_answers,
    write_lines,
)


def answer(node_id: int, check: str = "run root", value: object = None, problem: str | None = None) -> ProbeAnswer:
    return ProbeAnswer(
        node=f"node{node_id}",
        node_id=node_id,
        nodes=("node0", "node1"),
        check=check,
        took_s=0.5,
        answered=1.5,
        problem=problem,
        value=value,
    )


LONG = answer(0, value=FolderSeen(path="/home/é/" + "a" * 3000, problems={"write": 'no "room"'}, kind="nfs4"))
LATE = answer(1, problem="no answer within 4 s")


def test_answers_are_read_back_from_lines_of_several_nodes_in_any_order() -> None:
    lines = [*write_lines(LONG, 1).splitlines(), *write_lines(LATE, 1).splitlines(), "srun: some words", ""]
    assert max(map(len, lines)) < 1024
    for seed in range(20):
        random.Random(seed).shuffle(lines)
        read = sorted(read_answers("\n".join(lines)), key=lambda each: each.node_id)
        assert read == [LONG, LATE]


def test_an_answer_that_is_not_whole_is_left_out() -> None:
    whole = write_lines(LONG, 1)
    first_line = whole.index("\n") + 1
    for text in (whole[:first_line], whole[first_line:], whole[: len(whole) // 2], whole.replace("1/", "9/", 1)):
        assert list(read_answers(text + write_lines(LATE, 2))) == [LATE]


def test_what_is_no_answer_is_left_out() -> None:
    damaged = write_lines(LATE, 1).replace(" 1.1 1/1 ", " 1.1 1/1 AAAA")
    assert list(read_answers(f"{damaged}\nhpc-elastic-doctor 0.0 1/1 e30=.\nhpc-elastic-doctor x\n")) == []


def test_a_value_of_another_shape_is_left_out() -> None:
    assert list(read_answers(write_lines(answer(0, value={"path": 3}), 1))) == []


def test_an_unknown_check_is_kept_as_it_is() -> None:
    """A node with a later package may know more."""
    later = answer(0, check="tides", value={"height": 3})
    assert list(read_answers(write_lines(later, 1))) == [later]


def test_lines_of_people_and_programs_are_kept() -> None:
    text = (
        f"module: not found\n{write_lines(LATE, 1)}\nsrun: got SIGCONT\nhpc_elastic: run directory /a\n\nsrun: error\n"
    )
    assert other_lines(text) == ["module: not found", "srun: error"]
