"""The threads for what may block."""

from __future__ import annotations

import asyncio
import threading

import pytest

from hpc_elastic.agent.system.background import LAST, LONGEST_QUEUE, BackgroundThread


async def a_thread() -> BackgroundThread:
    return BackgroundThread("test", asyncio.get_running_loop())


def test_work_is_done_in_order_on_one_other_thread() -> None:
    async def main() -> tuple[list[int], set[int]]:
        thread, done, threads = await a_thread(), list[int](), set[int]()

        def work(number: int) -> None:
            done.append(number)
            threads.add(threading.get_ident())

        for number in range(100):
            thread.call(lambda number=number: work(number))  # type: ignore[misc]
        assert await thread.close(5)
        return done, threads

    done, threads = asyncio.run(main())
    assert done == list(range(100))
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_what_is_urgent_comes_before_what_is_not_and_the_end_last() -> None:
    async def main() -> list[str]:
        thread, go, done = await a_thread(), threading.Event(), list[str]()
        thread.best_effort(go.wait)
        thread.best_effort(lambda: done.append("event"))
        thread.call(lambda: done.append("record"))
        thread.call(lambda: done.append("claim"), is_urgent=True)
        closing = asyncio.ensure_future(thread.close(5))
        await asyncio.sleep(0)
        thread.best_effort(lambda: done.append("late"))
        go.set()
        assert await closing
        return done

    assert asyncio.run(main()) == ["claim", "event", "record", "late"]


def test_an_exception_reaches_who_asked_and_the_thread_works_on() -> None:
    async def main() -> int:
        thread = await a_thread()
        with pytest.raises(ZeroDivisionError):
            await thread.call(lambda: 1 // 0)
        thread.best_effort(lambda: 1 // 0)
        value = await thread.call(lambda: 7)
        await thread.close(5)
        return value

    assert asyncio.run(main()) == 7


def test_an_answer_that_nobody_waits_for_any_more_is_dropped() -> None:
    async def main() -> int:
        thread, go = await a_thread(), threading.Event()
        waiting = thread.call(go.wait)
        waiting.cancel()
        go.set()
        value = await thread.call(lambda: 7)
        await thread.close(5)
        return value

    assert asyncio.run(main()) == 7


def test_the_loop_runs_while_the_thread_blocks() -> None:
    async def main() -> bool:
        thread, go = await a_thread(), threading.Event()
        blocked = thread.call(go.wait)
        await asyncio.sleep(0)
        was_blocked = not blocked.done()
        go.set()
        await blocked
        await thread.close(5)
        return was_blocked

    assert asyncio.run(main())


def test_close_gives_up_on_a_thread_that_is_stuck() -> None:
    async def main() -> bool:
        thread, go = await a_thread(), threading.Event()
        thread.call(go.wait)
        in_time = await thread.close(0.01)
        go.set()
        return in_time

    assert asyncio.run(main()) is False


def test_spare_work_is_left_out_and_other_work_never_if_the_thread_is_far_behind() -> None:
    async def main() -> tuple[int, int]:
        thread, go, spared = await a_thread(), threading.Event(), list[int]()
        thread.call(go.wait)
        for number in range(LONGEST_QUEUE + 50):
            thread.best_effort(lambda number=number: spared.append(number))  # type: ignore[misc]
        value = thread.call(lambda: 7)
        go.set()
        result = await value
        await thread.close(5)
        return result, len(spared)

    value, spared = asyncio.run(main())
    assert value == 7
    assert LONGEST_QUEUE - 1 <= spared <= LONGEST_QUEUE + 1


def test_an_answer_after_the_loops_end_is_no_trouble() -> None:
    go = threading.Event()

    async def main() -> BackgroundThread:
        thread = await a_thread()
        thread.call(go.wait)
        return thread

    thread = asyncio.run(main())
    go.set()
    thread._queue.put((LAST, 1, None, None))
    thread._thread.join(5)
    assert not thread._thread.is_alive()
