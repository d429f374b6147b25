"""What the benchmarks of useful time read of a training's steps."""

from __future__ import annotations

from pathlib import Path

from benchmarks.state.shares import steps_in


def test_a_step_counts_when_its_line_is_whole(tmp_path: Path) -> None:
    assert steps_in(tmp_path) == []
    (tmp_path / "steps").write_text("1 10.0 10.2 10.25\n2 10.25 10.4")
    assert steps_in(tmp_path) == [(1, 10.0, 10.2, 10.25)]
