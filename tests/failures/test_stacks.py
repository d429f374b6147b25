"""faulthandler's stacks are read, and equal ones are grouped over ranks."""

from __future__ import annotations

import faulthandler
import tempfile
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.failures.stacks import (
    NO_STACK,
    RankStack,
    Whereabouts,
    describe_groups,
    find_waiting,
    find_whereabouts,
    group_stacks,
    may_all_wait,
    parse_threads,
)

SITE = "/env/lib/python3.11/site-packages/torch"
BOOT = '  File "/env/lib/python3.11/site-packages/hpc_elastic/worker/bootstrap.py", line 179 in _run_script\n'
HEAD = "Current thread 0x00007f3810df7b80 (most recent call first):\n"
OTHER = f'Thread 0x00007f0000000000 (most recent call first):\n  File "{SITE}/utils/data/pin.py", line 5 in loop\n\n'


def stack(*frames: tuple[str, int, str], others: str = "") -> str:
    lines = "".join(f'  File "{path}", line {line} in {function}\n' for path, line, function in frames)
    return others + HEAD + lines + BOOT


WAITS = stack(
    (f"{SITE}/distributed/distributed_c10d.py", 3252, "all_reduce"),
    (f"{SITE}/distributed/c10d_logger.py", 83, "wrapper"),
    ("/home/ada/train.py", 88, "step"),
    ("/home/ada/train.py", 120, "<module>"),
)
READS = stack(("/home/ada/data.py", 31, "read"), ("/home/ada/train.py", 80, "step"))
LOCKED = stack(
    ("/usr/lib/python3.11/threading.py", 327, "wait"),
    ("/home/ada/data.py", 9, "get"),
    ("/home/ada/t.py", 1, "<module>"),
)
BACKWARD = stack(
    (f"{SITE}/autograd/graph.py", 823, "_engine_run_backward"),
    (f"{SITE}/autograd/__init__.py", 347, "backward"),
    (f"{SITE}/_tensor.py", 648, "backward"),
    ("/home/ada/train.py", 90, "step"),
)


@pytest.mark.parametrize(
    ("text", "said", "frame", "waits"),
    [
        (WAITS, "waits in all_reduce (train.py:88)", "train.py:88 in step", True),
        (READS, "is in read (data.py:31)", "data.py:31 in read", False),
        (LOCKED, "is in wait (data.py:9)", "data.py:9 in get", False),
        (BACKWARD, "waits in backward (train.py:90)", "train.py:90 in step", True),
        (
            stack(("/home/ada/data.py", 31, "read"), others=OTHER),
            "is in read (data.py:31)",
            "data.py:31 in read",
            False,
        ),
        (f"{NO_STACK}its process is stopped\n", "gave no stack: its process is stopped", "", False),
        ("", "gave no stack: what it wrote is no stack", "", False),
        (HEAD, "has an empty stack", "", False),
        (stack(("<frozen runpy>", 88, "_run_code")), "is in _run_code", "", False),
    ],
)
def test_says_where_a_rank_is(text: str, said: str, frame: str, waits: bool) -> None:
    where = find_whereabouts(text)
    assert (where.describe(), where.frame, where.is_waiting) == (said, frame, waits)


def test_a_callback_of_the_user_inside_a_collective_is_no_wait() -> None:
    text = stack(("/home/ada/hook.py", 3, "hook"), (f"{SITE}/distributed/x.py", 1, "run"), ("/home/ada/t.py", 1, "f"))
    assert not find_whereabouts(text).is_waiting


def test_equal_stacks_are_grouped_and_said_in_one_line() -> None:
    stacks = [RankStack(rank=rank, node=f"node{rank // 8}", text=WAITS) for rank in range(512) if not 136 <= rank < 141]
    stacks += [RankStack(rank=rank, node="node17", text=READS) for rank in range(136, 141)]
    groups = group_stacks(stacks)
    assert [len(group.ranks) for group in groups] == [5, 507]
    assert describe_groups(groups) == (
        "507 ranks wait in all_reduce (train.py:88); 5 ranks on node17 are in read (data.py:31)"
    )


def test_of_ranks_that_all_wait_the_few_come_first() -> None:
    barrier = WAITS.replace("all_reduce", "barrier").replace("line 88", "line 97")
    texts = {0: WAITS, 1: WAITS, 2: WAITS, 3: barrier}
    groups = group_stacks(RankStack(rank=rank, node="n", text=text) for rank, text in texts.items())
    assert [group.ranks for group in groups] == [(3,), (0, 1, 2)]


def test_many_nodes_are_counted_and_few_are_named() -> None:
    stacks = [RankStack(rank=rank, node=f"n{rank}", text=READS if rank < 2 else WAITS) for rank in range(10)]
    assert describe_groups(group_stacks(stacks)) == (
        "8 ranks on 8 nodes wait in all_reduce (train.py:88); 2 ranks on n0 and n1 are in read (data.py:31)"
    )


def test_reads_what_this_python_writes() -> None:
    is_there, may_end = threading.Event(), threading.Event()

    def wait_here() -> None:
        is_there.set()
        may_end.wait()

    thread = threading.Thread(target=wait_here)
    thread.start()
    is_there.wait()
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        threads = parse_threads(file.read())
    may_end.set()
    thread.join()
    assert any(frame.function == "wait_here" for found in threads for frame in found)
    assert threads[-1][0].function == "test_reads_what_this_python_writes"  # the main thread is the last


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    groups = group_stacks([RankStack(rank=0, node="n", text=text), RankStack(rank=1, node="n", text=HEAD + text)])
    assert sum(len(group.ranks) for group in groups) == 2
    assert describe_groups(groups)


REDUCE = Whereabouts(function="all_reduce", place="train.py:88", is_waiting=True)
ITEM = Whereabouts(function="step", place="train.py:90")
OPEN = Whereabouts(function="read", place="data.py:31")
STOPPED = Whereabouts(trouble="its process is stopped")


@pytest.mark.parametrize(
    ("where", "waiting", "may_wait"),
    [
        ([REDUCE, REDUCE], {0, 1}, True),
        ([REDUCE, OPEN], {0}, False),
        ([OPEN], set(), False),
        ([OPEN, OPEN], set(), True),
        ([ITEM, ITEM, ITEM, OPEN], {0, 1, 2}, False),
        ([ITEM, OPEN], set(), False),
        ([REDUCE, OPEN, OPEN, OPEN], {0}, False),
        ([ITEM, ITEM, STOPPED], {0, 1}, False),
        ([STOPPED, STOPPED, STOPPED, OPEN], set(), False),
        ([STOPPED, STOPPED], set(), False),
    ],
)
def test_who_waits_is_told_from_who_stopped(where: list[Whereabouts], waiting: set[int], may_wait: bool) -> None:
    found = dict(enumerate(where))
    assert set(find_waiting(found, len(found))) == (waiting if len(found) > 1 else set())
    assert set(find_waiting(found, 8)) == waiting
    assert may_all_wait(found) is may_wait
