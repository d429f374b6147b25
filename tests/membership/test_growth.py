"""What a round costs the head, in steps of the interpreter: the same for each member, however many there are."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from tests.membership.script import HeadScript


@pytest.mark.long
def test_a_round_costs_the_head_in_proportion_to_its_members() -> None:
    steps_of_a_run(2)  # Python 3.12 counts no opcodes of what is traced for the first time
    few, many = steps_of_a_run(32), steps_of_a_run(128)
    assert 0 < many < 4.2 * few


def steps_of_a_run(nodes: int) -> int:
    """Everybody joins, starts, is stopped for a failure, starts again and ends."""
    script = HeadScript(nodes)
    steps = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        play(script)
    finally:
        sys.settrace(before)
    return steps


def play(script: HeadScript) -> None:
    everybody = range(script.nodes)
    script.run()
    for number in everybody:
        script.start(number)
    script.fail(script.nodes - 1)
    for number in everybody:
        script.stopped(number)
    script.claimed()
    for number in everybody:
        script.start(number)
    for number in everybody:
        script.finish(number)
