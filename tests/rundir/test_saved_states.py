"""What people had written while a run went on: which one counts, and what is removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.agent.records.kept_states import pin_elsewhere, read_kept, rename_kept
from hpc_elastic.codec import to_json
from hpc_elastic.rundir.kept_records import why_nothing_kept
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.saved_states import (
    find_saved,
    list_saves,
    remove_incomplete_saves,
    remove_saves,
    save_name,
    why_incomplete,
)
from hpc_elastic.rundir.state_records import ChosenState, KeptRecord, SaveManifest, StateVersion
from tests.rundir.test_kept_records import put

PLACE = "0/1 0/1 default"


def save(layout: RunLayout, step: int, *, ended: int = 1, attempt: int = 1, request: str = "0123456789") -> str:
    """Write a complete save of one rank; return the name of its folder."""
    name = save_name(step, request)
    record = KeptRecord(attempt=attempt, step=step, place=PLACE, length=3, crc=0)
    chosen = ChosenState(roles=("default",), attempt=attempt, step=step)
    manifest = SaveManifest(
        request=request, by="ada@login", time="t", ended=ended, states=(chosen,), files={"00000": record}
    )
    put(layout.record_in(layout.saved_states(name), "00000"), to_json(record))
    Path(layout.state_in(layout.saved_states(name), "00000")).write_text("abc")
    put(layout.save_manifest(name), to_json(manifest))
    return name


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    made = RunLayout(tmp_path / "run")
    put(made.claim(1), {})
    return made


def steps(layout: RunLayout, ended: int) -> list[StateVersion]:
    return [state.version for state in read_kept(layout, ended)]


def test_a_save_without_a_manifest_or_with_a_damaged_one_does_not_count(layout: RunLayout) -> None:
    assert find_saved(layout) is None
    older = save(layout, 5)
    newer = save(layout, 7, request="abcdef0123")
    found = find_saved(layout)
    assert found is not None
    assert found.name == newer
    Path(layout.save_manifest(newer)).write_text('{"format_version": 1')
    found = find_saved(layout)
    assert found is not None
    assert found.name == older
    os.unlink(layout.save_manifest(older))
    assert find_saved(layout) is None
    assert read_kept(layout, 1) == ()


def test_it_counts_in_the_run_itself_only_after_the_attempt_that_wrote_it(layout: RunLayout) -> None:
    save(layout, 5)
    assert steps(layout, 1) == [StateVersion(attempt=1, step=5)]
    assert steps(layout, 2) == []
    rename_kept(layout, 1, 2)  # an allocation that has not loaded it leaves it to the next one
    assert steps(layout, 2) == [StateVersion(attempt=1, step=5)]


def test_another_run_begins_with_it_whatever_attempts_came_after(layout: RunLayout, tmp_path: Path) -> None:
    assert why_nothing_kept(layout) is not None
    save(layout, 5)
    put(layout.claim(2), {})
    assert why_nothing_kept(layout) is None
    other = RunLayout(tmp_path / "other")
    (found,) = pin_elsewhere(other, layout)
    assert (found.version, found.places) == (StateVersion(attempt=0, step=5), frozenset([PLACE]))
    rename_kept(other, 0, 1)
    assert steps(other, 1) == [StateVersion(attempt=0, step=5)]


def test_of_one_step_a_save_and_a_state_that_was_kept_are_not_mixed(layout: RunLayout, tmp_path: Path) -> None:
    put(layout.kept_record(1, "00001"), {"attempt": 1, "step": 5, "place": "other", "length": 3, "crc": 0})
    save(layout, 5, attempt=1)
    put(layout.kept_record(1, "00000"), {"attempt": 1, "step": 6, "place": PLACE, "length": 3, "crc": 0})
    found = {state.version.step: state.places for state in pin_elsewhere(RunLayout(tmp_path / "this"), layout)}
    assert found == {5: {PLACE}, 6: {PLACE}}


def test_a_file_that_the_head_does_not_see_whole_is_named(layout: RunLayout) -> None:
    name = save(layout, 5)
    found = find_saved(layout)
    assert found is not None
    assert why_incomplete(layout, name, found.manifest) is None
    path = Path(layout.state_in(layout.saved_states(name), "00000"))
    path.write_text("ab")
    assert why_incomplete(layout, name, found.manifest) == f"{path} has 2 bytes, expected 3"
    path.unlink()
    assert str(why_incomplete(layout, name, found.manifest)).startswith(f"{path} is not there for the head: ")


def test_older_and_broken_saves_are_removed_and_nothing_that_is_not_ours(layout: RunLayout, tmp_path: Path) -> None:
    kept, broken = save(layout, 5), save(layout, 4, request="ffffffff")
    os.unlink(layout.save_manifest(broken))
    Path(layout.saves, "notes").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "00000.state").write_text("x")
    Path(layout.saves, "3-00000000").symlink_to(elsewhere)
    remove_incomplete_saves(layout)
    assert list_saves(layout) == ["3-00000000", kept]
    newest = save(layout, 6, request="aaaaaaaa")
    remove_saves(layout, but=newest)
    assert sorted(os.listdir(layout.saves)) == ["3-00000000", newest, "notes"]
    assert (elsewhere / "00000.state").exists()
