"""Saves where memory is short: nobody is killed for a state, no old state stays in the way, and one line says it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="there is no torch")

from hpc_elastic.agent.system.memory import MemoryWatch
from hpc_elastic.agent.workers.rank_states import RankStates
from hpc_elastic.agent.workers.state_room import StateRoom
from hpc_elastic.cgroup_memory import MemoryRoom
from hpc_elastic.rundir.state_records import StateVersion
from hpc_elastic.state_memory import IS_CLOSED, LIMIT, map_control, read_slots
from tests.agent.system import test_memory as kernel
from tests.memory_cgroup import MIB, MemoryCgroup, memory_cgroup
from tests.worker.conftest import Runner
from tests.worker.test_memory import LOAD, WAIT, Node, assign, held, outcome_of, save

WITHOUT = "training goes on without states in memory\n"
RANKS = 6
# Has a state, says so, and saves it when all others have theirs, too.
SAVES_TOGETHER = """
import os, sys, time
from hpc_elastic import memory
state = {"w": os.urandom(1 << 20) * 30}
print("ready", flush=True)
sys.stdin.readline()
for step in range(1, 4): memory.save(step, state)
"""


@pytest.fixture
def node(runner: Runner) -> Iterator[Node]:
    made = Node(runner)
    made.begin(1)
    yield made
    made.states.close()


def steps_of(node: Node, local_rank: int = 0) -> list[int]:
    return [state.step for state in read_slots(map_control(node.files[local_rank].own))]


def taken_by(node: Node, local_rank: int = 0) -> int:
    """The MiB of a rank's states, as the kernel counts them."""
    return os.fstat(node.files[local_rank].own).st_blocks * 512 // MIB


@pytest.mark.cgroups
@pytest.mark.long
def test_ranks_that_save_for_the_first_time_at_once_fill_no_cgroup(runner: Runner) -> None:
    """There is room for the states of some; each has looked before the others took theirs."""
    node = Node(runner)
    node.files = node.states.begin(replace(assign(1), workers=RANKS))
    script = str(runner.write("script.py", SAVES_TOGETHER))
    with memory_cgroup() as cgroup:
        ranks = [start_in(cgroup, node, rank, script) for rank in range(RANKS)]
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        cgroup.limit_to(cgroup.used + 110 * MIB)
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write("\n")
            rank.stdin.flush()
        outcomes = [outcome_of(rank) for rank in ranks]
        kills = cgroup.kills
        node.states.close()
    assert (kills, [outcome.exit_code for outcome in outcomes]) == (0, [0] * RANKS)
    refused = [outcome.stderr for outcome in outcomes if outcome.stderr]
    assert refused
    assert all(line.endswith(WITHOUT) and line.count("\n") == 1 and " are free" in line for line in refused), refused


