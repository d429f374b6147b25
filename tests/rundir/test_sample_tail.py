"""The latest samples of nodes: torn lines, earlier attempts, clocks that are off, and which of many nodes are read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc_elastic.failures.pace import find_pace
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.sample_tail import LatestSamples, latest_samples, ranks_seen, read_latest

NOW = 1_767_323_045


def write(path: Path, count: int) -> None:
    path.write_text("".join(f'{{"time_ns": {number + 1}, "padding": "xxxxxxxxxx"}}\n' for number in range(count)))


def write_node(layout: RunLayout, node: str, rank: int, *, ahead_s: int = 0) -> None:
    """Write samples of a rank that makes 2 steps a second, by a clock that is so far ahead."""
    path = Path(layout.samples(node))
    path.parent.mkdir(parents=True)
    lines = []
    for second in range(0, 61, 10):
        ranks = [{"rank": rank, "step": 1000 + 2 * second, "age_s": 0.5}]
        lines.append(json.dumps({"time_ns": (NOW - 60 + second + ahead_s) * 10**9, "attempt": 1, "ranks": ranks}))
    path.write_text("\n".join(lines) + "\n")
    os.utime(path, (NOW, NOW))


def test_the_latest_lines_are_found_at_the_end_of_a_large_file(tmp_path: Path) -> None:
    write(tmp_path / "s", 5000)
    with open(tmp_path / "s", "a") as file:
        file.write('{"time_ns": 50')
    found = read_latest(str(tmp_path / "s"), count=2)
    assert found is not None
    assert [line["time_ns"] for line in found.lines] == [4999, 5000]


def test_a_file_that_is_not_there_or_has_no_line_has_no_samples(tmp_path: Path) -> None:
    (tmp_path / "torn").write_text('{"time_ns": 5')
    assert read_latest(str(tmp_path / "s")) is read_latest(str(tmp_path / "torn")) is read_latest(str(tmp_path)) is None


def test_samples_of_an_earlier_attempt_say_nothing_of_this_one() -> None:
    lines = ({"time_ns": 10, "attempt": 1, "ranks": [{"rank": 0, "step": 9, "age_s": 0.0}]},)
    samples = {"n": LatestSamples(lines=lines)}
    assert ranks_seen(samples, 2) == []
    assert [each.step for each in ranks_seen(samples, 1)] == [9]


@pytest.mark.parametrize("ranks", [None, 5, "x", [None], [{"rank": 1}], [{"rank": "0", "step": 1}]])
def test_ranks_of_another_shape_are_passed_over(ranks: object) -> None:
    assert ranks_seen({"n": LatestSamples(lines=({"time_ns": 10, "attempt": 1, "ranks": ranks},))}, 1) == []


@pytest.mark.parametrize("ahead_s", [600, -600])
def test_a_node_whose_clock_is_ten_minutes_off_does_not_look_slow(ahead_s: int, tmp_path: Path) -> None:
    layout = RunLayout(str(tmp_path))
    for number in range(4):
        write_node(layout, f"n{number}", number, ahead_s=ahead_s if number == 3 else 0)
    pace = find_pace(ranks_seen(latest_samples(layout, ["n0", "n1", "n2", "n3"]), 1))
    assert (pace.rate, pace.slow) == (2.0, ())


def test_of_many_nodes_each_is_read_in_its_turn(tmp_path: Path) -> None:
    layout = RunLayout(str(tmp_path))
    nodes = [f"n{number}" for number in range(10)]
    for number, node in enumerate(nodes):
        write_node(layout, node, number)
    read = [set(latest_samples(layout, nodes, most=4, turn=turn)) for turn in range(3)]
    assert all(len(each) <= 4 for each in read)
    assert set().union(*read) == set(nodes)
