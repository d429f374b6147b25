"""The thread that completes a saved state: its checksum, which nobody waits for."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from hpc_elastic.state_memory import ATTEMPT, LIMIT, create_memory, map_control, read_slots, slot_offset
from hpc_elastic.worker import completion
from hpc_elastic.worker.rank_state import RankState

PIECE = 1024
PIECES = 8


class Checksums:
    """Stands in for zlib: each piece takes as long as the test wants."""

    def __init__(self) -> None:
        self.begun = 0
        self.news = threading.Condition()
        self.may_go_on = threading.Event()

    def crc32(self, piece: memoryview, crc: int) -> int:
        with self.news:
            self.begun += 1
            self.news.notify_all()
        assert self.may_go_on.wait(30)
        return zlib.crc32(piece, crc)

    def await_pieces(self, count: int) -> None:
        with self.news:
            assert self.news.wait_for(lambda: self.begun >= count, 30)


@pytest.fixture
def checksums(monkeypatch: pytest.MonkeyPatch) -> Checksums:
    made = Checksums()
    monkeypatch.setattr(completion, "zlib", SimpleNamespace(crc32=made.crc32))
    monkeypatch.setattr(completion, "PIECE_BYTES", PIECE)
    return made


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = create_memory(0)
    numbers = map_control(made)
    numbers[LIMIT], numbers[ATTEMPT] = 64 << 20, 1
    yield made
    os.close(made)


@pytest.fixture
def save(descriptor: int) -> Callable[[int], None]:
    rank = RankState(descriptor, descriptor)

    def save(step: int) -> None:
        rank.save(step, {"step": step, "ballast": bytes([step]) * PIECE * PIECES}, is_replicated=False)

    return save


def join_checksums() -> None:
    for thread in threading.enumerate():
        if thread.name == "hpc-elastic-checksum":
            thread.join(30)


def test_a_save_ends_the_checksum_of_the_state_that_it_overwrites(
    checksums: Checksums, descriptor: int, save: Callable[[int], None]
) -> None:
    save(1)
    checksums.await_pieces(1)
    save(2)
    checksums.await_pieces(2)
    third = threading.Thread(target=save, args=(3,))
    third.start()  # waits for one piece of the first one's checksum
    first = next(each for each in threading.enumerate() if each.name == "hpc-elastic-checksum")
    while not first._is_in_vain:  # type: ignore[attr-defined]
        assert third.is_alive()
    checksums.may_go_on.set()
    third.join(30)
    join_checksums()
    states = read_slots(map_control(descriptor))
    assert [state.step for state in states] == [3, 2]
    assert checksums.begun == 1 + 2 * (PIECES + 1), "one piece of the first state, and all of the others"
    for state in states:
        assert state.crc == zlib.crc32(os.pread(descriptor, state.length, slot_offset(state.slot)))


def test_saves_do_not_wait_for_checksums_of_states_that_they_leave_alone(
    checksums: Checksums, descriptor: int, save: Callable[[int], None]
) -> None:
    save(1)
    save(2)
    assert [(state.step, state.crc) for state in read_slots(map_control(descriptor))] == [(2, None), (1, None)]
    checksums.may_go_on.set()
    join_checksums()
    assert None not in [state.crc for state in read_slots(map_control(descriptor))]
