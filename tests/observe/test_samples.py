"""Samples as readers find them: whole files, large files, torn lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_elastic.observe.samples import read_pace, read_spread
from tests.observe.report.build_run import build_run


def write(path: Path, count: int, padding: int = 10) -> None:
    lines = (json.dumps({"time_ns": number + 1, "padding": "x" * padding}) for number in range(count))
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("count", [1, 5, 100, 5000])
@pytest.mark.parametrize("asked", [1, 20, 300])
def test_lines_are_spread_over_the_whole_file(tmp_path: Path, count: int, asked: int) -> None:
    write(tmp_path / "s", count, padding=50)
    times = [line["time_ns"] for line in read_spread(str(tmp_path / "s"), asked)]
    assert times == sorted(set(times))
    assert times[0] == 1
    assert len(times) <= asked + 1
    gaps = [later - earlier for earlier, later in zip(times, [*times[1:], count + 1], strict=True)]
    assert max(gaps) <= 2 * max(1, -(-count // asked)) + 1


def test_a_file_that_is_not_there_has_no_samples(tmp_path: Path) -> None:
    assert read_spread(str(tmp_path / "s"), 5) == []


def test_of_many_nodes_some_are_read(tmp_path: Path) -> None:
    layout = build_run(tmp_path / "run", nodes=40, workers=1, samples=3)
    nodes = [f"node{number:03d}" for number in range(40)]
    assert read_pace(layout, nodes, 1, most=10).step == read_pace(layout, nodes, 1).step
