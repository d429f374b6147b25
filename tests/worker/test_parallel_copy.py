"""Copies by several threads: every byte once, however they are divided, and no thread that goes on afterwards."""

from __future__ import annotations

import _thread
import ctypes
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from hpc_elastic.worker.parallel_copy import PART_BYTES, THREADS, Span, copy_spans, split_spans, usable_cpus


def addresses(*memories: bytearray) -> list[int]:
    return [ctypes.addressof(ctypes.c_char.from_buffer(memory)) for memory in memories]


def bytes_of(spans: list[Span]) -> int:
    return sum(length for _, _, length in spans)


@pytest.mark.parametrize("size", [1, 64, 1000])
def test_parts_have_every_byte_once_and_all_but_the_last_one_are_as_large(size: int) -> None:
    dice = random.Random(size)
    for _ in range(50):
        spans, place = list[Span](), 1000
        for _ in range(dice.randrange(6)):
            length = dice.choice([0, 1, 5, 64, dice.randrange(1000)])
            spans.append((place, place + 10**6, length))
            place += length
        parts = split_spans(spans, size)
        assert {bytes_of(part) for part in parts[:-1]} <= {size}
        assert all(0 < bytes_of(part) <= size for part in parts[-1:])
        assert [at for part in parts for to, _, length in part for at in range(to, to + length)] == [
            *range(1000, place)
        ]
        assert {source - target for part in parts for target, source, _ in part} <= {10**6}


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("cpus", [1, 2, 64])
def test_memory_is_the_same_after_a_copy(cpus: int, is_new: bool) -> None:
    dice = random.Random(cpus)
    source = bytearray(dice.randbytes(5 * PART_BYTES + 12345))
    target = bytearray(len(source))
    (start, end), (taken, to) = (PART_BYTES + 7, len(source) - 3), addresses(source, target)
    copy_spans([(to, taken, start), (to + start, taken + start, end - start)], is_new=is_new, cpus=cpus)
    assert target[:end] == source[:end]
    assert target[end:] == bytes(3)


@pytest.mark.parametrize(("quota", "cpus"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None)])
def test_no_more_processors_count_than_the_quota_of_the_cgroup_allows(
    quota: str, cpus: int | None, tmp_path: Path
) -> None:
    for path, text in (("proc/self/cgroup", "0::/job"), ("sys/fs/cgroup/job/cpu.max", quota)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    assert usable_cpus(root=str(tmp_path)) == (cpus or len(os.sched_getaffinity(0)))


def test_small_copies_and_lone_processors_start_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda work, _: started.append(work))
    source, target = bytearray(b"x" * 2 * PART_BYTES), bytearray(2 * PART_BYTES)
    taken, to = addresses(source, target)
    copy_spans([], cpus=8)
    copy_spans([(to, taken, PART_BYTES)], cpus=8)
    copy_spans([(to, taken, 2 * PART_BYTES)], cpus=1)
    assert started == []
    assert target == source


def test_where_there_can_be_no_more_threads_one_copies_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Callable[[], None], __: tuple[()]) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    source = bytearray(random.Random(1).randbytes(THREADS * PART_BYTES))
    target = bytearray(len(source))
    taken, to = addresses(source, target)
    copy_spans([(to, taken, len(source))], cpus=THREADS)
    assert target == source


def test_a_part_that_another_thread_cannot_copy_is_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a state with wrong bytes would be committed."""
    copy, other_copies, main = ctypes.memmove, threading.Event(), threading.main_thread()

    def copy_or_fail(to: int, source: int, size: int) -> int:
        if threading.current_thread() is not main:
            other_copies.set()
            raise MemoryError
        assert other_copies.wait(20)
        return int(copy(to, source, size))

    monkeypatch.setattr(ctypes, "memmove", copy_or_fail)
    source, target = bytearray(b"x" * 3 * PART_BYTES), bytearray(3 * PART_BYTES)
    taken, to = addresses(source, target)
    with pytest.raises(MemoryError):
        copy_spans([(to, taken, len(source))], cpus=2)


@pytest.mark.parametrize("raises_in_own_copy", [False, True])
def test_what_a_signals_handler_raises_comes_when_no_thread_copies_any_more(
    monkeypatch: pytest.MonkeyPatch, raises_in_own_copy: bool
) -> None:
    """A later save may write to the same memory."""
    copy, has_raised, copied = ctypes.memmove, threading.Event(), list[int]()
    main, other_copies, own_is_copied = threading.main_thread(), threading.Event(), threading.Event()

    def slow_copy(to: int, source: int, size: int) -> int:
        if threading.current_thread() is main:
            assert other_copies.wait(20)
            own_is_copied.set()
            return int(copy(to, source, size))
        other_copies.set()
        assert raises_in_own_copy or own_is_copied.wait(20)
        signal.pthread_kill(main.ident or 0, signal.SIGUSR1)
        assert has_raised.wait(20)
        copied.append(size)
        return int(copy(to, source, size))

    def handle(_: int, __: FrameType | None) -> None:
        has_raised.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(ctypes, "memmove", slow_copy)
    before = signal.signal(signal.SIGUSR1, handle)
    source = bytearray(random.Random(1).randbytes(2 * PART_BYTES))
    target = bytearray(len(source))
    taken, to = addresses(source, target)
    try:
        with pytest.raises(KeyboardInterrupt):
            copy_spans([(to, taken, len(source))], cpus=2)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert copied == [PART_BYTES]
    assert target[:PART_BYTES] == source[:PART_BYTES] or target[PART_BYTES:] == source[PART_BYTES:]
