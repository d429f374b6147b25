"""Training states that are written from memory as an allocation ends, and read by the agents of the next one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="there is no torch")


from hpc_elastic.agent.records.kept_states import pin_elsewhere, read_kept, remove_kept, rename_kept
from hpc_elastic.agent.workers.rank_states import RankStates, StateNotHereError
from hpc_elastic.agent.workers.state_files import write_parts, write_states
from hpc_elastic.codec import to_json
from hpc_elastic.membership.held_states import rank_places, shared_place
from hpc_elastic.membership.messages import Assign
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.saved_states import save_name
from hpc_elastic.rundir.state_records import ChosenState, Flush, SaveManifest, StateVersion
from hpc_elastic.rundir.store import write_json
from hpc_elastic.state_memory import slot_offset
from hpc_elastic.worker.state_encoding import decode_state
from tests.tiers import variants
from tests.worker.test_memory import LOAD, WAIT, Node, assign, held, node, save

__all__ = ["node"]  # a fixture

STEP = StateVersion(attempt=1, step=2)
FLUSH = Flush(ended=3, state=STEP)


def keep(node: Node, layout: RunLayout, flush: Flush = FLUSH) -> str:
    """Have this node write its part; return the line that it says."""
    return write_states(layout, flush, node.states.parts_of(flush, layout))


def fetch(node: Node, layout: RunLayout) -> RankStates:
    """The agent's side of the same ranks in another allocation, with the state read from the run directory."""
    states = RankStates(node.said.append)
    try:
        fetched = states.fetch(assign(4, STEP), layout)
        assert fetched is not None
        states.adopt(fetched, assign(4, STEP))
    except BaseException:
        states.close()
        raise
    return states


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path / "run")


@pytest.mark.long
def test_the_workers_of_the_next_allocation_load_what_was_written(node: Node, layout: RunLayout) -> None:
    node.run_both(save(1) + save(2) + save(3))
    line = keep(node, layout)
    assert line.startswith("kept step 2 for the next allocation: 0.0 MB in ")
    assert sorted(os.listdir(layout.kept_states(3))) == [
        f"0000{rank}.{kind}" for rank in (2, 3) for kind in ("json", "state")
    ]
    (found,) = read_kept(layout, 3)
    assert (found.ended, found.version, found.places) == (3, STEP, frozenset(rank_places(assign(4))))
    node.states = fetch(node, layout)
    assert node.states.lacks(assign(4, STEP)) is None
    node.begin(4, STEP)
    assert node.run_both(LOAD) == [f"({{'rank': '{rank}', 'w': [2, 2.5]}}, 2)\n" for rank in (0, 1)]
    assert node.states.verify() == held((1, 2))
    node.run_both(save(5) + WAIT)
    assert node.states.verify() == held((4, 5), (1, 2))


@pytest.mark.long
def test_a_file_is_one_of_safetensors(node: Node, layout: RunLayout) -> None:
    node.run_both("import torch\nfrom hpc_elastic import memory\nmemory.save(2, {'w': torch.arange(3)})\n" + WAIT)
    keep(node, layout)
    content = Path(layout.kept_state(3, "00002")).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    (tensor,) = (entry for name, entry in header.items() if name != "__metadata__")
    assert (tensor["dtype"], tensor["shape"], tensor["data_offsets"]) == ("I64", [3], [0, 24])
    assert decode_state(memoryview(bytearray(content)))["w"].tolist() == [0, 1, 2]


@pytest.mark.long
def test_a_state_that_is_the_same_on_all_ranks_is_written_once_and_loaded_by_all(node: Node, layout: RunLayout) -> None:
    node.run_both("from hpc_elastic import memory\nmemory.save(2, [1, 2], replicated=True)")
    keep(node, layout)
    assert sorted(os.listdir(layout.kept_states(3))) == ["all-default.json", "all-default.state"]
    assert read_kept(layout, 3)[0].places == {shared_place("default")}
    node.states = fetch(node, layout)
    node.begin(4, STEP)
    assert node.run_both(LOAD) == ["([1, 2], 2)\n"] * 2


