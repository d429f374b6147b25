"""States that grow where four slots hold smaller ones: saving goes on, in fewer slots if there is no room for all."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="there is no torch")

from hpc_elastic.rundir.state_records import StateVersion
from hpc_elastic.state_memory import ALLOCATED, COPY_EVERY, LIMIT, NO_COPIES, SLOTS, slot_header
from tests.worker.conftest import Runner
from tests.worker.test_memory import LOAD, WAIT, held
from tests.worker.test_states_that_are_copied import CopyingNode

MEBIBYTE = 1 << 20
WITHOUT_COPIES = "training goes on without copies on another node\n"
WITHOUT_STATES = "training goes on without states in memory\n"


def saves(small: int, *, large: int, more: int = 6) -> str:
    """A script that saves steps with states of one page, then of so many MiB."""
    return (
        "from hpc_elastic import memory\n"
        f"for step in range(1, {small + 1}): memory.save(step, {{'w': bytes([step]) * 1000}})\n"
        f"for step in range({small + 1}, {small + more + 1}):\n"
        f"    memory.save(step, {{'w': bytes([step]) * ({large} << 20)}})\n"
    )


@pytest.fixture
def node(runner: Runner) -> Iterator[CopyingNode]:
    made = CopyingNode(runner)
    made.begin(1)
    for local_rank in (0, 1):
        made.numbers(local_rank)[LIMIT] = 12 * MEBIBYTE  # of slots of 2 MiB: four, and two of another node's
        made.numbers(local_rank)[COPY_EVERY] = 4
    yield made
    made.states.close()


def reserved(node: CopyingNode, local_rank: int = 0) -> list[int]:
    """The MiB of the slots that have memory, and the sum as the kernel counts it."""
    numbers, status = node.numbers(local_rank), os.fstat(node.files[local_rank].own)
    slots = [slot_header(numbers, slot)[ALLOCATED] // MEBIBYTE for slot in range(SLOTS)]
    return [*sorted(filter(None, slots)), status.st_blocks * 512 // MEBIBYTE]


@pytest.mark.long
def test_states_that_do_not_fit_into_four_slots_any_more_go_on_in_two(node: CopyingNode) -> None:
    outcomes = [node.run(local_rank, saves(10, large=3) + WAIT) for local_rank in (0, 1)]
    assert [outcome.stderr.count("\n") for outcome in outcomes] == [1, 1]
    assert "with copies on another node a state of 3.0 MiB can need 24.0 MiB" in outcomes[0].stderr
    assert outcomes[0].stderr.endswith(WITHOUT_COPIES)
    assert node.numbers(0)[NO_COPIES] == 1
    assert node.states.verify() == held((1, 16), (1, 15))
    assert reserved(node) == [4, 4, 8]
    node.begin(2, StateVersion(attempt=1, step=16))
    assert node.run(0, LOAD).stdout == f"({{'w': {bytes([16]) * (3 << 20)!r}}}, 16)\n"


@pytest.mark.long
def test_a_state_that_fits_into_no_two_slots_leaves_the_ones_before(node: CopyingNode) -> None:
    outcome = node.run(0, saves(10, large=7, more=1) + WAIT)
    node.run(1, saves(10, large=7, more=1) + WAIT)
    assert outcome.stderr.count("\n") == 1
    assert "two copies of a state of 7.0 MiB need 16.0 MiB" in outcome.stderr
    assert outcome.stderr.endswith(WITHOUT_STATES)
    assert {(1, 10), (1, 8)} <= {(state.attempt, state.step) for state in node.states.verify()}


@pytest.mark.long
def test_where_nothing_is_copied_any_more_slots_that_copies_had_are_given_to_states_that_grow(
    node: CopyingNode,
) -> None:
    for local_rank in (0, 1):
        node.run(local_rank, saves(10, large=1, more=0) + WAIT)
    assert reserved(node) == [2, 2, 2, 2, 8]
    node.begin(2, StateVersion(attempt=1, step=10))
    for local_rank in (0, 1):
        node.numbers(local_rank)[LIMIT] = 9 * MEBIBYTE
    source = saves(10, large=3).replace("range(1, 11)", "()")
    outcomes = [node.run(local_rank, source + WAIT) for local_rank in (0, 1)]
    assert [outcome.stderr.count("\n") for outcome in outcomes] == [1, 1]
    assert node.states.verify() == held((2, 16), (2, 15))
    assert reserved(node) == [4, 4, 8]
