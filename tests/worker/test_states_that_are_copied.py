"""The states of a node's ranks where they are copied to another node: what is kept, how much, and what is checked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="there is no torch")


from hpc_elastic.agent.keeper.channel import Channel, ChannelError
from hpc_elastic.agent.workers.rank_states import RankStates, StateNotHereError
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.rundir.state_records import StateVersion
from hpc_elastic.state_memory import COPY_EVERY, LIMIT, NO_COPIES, map_control, read_slots, slot_offset
from tests.worker.conftest import Runner
from tests.worker.test_memory import LOAD, WAIT, Node, assign, held

OTHER = Endpoint(address="node3", port=7)
SAVES = "from hpc_elastic import memory\nfor step in range(1, 11): memory.save(step, {'w': bytes([step]) * 1000})\n"


class CopyingNode(Node):
    """A node whose states are copied to another one, that does not answer here."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self.states = RankStates(self.said.append, dial=self._dial)

    def _dial(self, address: str, port: int) -> Channel:
        raise ChannelError("no answer in time")

    def begin(self, attempt: int, state: StateVersion | None = None) -> None:
        self.files = self.states.begin(replace(assign(attempt, state), copies_to=OTHER))

    def numbers(self, local_rank: int) -> memoryview:
        return map_control(self.files[local_rank].own)


@pytest.fixture
def node(runner: Runner) -> Iterator[CopyingNode]:
    made = CopyingNode(runner)
    made.begin(1)
    yield made
    made.states.close()


@pytest.mark.long
def test_the_two_newest_of_those_that_are_copied_are_kept_beside_the_newest(node: CopyingNode) -> None:
    for local_rank in (0, 1):
        node.numbers(local_rank)[COPY_EVERY] = 4
        node.run(local_rank, SAVES + WAIT)
    assert {(1, 4), (1, 8), (1, 10)} <= {(state.attempt, state.step) for state in node.states.verify()}
    node.begin(2, StateVersion(attempt=1, step=4))
    assert node.numbers(0)[COPY_EVERY] == 2  # perhaps the network is better now
    assert [state.ordinal for state in read_slots(node.numbers(0))] == [0]
    assert node.run(0, LOAD).stdout == f"({{'w': {bytes([4]) * 1000!r}}}, 4)\n"


@pytest.mark.long
def test_an_older_state_is_checked_when_an_attempt_is_to_begin_with_it(node: CopyingNode, tmp_path: Path) -> None:
    for local_rank in (0, 1):
        node.numbers(local_rank)[COPY_EVERY] = 4
        node.run(local_rank, SAVES + WAIT)
    (state,) = [each for each in read_slots(node.numbers(1)) if each.step == 4]
    os.pwrite(node.files[1].own, b"X", slot_offset(state.slot) + state.length - 5)
    assert (1, 4) in {(each.attempt, each.step) for each in node.states.verify()}  # it reads the newest only
    order = assign(2, StateVersion(attempt=1, step=8))
    assert node.states.lacks(order) == order.state
    assert node.states.fetch(order, RunLayout(str(tmp_path))) is None
    assert node.states.lacks(order) is None
    assert node.said == []
    with pytest.raises(StateNotHereError, match=r"step 4 cannot be loaded: .* has not all of it"):
        node.states.fetch(assign(2, StateVersion(attempt=1, step=4)), RunLayout(str(tmp_path)))
    assert node.said == ["rank 3: its state of step 4 in memory is damaged, and is not used"]


def test_what_no_other_node_gives_is_told_with_the_reason(node: CopyingNode, tmp_path: Path) -> None:
    order = replace(assign(2, StateVersion(attempt=1, step=4)), state_from=(OTHER,))
    words = (
        r"step 4 cannot be loaded: no other node has given it \(node3:7: no answer in time\), and .*memory has not all"
    )
    with pytest.raises(StateNotHereError, match=words):
        node.states.fetch(order, RunLayout(str(tmp_path)))


@pytest.mark.long
def test_copies_that_do_not_fit_cost_one_line_and_no_state(node: CopyingNode) -> None:
    for local_rank in (0, 1):
        node.numbers(local_rank)[LIMIT] = 11 << 20  # of states of a page or two: 2 MiB each, six are needed
    outcomes = [node.run(local_rank, SAVES + WAIT) for local_rank in (0, 1)]
    assert [outcome.stderr.count("\n") for outcome in outcomes] == [1, 1]
    assert outcomes[0].stderr.startswith("hpc-elastic: memory.save: with copies on another node a state of ")
    assert "can need 12.0 MiB, and this rank's part of the 40 % of " in outcomes[0].stderr
    assert outcomes[0].stderr.endswith(
        "that states may take is 11.0 MiB; training goes on without copies on another node\n"
    )
    assert node.numbers(0)[NO_COPIES] == 1
    assert node.states.verify() == held((1, 10), (1, 9))


@pytest.mark.long
def test_a_state_that_is_the_same_on_all_ranks_takes_no_more_memory(node: CopyingNode) -> None:
    node.run(0, SAVES.replace("* 1000}", "* 1000}, replicated=True") + WAIT)
    assert node.states.verify() == held((1, 10), (1, 9), part="* default")


@pytest.mark.long
def test_nothing_more_is_kept_where_nobody_takes_copies(node: CopyingNode) -> None:
    node.files = node.states.begin(assign(2))
    assert node.numbers(0)[COPY_EVERY] == 0
    for local_rank in (0, 1):
        node.run(local_rank, SAVES + WAIT)
    assert node.states.verify() == held((2, 10), (2, 9))