def start_in(cgroup: MemoryCgroup, node: Node, local_rank: int, script: str) -> subprocess.Popen[str]:
    files = node.files[local_rank]
    return subprocess.Popen(
        cgroup.entering(*node.command(local_rank, "--script", script)),
        env={**node.runner.environment, "LOCAL_RANK": str(local_rank)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[files.own, files.node],
    )


@pytest.mark.long
def test_a_state_that_is_refused_once_leaves_the_ones_before_and_refused_twice_none(node: Node) -> None:
    """A rank may have to go back by one save, but not for ever to what it had saved before there was no room."""
    map_control(node.files[0].own)[LIMIT] = 8 * MIB
    small = save(1) + save(2)
    large = "memory.save({step}, bytes(20 << 20))\n"
    node.run(0, small + large.format(step=3) + WAIT)
    assert (steps_of(node), taken_by(node)) == ([2, 1], 4)
    node.begin(2)
    map_control(node.files[0].own)[LIMIT] = 8 * MIB
    outcome = node.run(0, small + large.format(step=3) + large.format(step=4) + WAIT)
    assert (steps_of(node), taken_by(node)) == ([], 0)
    assert outcome.stderr.count("\n") == 1
    assert outcome.stderr.endswith(WITHOUT)


@pytest.mark.long
def test_a_state_that_fits_again_is_kept_again(node: Node) -> None:
    map_control(node.files[0].own)[LIMIT] = 8 * MIB
    large = "".join(f"memory.save({step}, bytes(20 << 20))\n" for step in (2, 3, 4))
    node.run(0, save(1) + large + save(5) + save(6) + WAIT)
    assert (steps_of(node), taken_by(node)) == ([6, 5], 4)


CLOSES = """
import os
from hpc_elastic import memory
os.closerange(3, 256)
kept = [open(f"file{number}", "wb") for number in range(32)]
"""


@pytest.mark.parametrize("before", ["", save(1)])
def test_a_file_that_has_got_the_number_of_a_closed_descriptor_is_not_touched(before: str, node: Node) -> None:
    outcome = node.run(0, before + CLOSES + save(2) + "memory.save(3, bytes(20 << 20))\n" + WAIT)
    assert outcome.exit_code == 0
    assert outcome.stderr == (
        "hpc-elastic: memory.save: the script has closed the descriptor of this rank's memory, as os.closerange does; "
        + WITHOUT
    )
    assert {path.stat().st_size for path in Path(node.runner.directory).glob("file*")} == {0}


@pytest.mark.long
def test_a_load_whose_descriptor_is_closed_says_so(node: Node) -> None:
    node.run_both(save(1) + WAIT)
    assert node.states.verify() == held((1, 1))
    node.begin(2, StateVersion(attempt=1, step=1))
    outcome = node.run(0, CLOSES + LOAD)
    assert outcome.exit_code == 1
    assert "StateError: memory.load: the script has closed the descriptor of this rank's memory" in outcome.stderr


class FullNode(Node):
    """A node whose kernel says what the test has it say of kills for memory, and which has 64 MiB."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self.kernel = kernel.Node(runner.directory / "machine")
        self.kernel.has_version_1()
        self.copies = 0
        room = StateRoom(
            self.said.append,
            percent=100,
            copies=lambda: self.copies,
            watch=MemoryWatch(str(self.kernel.root)),
            find_room=lambda: MemoryRoom(total=64 * MIB, free=64 * MIB),
        )
        self.states = RankStates(self.said.append, room=room)

    @property
    def is_closed(self) -> list[int]:
        return [map_control(files.own)[IS_CLOSED] for files in self.files]


@pytest.fixture
def full(runner: Runner) -> Iterator[FullNode]:
    made = FullNode(runner)
    made.begin(1)
    yield made
    made.states.close()


@pytest.mark.long
def test_after_a_kill_for_memory_the_next_attempt_goes_on_where_it_was_and_saves_no_more(full: FullNode) -> None:
    full.run_both(save(1) + save(2) + WAIT)
    full.kernel.kills_1(1)
    assert full.states.verify() == held((1, 2), (1, 1))
    (said,) = full.said
    assert "has ended a process of this node while training states took 8 of 64 MiB: no state is saved in mem" in said
    full.begin(2, StateVersion(attempt=1, step=2))
    assert (full.is_closed, full.states.takes_copies) == ([1, 1], False)
    assert [taken_by(full, rank) for rank in (0, 1)] == [2, 2]  # what it has to load, and nothing else
    outcomes = [full.run(rank, LOAD + "\n" + save(3) + save(4)) for rank in (0, 1)]
    assert "'w': [2, 2.5]}, 2)" in outcomes[0].stdout
    line = (
        "hpc-elastic: memory.save: the out-of-memory killer has ended a process of this node while states took memory"
    )
    assert [outcome.stderr for outcome in outcomes] == [f"{line}; {WITHOUT}"] * 2
    assert [taken_by(full, rank) for rank in (0, 1)] == [0, 0]
    assert full.states.verify() == ()


@pytest.mark.long
def test_a_second_kill_frees_what_the_attempt_was_to_load(full: FullNode) -> None:
    full.run_both(save(1) + WAIT)
    for kills in (1, 2):
        full.kernel.kills_1(kills)
        assert full.states.verify() == (held((1, 1)) if kills == 1 else ())
        full.begin(kills + 1, StateVersion(attempt=1, step=1) if kills == 1 else None)
    assert [taken_by(full, rank) for rank in (0, 1)] == [0, 0]
    assert len(full.said) == 1, full.said
    assert full.is_closed == [1, 1]


@pytest.mark.parametrize(("copies", "is_closed"), [(0, 0), (1 * MIB, 0), (2 * MIB, 1)])
def test_states_that_take_hardly_any_memory_are_kept_after_a_kill_for_memory(
    copies: int, is_closed: int, full: FullNode
) -> None:
    """Copies of other nodes' states count, too."""
    full.copies = copies
    full.kernel.kills_1(1)
    full.begin(2)
    assert full.is_closed == [is_closed] * 2


@pytest.mark.long
def test_a_state_that_all_ranks_load_is_not_freed_by_the_first_save_of_one(full: FullNode) -> None:
    full.run(0, "from hpc_elastic import memory\nmemory.save(1, {'w': [1]}, replicated=True)\n" + WAIT)
    full.kernel.kills_1(1)
    full.copies = 8 * MIB
    full.states.verify()
    full.begin(2, StateVersion(attempt=1, step=1))
    saves = "from hpc_elastic import memory\nmemory.save({step}, {{}}, replicated=True)\n"
    full.run(0, saves.format(step=2))
    assert full.run(1, LOAD).stdout == "({'w': [1]}, 1)\n"
    full.run(0, saves.format(step=2) + saves.format(step=3))
    assert taken_by(full) == 0
