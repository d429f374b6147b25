"""What the benchmark of Slurm's releases makes of turns, without a Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.slurm_versions import add, figures
from benchmarks.versions.scenarios import ROWS
from benchmarks.versions.turn import Turn, promise
from tests.slurm_sandbox.cluster import SandboxError


def make_turn(folder: Path) -> Turn:
    slurm: Any = SimpleNamespace(environment={})
    return Turn(slurm, folder)


def break_off(error: Exception) -> None:
    raise error


def found(median_s: float) -> dict[str, Any]:
    return {"slurm": "slurm", "missing": None, "n": 1, "broken": 0, "rows": {"list": {"median_s": median_s}}}


def test_what_does_not_hold_is_a_broken_promise_of_its_rows(tmp_path: Path) -> None:
    turns = [make_turn(tmp_path / str(number)) for number in range(3)]
    for number, turn in enumerate(turns):
        with turn.promising("list"):
            turn.took("list", 10.0, 10.0 + number)
            promise(number != 2, f"list is right\nfound {number}")
    row = figures(turns, "list")
    assert row == {"n": 3, "broken": ["list is right\nfound 2"], "median_s": 0.5, "least_s": 0, "most_s": 1}


def test_the_first_broken_promise_is_told(tmp_path: Path) -> None:
    turn = make_turn(tmp_path)
    with turn.promising("status", "list"):
        with turn.promising("status"):
            break_off(AssertionError("the first"))
        break_off(SandboxError("the second"))
    assert turn.broken == {"status": "the first", "list": "the second"}


def test_figures_of_one_release_leave_those_of_the_others(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "figures.json"
    add("24.11", found(1.0), path, {})
    add("22.05", found(2.0), path, {})
    report = add("24.11", found(3.0), path, {})
    assert report["versions"] == json.loads(path.read_text())["versions"]
    assert {name: one["rows"]["list"]["median_s"] for name, one in report["versions"].items()} == {
        "22.05": 2,
        "24.11": 3,
    }
    assert list(report["versions"]) == ["22.05", "24.11"]
    assert set(report["rows"]) == set(ROWS)
