"""The meter reads run directories that are whole, half written, damaged, or large."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.useful_time.division import TimeUse
from hpc_elastic.useful_time.reading import read_useful_time
from tests.useful_time.made_runs import MadeAllocation, MadeAttempt, MadeRun, Telling


def write(root: Path, told: Telling, *, members: int = 2) -> RunLayout:
    """Write the records of a made run, with so many members in each claim."""
    layout, records = RunLayout(root), told.records()
    for path, value in [
        (layout.plan, records.plan),
        (layout.submission, records.submission),
        (layout.result, records.result),
        *((layout.allocation(claim["allocation"]), claim) for claim in told.allocations),
        *((layout.claim(claim["attempt"]), {**claim, "members": names(members)}) for claim in told.attempts),
    ]:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(value))
    for event in told.events:
        events = Path(layout.events(event["node"]))
        events.parent.mkdir(parents=True, exist_ok=True)
        with open(events, "a", encoding="utf-8") as file:
            file.write(f"{json.dumps(event)}\n")
    Path(layout.requests).write_text("".join(f"{json.dumps(each)}\n" for each in told.requests))
    return layout


def names(members: int) -> list[str]:
    return ["a", *(f"n{number}" for number in range(members - 2)), "z"]


@pytest.fixture
def told() -> Telling:
    first = MadeAllocation(attempts=(MadeAttempt(steps=30), MadeAttempt(steps=20, end="stalled", lost_s=5)))
    return Telling(MadeRun(allocations=(first, MadeAllocation(attempts=(MadeAttempt(steps=20, end="stopped"),)))))


@pytest.mark.parametrize("members", [2, 1250])
def test_the_uses_of_a_run_directory_are_the_true_ones(tmp_path: Path, told: Telling, members: int) -> None:
    found = read_useful_time(write(tmp_path, told, members=members))
    assert found.seconds == pytest.approx(told.truth, abs=0.1)
    assert found.has_repeats
    data = found.to_json()
    assert [each["allocation"] for each in data["allocations"]] == [1, 2]
    parts = [each["seconds"]["training"] for each in data["allocations"]]
    assert sum(parts) == pytest.approx(data["seconds"]["training"], abs=0.01)
    assert data["queued_s"] == pytest.approx(told.queued_s, abs=0.1)
    assert data["useful_share"] == pytest.approx(told.truth[TimeUse.TRAINING] / sum(told.truth.values()), abs=0.01)


def test_only_some_nodes_of_a_large_attempt_are_read(tmp_path: Path, told: Telling) -> None:
    layout = write(tmp_path, told, members=1250)
    before = read_useful_time(layout).seconds
    other = Path(layout.events("n5"))
    other.parent.mkdir(parents=True)
    moment = told.events[0]["time_ns"]
    step = {"step": 10**6, "step_time_ns": moment}
    event = {"name": "steps.done", "time_ns": moment, "node": "n5", "allocation": 1, "attempt": 1, "metadata": step}
    other.write_text(json.dumps(event))
    assert read_useful_time(layout).seconds == before


def test_a_directory_that_is_being_written_is_read_as_far_as_it_goes(tmp_path: Path, told: Telling) -> None:
    assert read_useful_time(RunLayout(tmp_path / "none")).share is None
    layout = write(tmp_path, told)
    events = Path(layout.events("a"))
    events.write_bytes(events.read_bytes()[:-20] + b"\xff{")
    Path(layout.claim(3)).write_text('{"attempt": 3, "alloc')
    Path(layout.result).unlink()
    found = read_useful_time(layout)
    assert found.seconds[TimeUse.TRAINING] > 0
    assert found.history.allocations[0].attempts


def test_the_steps_of_an_older_run_are_those_of_its_samples(tmp_path: Path, told: Telling) -> None:
    moments = [event for event in told.events if event["name"] == "steps.done"]
    told.events[:] = [event for event in told.events if event["name"] != "steps.done"]
    layout = write(tmp_path, told)
    assert not read_useful_time(layout).history.has_steps
    lines = [
        {
            "time_ns": event["metadata"]["step_time_ns"],
            "attempt": event["attempt"],
            "ranks": [{"rank": 0, "step": event["metadata"]["step"], "age_s": 0.0}],
        }
        for event in moments
    ]
    found = read_useful_time(layout, samples={"z": lines})
    assert found.seconds[TimeUse.AGAIN] == pytest.approx(told.truth[TimeUse.AGAIN], abs=0.1)
