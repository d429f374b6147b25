"""What an agent says of a process, a thread, a file or memory that the system refuses."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from hpc_elastic.agent.system.refusals import describe_refusal


def test_a_refused_file_is_told_with_the_limit() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert describe_refusal(OSError(errno.EMFILE, "x")) == (
        f"the system refuses this agent another open file: {os.strerror(errno.EMFILE)}; "
        f"limits here: {soft} open files (ulimit -n)"
    )


@pytest.mark.parametrize("error", [BlockingIOError(errno.EAGAIN, "x"), RuntimeError("can't start new thread")])
def test_a_refused_process_or_thread_is_told_with_what_may_limit_them(error: Exception) -> None:
    told = describe_refusal(error)
    assert told is not None
    assert told.startswith("the system refuses this agent another process or thread: ")
    assert told.endswith("what its cgroup allows (pids.max)")


def test_refused_memory_is_told() -> None:
    told = describe_refusal(MemoryError())
    assert told is not None
    assert told.startswith(f"the system refuses this agent more memory: {os.strerror(errno.ENOMEM)}")


def test_a_refusal_is_found_behind_the_errors_that_followed_it() -> None:
    first, second, third = OSError(errno.EMFILE, "x"), ValueError("closed"), OSError(errno.EAGAIN, "x")
    second.__context__, third.__cause__ = first, second
    told = describe_refusal(third)
    assert told is not None
    assert "another open file" in told


def test_errors_that_are_held_in_a_ring_are_looked_at_once() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    assert describe_refusal(first) is None


@pytest.mark.parametrize("error", [RuntimeError("no"), OSError(errno.ENOENT, "x"), OSError("x"), KeyError("x")])
def test_another_error_is_no_refusal(error: Exception) -> None:
    assert describe_refusal(error) is None
