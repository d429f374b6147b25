"""A benchmark of this checkout in turns with that of another commit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import against
from benchmarks.against import NOT_WORSE, OPEN, PROGRAMS, WORSE, Series

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_figures_of_each_program_are_found_in_what_it_reports(name: str) -> None:
    report = json.loads((REPOSITORY / "docs" / "benchmarks" / f"{name}.json").read_text())
    figures = dict(PROGRAMS[name].figures(report))
    assert len(figures) >= 3
    assert all(values and all(value >= 0 for value in values) for values in figures.values()), figures


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        pytest.param([1.0, 1.01, 0.99, 1.0, 1.02, 0.98], NOT_WORSE, id="the same"),
        pytest.param([0.5, 0.51, 0.49, 0.5, 0.52, 0.48], NOT_WORSE, id="better"),
        pytest.param([1.2, 1.21, 1.19, 1.2, 1.22, 1.18], WORSE, id="worse in every turn"),
        pytest.param([0.7, 1.5, 1.0, 1.4, 0.8, 1.1], OPEN, id="now this, now that"),
        pytest.param([1.2], OPEN, id="too few turns"),
    ],
)
def test_a_figure_is_worse_only_if_its_whole_interval_is(now: list[float], verdict: str) -> None:
    series = Series(before=[[1.0] for _ in now], now=[[value] for value in now])
    assert series.verdict() == verdict


def test_without_a_value_on_one_side_nothing_is_said() -> None:
    assert Series(before=[[1.0]] * 6, now=[[]] * 6).verdict() == OPEN


def test_a_commit_that_git_does_not_know_is_told_and_nothing_is_left(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised, against.checked_out("no-such-commit"):
        pass
    assert "git cannot check out no-such-commit" in str(raised.value)
    assert capfd.readouterr().err == ""


def test_a_program_that_cannot_be_compared_is_told_with_those_that_can(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        against.main(["HEAD", "plots"])
    assert "no benchmark plots that can be compared; there are command_line" in capsys.readouterr().err


@pytest.mark.variant(of="test_the_figures_of_each_program_are_found_in_what_it_reports")
@pytest.mark.local
@pytest.mark.long
def test_a_commit_is_measured_beside_itself_and_leaves_no_checkout(tmp_path: Path) -> None:
    clone, report = tmp_path / "clone", tmp_path / "report.json"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
    command = [sys.executable, "-m", "benchmarks.against", "HEAD", "command_line", "--turns=1", f"--json={report}"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())["figures"]["command_line: hpc-elastic --help, ms"]
    assert found["before"][0][0] > 0
    assert found["now"][0][0] > 0
    listed = subprocess.run(["git", "worktree", "list"], cwd=clone, capture_output=True, text=True, check=True)
    assert len(listed.stdout.splitlines()) == 1, listed.stdout
