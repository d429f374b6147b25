"""Faults that are made for real, and what the run tells of each: a few in `make test`, all in `make test-all`."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.failures.classes import FailureClass
from tests.faults.explained import GOLDENS, differences
from tests.faults.fault import Fault
from tests.faults.kills import kill_ranks
from tests.faults.play import SCRIPTS, play, prepare_door
from tests.faults.surroundings import CannotBeMadeError
from tests.faults.table import FAULTS
from tests.tiers import variants

QUICK = [pytest.param(fault, id=fault.name) for fault in FAULTS if fault.is_quick]
OTHERS = [fault for fault in FAULTS if not fault.is_quick]


@pytest.mark.local
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "fault",
    [
        *QUICK,
        *variants(*OTHERS, of="test_a_run_tells_the_truth_about_its_fault", ids=[fault.name for fault in OTHERS]),
    ],
)
def test_a_run_tells_the_truth_about_its_fault(fault: Fault, tmp_path: Path) -> None:
    try:
        outcome = play(fault, tmp_path)
    except CannotBeMadeError as reason:
        pytest.skip(str(reason))
    assert outcome.wrong == (), outcome.result
    assert outcome.unlike == ()


@pytest.mark.variant(of="test_a_rank_that_has_stopped_itself_is_named_as_the_cause")
@pytest.mark.local
@pytest.mark.timeout(240)
def test_every_attempt_names_the_rank_that_was_killed_in_a_collective(tmp_path: Path) -> None:
    kills = kill_ranks(prepare_door(tmp_path), 5, seed=1)
    assert [kill.told.rank for kill in kills] == [kill.rank for kill in kills], [kill.told.line for kill in kills]
    assert all(kill.is_right for kill in kills)


def test_the_table_has_faults_of_every_class_with_names_of_their_own() -> None:
    assert len(FAULTS) >= 100
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    ends = [end for fault in FAULTS for end in (*fault.before, fault.end)]
    expected = {FailureClass(word) for end in ends for word in end.classes}
    never_a_cause = {FailureClass.TORN_DOWN}
    assert expected == set(FailureClass) - never_a_cause


def test_every_fault_has_an_explanation_to_read_and_no_other_is_kept() -> None:
    assert {path.stem for path in GOLDENS.glob("*.txt")} == {fault.name for fault in FAULTS}


def test_an_explanation_is_compared_by_what_every_run_must_say() -> None:
    (raises,) = (fault for fault in FAULTS if fault.name == "raises")
    golden = (GOLDENS / "raises.txt").read_text(encoding="utf-8")
    assert list(differences(raises, golden)) == []
    other_race = golden.replace("ranks 0-1,3 had not failed and were stopped", "rank 0 failed because of it")
    assert other_race != golden
    assert list(differences(raises, other_race)) == []
    assert len(list(differences(raises, golden.replace("rank 2", "rank 1")))) == 1
    assert len(list(differences(raises, golden.replace("bad batch 17", "bad batch")))) == 1


def test_every_script_is_of_a_fault_and_does_not_name_it() -> None:
    names = {fault.script or fault.name for fault in FAULTS}
    scripts = {path.stem: path.read_text() for path in SCRIPTS.iterdir() if path.is_file()}
    assert set(scripts) == {*names, "common", "group"}
    for fault in FAULTS:
        assert "_" not in fault.name or fault.name not in scripts[fault.script or fault.name], fault.name
