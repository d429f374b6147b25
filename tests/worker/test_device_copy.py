"""States with tensors on a CUDA device: copied beside the program, committed when they are there.

There is no device here: a stand-in for `torch.cuda` plays one that is as slow as a test wants, and transposed tensors,
which torch has to copy as well, are those on it. What needs a real device is in test_gpu.py.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="there is no torch")

import torch

from hpc_elastic.state_memory import ATTEMPT, LIMIT, create_memory, map_control, read_slots, slot_offset
from hpc_elastic.worker import completion, rank_state
from hpc_elastic.worker.device_copy import DeviceCopies
from hpc_elastic.worker.rank_state import RankState
from hpc_elastic.worker.state_encoding import decode_state

MEBIBYTE = 1 << 20
DENIED = 1  # an error of cudaHostRegister


class Device:
    """Stands in for `torch.cuda`: what it is told, in order, and events that happen when the test says so."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.pinned: dict[int, int] = {}
        self.answer = 0
        self.happened = threading.Event()
        self.fails = False

    def cudart(self) -> Any:
        return SimpleNamespace(cudaHostRegister=self.register, cudaHostUnregister=self.pinned.pop)

    def register(self, address: int, size: int, _flags: int) -> int:
        assert not any(address < end and begin < address + size for begin, end in self.spans()), "it is pinned already"
        if not self.answer:
            self.pinned[address] = size
        return self.answer

    def spans(self) -> list[tuple[int, int]]:
        return [(address, address + size) for address, size in self.pinned.items()]

    def current_stream(self, _device: object) -> Any:
        return Stream(self, "current")

    def Stream(self, _device: object) -> Any:  # noqa: N802 - torch's name
        return Stream(self, "side")

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.told.append(f"on {stream}")
        yield
        self.told.append("back")

    def Event(self, *, blocking: bool) -> Any:  # noqa: N802 - torch's name
        assert blocking, "it would take a core while it waits"
        return SimpleNamespace(
            record=lambda stream: self.told.append(f"event on {stream}"), synchronize=self.synchronize, name="event"
        )

    def synchronize(self) -> None:
        assert self.happened.wait(30), "nobody has said that the copies are done"
        if self.fails:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


class Stream:
    def __init__(self, device: Device, name: str) -> None:
        self._device, self._name = device, name

    def __str__(self) -> str:
        return self._name

    def wait_stream(self, other: Stream) -> None:
        self._device.told.append(f"{self} waits for {other}")

    def wait_event(self, _event: object) -> None:
        self._device.told.append(f"{self} waits for the event")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device on which every transposed tensor is."""
    device = Device()
    stand_in = SimpleNamespace(
        cuda=device,
        zeros=lambda *_arguments, **_options: device.told.append("the error is taken"),
        frombuffer=torch.frombuffer,
        uint8=torch.uint8,
    )
    monkeypatch.setattr(rank_state, "DeviceCopies", lambda: DeviceCopies(stand_in))
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: not tensor.is_contiguous()))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _tensor, stream: device.told.append(f"used on {stream}"))
    return device


class Memory:
    """A rank's memory, as its agent sees it, and the rank."""

    def __init__(self) -> None:
        self.descriptor = create_memory(0)
        self.numbers = map_control(self.descriptor)
        self.numbers[LIMIT], self.numbers[ATTEMPT] = 64 * MEBIBYTE, 1
        self.rank = RankState(self.descriptor, self.descriptor)

    def save(self, step: int, number: float, *, rows: int = 3) -> None:
        self.rank.save(step, {"w": on_device(number, rows), "here": torch.full((3,), number)}, is_replicated=False)

    def steps(self) -> list[int]:
        return [state.step for state in read_slots(self.numbers)]

    def newest(self) -> Any:
        state = read_slots(self.numbers)[0]
        data = bytearray(os.pread(self.descriptor, state.length, slot_offset(state.slot)))
        return decode_state(memoryview(data))


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    os.close(made.descriptor)


def on_device(number: float, rows: int = 3) -> Any:
    return torch.full((rows, 1000), number).t()


