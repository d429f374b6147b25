"""The view of a watched run."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from hpc_elastic.failures.pace import Pace
from hpc_elastic.observe.samples import read_pace
from hpc_elastic.observe.snapshot import Snapshot, take_snapshot
from hpc_elastic.observe.watch_view import change_line, draw_view, read_events, watch_rows, what_changes
from hpc_elastic.rundir.layout import RunLayout
from tests.observe.report.build_run import Fault, build_run


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    layout = build_run(tmp_path / "run", nodes=4, faults=[Fault(1, "bad\x1b[2Jdata")])
    Path(layout.result).unlink()
    return layout


def see(layout: RunLayout) -> tuple[Snapshot, Pace]:
    snapshot = take_snapshot(layout, None)
    return snapshot, read_pace(layout, snapshot.nodes, snapshot.attempts)


def test_the_rows_say_attempt_step_rate_slowest_rank_and_the_last_restart(layout: RunLayout) -> None:
    rows = dict(watch_rows(*see(layout)))
    assert rows["attempt"] == "2, restarts 1 of 3"
    assert rows["step"].startswith("427, one in ")
    assert rows["slowest"].startswith("rank 8 on node001: 40 steps behind the median, at 387")
    assert rows["restarted"] == "rank 8 failed: bad\ufffd[2Jdata"


@pytest.mark.parametrize(("width", "height"), [(40, 24), (80, 24), (200, 12)])
def test_the_view_fits_the_terminal_and_ends_with_the_way_out(layout: RunLayout, width: int, height: int) -> None:
    output = io.StringIO()
    events = read_events(layout, "node000", 50)
    assert len(events) > 5
    view = draw_view(*see(layout), events, width=width, height=height, hint="q leaves")
    Console(file=output, width=width, height=height).print(view)
    lines = output.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert lines[-1].strip() == "q leaves"
    assert len(lines) <= height + 4 if width == 40 else len(lines) <= height
    assert "\x1b" not in output.getvalue()


def test_a_step_alone_is_no_change_and_a_restart_is_one(layout: RunLayout) -> None:
    snapshot, pace = see(layout)
    assert what_changes(snapshot, pace) == what_changes(snapshot, Pace(step=999, rate=1.0, slow=pace.slow))
    assert what_changes(snapshot, pace) != what_changes(snapshot, Pace())
    line = change_line(snapshot, pace)
    assert "\n" not in line
    assert "after: rank 8 failed: bad\ufffd" in line


def test_events_of_torch_s_agent_are_left_out(layout: RunLayout) -> None:
    with open(layout.events("node000"), "a") as file:
        file.write('{"time_ns": 5, "name": "torchelastic.worker.status.START", "message": "no"}\nnull\n{torn')
    assert [text for _, text in read_events(layout, "node000", 2)] == ["opened", "started"]
    assert read_events(layout, "node000", 0) == []
