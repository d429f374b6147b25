"""Durations around a step of a clock are not told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.observe.clock_steps import ClockStep, known_span
from hpc_elastic.observe.explain import explain
from hpc_elastic.observe.explain_reader import read_explain_facts
from hpc_elastic.observe.present import plain_status
from hpc_elastic.observe.present_explanation import plain_explanation
from hpc_elastic.observe.report.collect import collect_report
from hpc_elastic.observe.report.page import render_page
from hpc_elastic.observe.snapshot import take_snapshot
from hpc_elastic.rundir.records import utc_text
from hpc_elastic.rundir.store import append_line
from tests.observe.builders import RunBuilder

BEGAN_S = 1_790_000_000.0
SET_FORWARD = ClockStep(node="node1", at=BEGAN_S + 108_060, step_s=108_000, message="")
SET_BACK = ClockStep(node="node1", at=BEGAN_S + 60, step_s=-600, message="")


@pytest.mark.parametrize(
    ("begin", "end", "step", "expected"),
    [
        (0, 30, SET_FORWARD, 30),
        (0, 108_100, SET_FORWARD, None),
        (108_070, 108_100, SET_FORWARD, 30),
        (0, 30, SET_BACK, 30),
        (0, 100, SET_BACK, None),
        (100, 200, SET_BACK, None),  # of before or of after it
        (700, 800, SET_BACK, 100),
    ],
)
def test_a_span_is_known_if_no_clock_can_have_been_set_in_it(
    begin: float, end: float, step: ClockStep, expected: float | None
) -> None:
    assert known_span(BEGAN_S + begin, BEGAN_S + end, [step]) == expected


def note(
    run: RunBuilder, at: float, attempt: int, name: str, message: str = "", metadata: dict[str, Any] | None = None
) -> None:
    event = {"time_ns": int(at * 1e9), "node": "node1", "allocation": 1, "attempt": attempt, "name": name}
    append_line(run.layout.events("node1"), {**event, "message": message, "metadata": metadata or {}})


def test_status_explain_and_report_tell_no_duration_around_a_step_and_say_why(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate()
    run.open_attempt(1, time=utc_text(BEGAN_S))
    run.open_attempt(2, time=utc_text(BEGAN_S + 108_100), reason="rank 1 failed")
    run.end(time=utc_text(BEGAN_S + 108_190))
    text = "the clock of node1 was set forward by 1d6h"
    metadata = {"node": "node1", "step_s": 108_000}
    note(run, BEGAN_S, 1, "attempt.opened")
    note(run, SET_FORWARD.at, 0, "node.clock_set", text, metadata)
    note(run, BEGAN_S + 108_100, 2, "attempt.opened")
    snapshot = take_snapshot(run.layout, None)
    assert [step.step_s for step in snapshot.clock_steps] == [108_000]
    status = plain_status(snapshot, 200)
    assert "elapsed" not in status
    assert f"{text}: how long what lay around that took is not told" in status
    told = plain_explanation(explain(read_explain_facts(run.layout, snapshot, None), BEGAN_S), 200)
    assert "attempt 1: rank 1 failed" in told
    assert "attempt 2 (1 min 30 s)" in told
    page = render_page(collect_report(run.layout, snapshot), "")
    assert "1 d 6 h" not in page
    assert text in page
