"""What the trainer of `useful_trainer` itself knows of its time, to compare with the meter of useful time."""

from __future__ import annotations

import json
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.useful_time.division import TimeUse
from tests.integration.conftest import Run, whole_lines

TRAINER = Path(__file__).with_name("useful_trainer.py")


def told_by_trainer(folder: Path) -> list[dict[str, Any]]:
    """The lines of rank 0."""
    return [json.loads(line) for line in whole_lines(folder / "own-0.jsonl")]


def spent_by_trainer(lines: list[dict[str, Any]]) -> tuple[float, float]:
    """The seconds of steps that were done for the first time, and of those that were done again."""
    best, new, again = 0, 0.0, 0.0
    for before, line in pairwise(lines):
        if line["what"] == "step" and line["attempt"] == before["attempt"]:
            spent = line["at"] - before["at"]
            new, again = (new + spent, again) if line["step"] > best else (new, again + spent)
        best = max(best, line.get("step", 0))
    return new, again


def last_step(lines: list[dict[str, Any]], attempt: int) -> float:
    """When the last step of an attempt was done."""
    return float([line for line in lines if line["attempt"] == attempt and line["what"] == "step"][-1]["at"])


def begun(lines: list[dict[str, Any]], attempt: int) -> float:
    """When an attempt began, as its rank 0 says."""
    return float(next(line["at"] for line in lines if line["attempt"] == attempt))


def assert_as_the_trainer_says(run: Run, folder: Path, *, within_s: float) -> dict[TimeUse, float]:
    """The meter says of training and training again what the trainer does; return its seconds."""
    spent, lines = run.result()["useful_time"], told_by_trainer(folder)
    seconds = {use: spent["seconds"][use.key] for use in TimeUse}
    new, again = spent_by_trainer(lines)
    assert spent["are_repeats_known"], spent
    assert seconds[TimeUse.TRAINING] == pytest.approx(new, abs=within_s), (seconds, run.story())
    assert seconds[TimeUse.AGAIN] == pytest.approx(again, abs=within_s), (seconds, run.story())
    parts = [sum(each["seconds"].values()) for each in spent["allocations"]]
    assert sum(parts) == pytest.approx(sum(seconds.values()), abs=0.01)
    claimed = moment(run.read(run.layout.allocation(1))["time"])
    between = spent["queued_s"] - (claimed - moment(run.read(run.layout.submission)["submitted"]))
    whole = moment(run.result()["ended"]) - claimed
    assert sum(parts) + between == pytest.approx(whole, rel=0.01), (seconds, whole)
    return seconds


def moment(text: str) -> float:
    """A record's time in Unix seconds."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