def a_byte_less(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def a_byte_more(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def another_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def another_step(path: Path) -> None:
    path = path.with_suffix(".json")
    path.write_text(path.read_text().replace('"step": 2', '"step": 1'))


def another_rank(path: Path) -> None:
    path = path.with_suffix(".json")
    path.write_text(path.read_text().replace("3/4 3/4", "2/4 2/4"))


def no_record(path: Path) -> None:
    path.with_suffix(".json").unlink()


def no_file(path: Path) -> None:
    path.unlink()


def a_record_of_nothing(path: Path) -> None:
    path.with_suffix(".json").write_text("{}")


def more_than_there_is_room_for(path: Path) -> None:
    record = path.with_suffix(".json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "length": 1 << 50}))


def less_than_nothing(path: Path) -> None:
    record = path.with_suffix(".json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "length": -5}))


def a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.long
@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (a_byte_less, "is damaged"),
        (another_byte, "is damaged"),
        (another_step, "has not all of it"),
        (no_file, "No such file"),
        (more_than_there_is_room_for, "no room in memory"),
        (a_fifo, "is no file"),
        *variants(
            (a_byte_more, "is damaged"),
            (another_rank, "has not all of it"),
            (no_record, "has not all of it"),
            (a_record_of_nothing, "has not all of it"),
            (less_than_nothing, "has not all of it"),
            (a_folder, "is no file"),
            of="test_what_cannot_be_loaded_is_said_in_one_line_and_leaves_no_descriptor",
        ),
    ],
)
def test_what_cannot_be_loaded_is_said_in_one_line_and_leaves_no_descriptor(
    harm: Callable[[Path], None], found: str, node: Node, layout: RunLayout
) -> None:
    node.run_both(save(2))
    keep(node, layout)
    harm(Path(layout.kept_state(3, "00003")))
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(StateNotHereError, match=r"^step 2 cannot be loaded: .*$") as error:
        fetch(node, layout)
    assert found in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.long
def test_a_state_that_is_damaged_in_memory_is_not_kept(node: Node, layout: RunLayout) -> None:
    node.run_both(save(2) + WAIT)
    os.pwrite(node.files[1].own, b"\xff\xff", slot_offset(0) + 20)
    assert "is damaged in memory" in keep(node, layout)
    assert sorted(os.listdir(layout.kept_states(3))) == ["00002.json", "00002.state"]
    assert read_kept(layout, 3)[0].places == {rank_places(assign(4))[0]}


@pytest.mark.long
def test_a_node_without_the_state_writes_nothing(node: Node, layout: RunLayout) -> None:
    node.run_both(save(1))
    assert "is not in memory any more" in keep(node, layout)
    assert not Path(layout.memory).exists()


# On a file system of its own that is full: writes a state of 4 MiB where there is room for 1 MiB.
FULL = """
import os, sys
from hpc_elastic.agent.workers.state_files import StatePart, write_states
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.saved_states import save_name
from hpc_elastic.rundir.state_records import ChosenState, Flush, SaveManifest, StateVersion
from hpc_elastic.rundir.store import write_json
from hpc_elastic.state_memory import SlotState, create_memory, fill_slot, map_control
layout, memory = RunLayout(sys.argv[1]), create_memory(0)
state = SlotState(slot=0, sequence=1, attempt=1, step=2, length=4 << 20, is_replicated=False, crc=None)
with fill_slot(map_control(memory), memory, state) as write:
    write(memoryview(b"x" * state.length), 0)
part = StatePart(name="00000", place="0/1 0/1 default", descriptor=memory, state=state)
print(write_states(layout, Flush(ended=3, state=StateVersion(attempt=1, step=2)), [part]))
print(os.listdir(layout.kept_states(3)))
"""


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_disk_is_said_and_nothing_half_made_is_left(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=1M tmpfs "$0" && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, str(tmp_path), sys.executable, "-c", FULL, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    path = RunLayout(tmp_path).kept_state(3, "00000")
    line = f"step 2 cannot be kept for the next allocation: cannot write {path}: No space left on device"
    assert done.stdout.splitlines() == [line, "[]"]


@pytest.mark.long
def test_states_of_earlier_attempts_are_removed_and_nothing_else(node: Node, layout: RunLayout) -> None:
    node.run_both(save(2))
    for ended in (1, 3, 10):
        keep(node, layout, Flush(ended=ended, state=STEP))
    remove_kept(layout, before=10)
    assert os.listdir(layout.memory) == ["0010"]
    Path(layout.memory, "mine").mkdir()
    remove_kept(layout)
    assert os.listdir(layout.memory) == ["mine"]
    Path(layout.memory, "mine").rmdir()
    remove_kept(layout)
    assert not Path(layout.memory).exists()


def test_records_that_make_no_sense_do_not_count(layout: RunLayout) -> None:
    assert read_kept(layout, 3) == ()
    folder = Path(layout.kept_states(3))
    folder.mkdir(parents=True)
    numbers = [{"attempt": 10**30}, {"step": -1}, {"length": 0}, {"length": -1}]
    sound = {"attempt": 1, "step": 2, "place": "0/1 0/1 default", "length": 3, "crc": 0}
    for name, content in (
        *((f"0001{number}.json", json.dumps({**sound, **odd})) for number, odd in enumerate(numbers)),
        ("00000.json", "{"),
        ("00001.json", "[]"),
        ("x.json", '{"attempt": "a"}'),
        ("y", ""),
    ):
        (folder / name).write_text(content)
    assert read_kept(layout, 3) == ()


@pytest.mark.long
def test_what_others_have_put_there_is_not_removed_with_the_states(
    node: Node, layout: RunLayout, tmp_path: Path
) -> None:
    node.run_both(save(2))
    keep(node, layout)
    folder, elsewhere = Path(layout.kept_states(3)), tmp_path / "moved"
    (folder / "notes.txt").write_text("mine")
    (folder / ".00002.0123456789ab.tmp").write_text("its writer was killed")
    keep(node, layout, Flush(ended=2, state=STEP))
    Path(layout.kept_states(2)).rename(elsewhere)
    Path(layout.kept_states(2)).symlink_to(elsewhere)
    remove_kept(layout)
    assert os.listdir(folder) == ["notes.txt"]
    assert len(os.listdir(elsewhere)) == 4


@pytest.mark.long
def test_ranks_at_another_place_read_their_own_states_from_the_files(node: Node, layout: RunLayout) -> None:
    node.run_both(save(2))
    node.states.verify()
    moved = replace(assign(2, STEP), first_rank=0, first_role_rank=0)
    assert node.states.lacks(assign(2, STEP)) is None
    assert node.states.lacks(moved) == STEP


OF_ANOTHER = StateVersion(attempt=0, step=2)


def begin_with(other: RunLayout, layout: RunLayout, order: Assign, node: Node) -> list[str]:
    """What the ranks load in a run at `layout` whose job names the run at `other`."""
    node.states.close()
    node.states = RankStates(node.said.append, other_run=other.root)
    fetched = node.states.fetch(order, layout)
    assert fetched is not None
    node.states.adopt(fetched, order)
    node.files = node.states.begin(order)
    return node.run_both(LOAD)


def claim(layout: RunLayout, attempt: int) -> None:
    path = Path(layout.claim(attempt))
    path.parent.mkdir(parents=True)
    path.write_text("{}")


LOADED = [f"({{'rank': '{rank}', 'w': [2, 2.5]}}, 2)\n" for rank in (0, 1)]


@pytest.mark.long
def test_only_what_another_run_has_kept_after_its_latest_attempt_counts(
    node: Node, layout: RunLayout, tmp_path: Path
) -> None:
    other = RunLayout(tmp_path / "other")
    node.run_both(save(2))
    keep(node, other, Flush(ended=1, state=STEP))
    claim(other, 1)
    (found,) = pin_elsewhere(layout, other)
    assert (found.ended, found.version) == (0, OF_ANOTHER)
    assert begin_with(other, layout, assign(1, OF_ANOTHER), node) == LOADED
    claim(other, 2)  # which may have done hours of steps
    assert pin_elsewhere(layout, other) == ()
    keep(node, other, Flush(ended=2, state=OF_ANOTHER))
    for path in Path(other.kept_states(2)).glob("*.json"):
        path.unlink()
    with pytest.raises(StateNotHereError):  # attempt 2 here, and the same step of an older attempt there
        begin_with(other, layout, assign(2, OF_ANOTHER), node)


@pytest.mark.long
def test_what_was_loaded_from_another_run_is_read_where_this_one_has_written_it(
    node: Node, layout: RunLayout, tmp_path: Path
) -> None:
    other = RunLayout(tmp_path / "other")
    node.run_both(save(2))
    keep(node, other, Flush(ended=1, state=STEP))
    claim(other, 1)
    pin_elsewhere(layout, other)
    assert begin_with(other, layout, assign(1, OF_ANOTHER), node) == LOADED
    keep(node, layout, Flush(ended=1, state=OF_ANOTHER))
    assert read_kept(layout, 1)[0].version == OF_ANOTHER
    Path(other.root).rename(tmp_path / "gone")
    assert begin_with(other, layout, assign(2, OF_ANOTHER), node) == LOADED


@pytest.mark.long
def test_an_allocation_that_has_not_loaded_what_another_run_has_kept_leaves_it_to_the_next_one(
    node: Node, layout: RunLayout, tmp_path: Path
) -> None:
    other = RunLayout(tmp_path / "other")
    node.run_both(save(2))
    keep(node, other, Flush(ended=1, state=STEP))
    claim(other, 1)
    pin_elsewhere(layout, other)
    rename_kept(layout, 0, 1)
    (found,) = read_kept(layout, 1)
    assert (found.ended, found.version, found.places) == (1, OF_ANOTHER, frozenset(rank_places(assign(4))))
    assert begin_with(other, layout, assign(2, OF_ANOTHER), node) == LOADED


def save_on_request(node: Node, layout: RunLayout, request: str, *, attempt: int = 1) -> Path:
    """Write a complete save of what the ranks hold, as a person asks for it; return its folder."""
    state = StateVersion(attempt=attempt, step=2)
    folder = layout.saved_states(save_name(STEP.step, request))
    files, errors = write_parts(folder, node.states.parts_of(Flush(ended=attempt, state=state), layout))
    assert not errors
    chosen = ChosenState(roles=("default",), attempt=attempt, step=2)
    manifest = SaveManifest(request=request, by="ada@login", time="t", ended=attempt, states=(chosen,), files=files)
    write_json(layout.save_manifest(save_name(STEP.step, request)), to_json(manifest))
    return Path(folder)


OF_ANOTHER_HISTORY = save(2).replace("[2, 2.5]", "[7, 2.5]")


@pytest.mark.long
def test_of_another_run_no_rank_takes_the_same_step_of_another_attempt(
    node: Node, layout: RunLayout, tmp_path: Path
) -> None:
    """Its latest attempt has kept the step as well, and of the save, which goes first, a file is gone."""
    other = RunLayout(tmp_path / "other")
    node.run_both(save(2))
    folder = save_on_request(node, other, "0123abcd")
    node.begin(2)
    node.run_both(OF_ANOTHER_HISTORY)
    claim(other, 2)
    keep(node, other, Flush(ended=2, state=StateVersion(attempt=2, step=2)))
    pin_elsewhere(layout, other)
    assert begin_with(other, layout, assign(1, OF_ANOTHER), node) == LOADED
    (folder / "00003.json").unlink()
    with pytest.raises(StateNotHereError, match=r"step 2 cannot be loaded: .* no longer has all of it"):
        begin_with(other, layout, assign(1, OF_ANOTHER), node)


@pytest.mark.long
def test_no_rank_takes_what_another_run_has_saved_of_the_step_since_this_one_began(
    node: Node, layout: RunLayout, tmp_path: Path
) -> None:
    other = RunLayout(tmp_path / "other")
    node.run_both(save(2))
    save_on_request(node, other, "0123abcd")
    claim(other, 1)
    pin_elsewhere(layout, other)
    node.begin(2)
    node.run_both(OF_ANOTHER_HISTORY)
    save_on_request(node, other, "4567abcd", attempt=2)
    with pytest.raises(StateNotHereError, match=r"step 2 cannot be loaded: .* no longer has all of it"):
        begin_with(other, layout, assign(1, OF_ANOTHER), node)