def test_a_state_counts_once_its_tensors_are_copied_and_save_does_not_wait_for_that(
    device: Device, memory: Memory
) -> None:
    memory.save(1, 1.0)
    assert memory.steps() == []
    device.happened.set()
    memory.rank._await_commit()
    assert memory.steps() == [1]
    found = memory.newest()
    assert torch.equal(found["w"], torch.full((1000, 3), 1.0))
    assert torch.equal(found["here"], torch.full((3,), 1.0))


def test_what_the_program_does_next_on_the_device_comes_after_the_copies(device: Device, memory: Memory) -> None:
    memory.save(1, 1.0)
    device.happened.set()
    assert device.told == [
        "side waits for current",
        "on side",
        "used on side",
        "event on side",
        "back",
        "current waits for the event",
    ]


def test_the_next_save_waits_for_the_copies_of_the_one_before(device: Device, memory: Memory) -> None:
    memory.save(1, 1.0)
    second = threading.Thread(target=memory.save, args=(2, 2.0))
    second.start()
    assert memory.steps() == []
    device.happened.set()
    second.join(30)
    memory.rank._await_commit()
    assert memory.steps() == [2, 1]
    assert memory.newest()["w"][0, 0] == 2.0


def test_the_next_save_does_not_wait_for_the_checksum_of_the_one_before(
    device: Device, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()
    monkeypatch.setattr(completion, "zlib", SimpleNamespace(crc32=lambda *_arguments: is_over.wait(30) and 7))
    device.happened.set()
    memory.save(1, 1.0)
    memory.save(2, 2.0)
    memory.rank._await_commit()
    assert [(state.step, state.crc) for state in read_slots(memory.numbers)] == [(2, None), (1, None)]
    is_over.set()


def test_a_step_that_is_still_copied_counts_as_saved(device: Device, memory: Memory) -> None:
    memory.save(2, 2.0)
    again = threading.Thread(target=memory.save, args=(2, 9.0))
    again.start()
    device.happened.set()
    again.join(30)
    memory.rank._await_commit()
    assert (memory.steps(), float(memory.newest()["w"][0, 0])) == ([2], 2.0)
    memory.save(3, 3.0)
    with pytest.raises(ValueError, match="found step 2, expected one after 3"):
        memory.save(2, 2.0)


def test_a_device_that_fails_leaves_the_state_before(device: Device, memory: Memory) -> None:
    device.happened.set()
    memory.save(1, 1.0)
    memory.rank._await_commit()
    device.fails = True
    memory.save(2, 2.0)
    memory.rank._await_commit()
    assert memory.steps() == [1]
    assert memory.newest()["w"][0, 0] == 1.0


def test_a_state_that_grows_is_pinned_anew_and_one_that_is_freed_no_longer(device: Device, memory: Memory) -> None:
    device.happened.set()
    for step, rows in enumerate((3, 3, 3, 1000, 1000), start=1):
        memory.save(step, float(step), rows=rows)
    memory.rank._await_commit()
    assert sorted(device.pinned.values()) == [4 * MEBIBYTE] * 2
    assert memory.steps() == [5, 4]
    memory.numbers[LIMIT] = 0
    for step in (6, 7):  # with no room for two saves in a row all is forgotten
        memory.save(step, float(step), rows=5000)
    assert (device.pinned, memory.steps()) == ({}, [])


def test_where_memory_cannot_be_pinned_save_copies_at_once(device: Device, memory: Memory) -> None:
    device.answer = DENIED
    for step in (1, 2):
        memory.save(step, float(step))
    assert memory.steps() == [2, 1]
    assert memory.newest()["w"][0, 0] == 2.0
    assert device.told == ["the error is taken"], "or the next kernel of the training would get it"


def test_a_state_without_tensors_on_a_device_is_committed_at_once(device: Device, memory: Memory) -> None:
    memory.rank.save(1, {"w": torch.ones(5)}, is_replicated=False)
    assert (memory.steps(), device.told, device.pinned) == ([1], [], {})
