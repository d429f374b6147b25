"""What the signals that an agent gets mean."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from hpc_elastic.agent.system.signals import ARRIVES_WITHIN_S, HANDLED, SAME_WITHIN_S, AgentSignals


def handle(
    told: list[object],
    *,
    is_local: bool = False,
    has_got: Callable[[signal.Signals], bool] = lambda _: False,
    outside: int | None = None,
    same_within_s: float = SAME_WITHIN_S,
) -> AgentSignals:
    """The handlers of the running loop, which tell what they do."""
    return AgentSignals(
        asyncio.get_running_loop(),
        is_local=is_local,
        has_got=has_got,
        forget=lambda number: told.append(f"forget {number.name}"),
        pass_on=lambda number: told.append(f"pass on {number.name}"),
        stop=lambda name, have_workers: told.append((name, have_workers)),
        escalate=lambda: told.append("escalate"),
        say=told.append,
        outside=outside,
        same_within_s=same_within_s,
    )


async def play_now(*numbers: signal.Signals) -> None:
    """Have this process get signals, one after the other."""
    for number in numbers:
        os.kill(os.getpid(), number)
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)


def run(main: Callable[[], object]) -> None:
    """Run a coroutine function, and give the process its own handlers back."""
    previous = {number: signal.getsignal(number) for number in HANDLED}
    try:
        asyncio.run(main())  # type: ignore[arg-type]
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def play(*numbers: signal.Signals, is_local: bool = False, same_within_s: float = SAME_WITHIN_S) -> list[object]:
    """What is told when this process gets these signals, one after the other."""
    told: list[object] = []

    async def main() -> None:
        handle(told, is_local=is_local, same_within_s=same_within_s)
        await play_now(*numbers)

    run(main)
    return told


def is_term_here(*answers: bool, is_local: bool = False) -> bool:
    """What the agent finds if its guard answers so, and with the last answer from then on."""
    left, found = list(answers), []

    async def main() -> None:
        signals = handle([], is_local=is_local, has_got=lambda _: left.pop(0) if len(left) > 1 else left[0])
        found.append(await signals.is_term_here())

    run(main)
    return found[0]


def from_outside(*lines: bytes, until: int, same_within_s: float = SAME_WITHIN_S) -> list[object]:
    """What is told, `until` so much is, of signals that the shell outside of an image got."""
    told: list[object] = []
    reader, writer = os.pipe()
    os.set_blocking(reader, False)

    async def main() -> None:
        handle(told, outside=reader, same_within_s=same_within_s)
        for line in lines:
            os.write(writer, line)
            await asyncio.sleep(0.001)
        while len(told) < until:
            await asyncio.sleep(0.001)
        os.close(writer)  # the shell ends, and nobody reads on

        def is_open() -> bool:
            try:
                os.fstat(reader)
            except OSError:
                return False
            return True

        while is_open():
            await asyncio.sleep(0.001)

    run(main)
    return told


def test_a_term_that_the_shell_outside_of_an_image_got_is_the_agents() -> None:
    assert from_outside(b"TERM\n", until=1) == [("SIGTERM", True)]


@pytest.mark.long
def test_a_usr1_that_the_shell_outside_of_an_image_got_is_the_agents() -> None:
    assert from_outside(b"CONT\nUSR1\n", until=1) == ["pass on SIGUSR1"]


def test_the_workers_have_a_term_that_their_guard_has_got_a_moment_later() -> None:
    assert is_term_here(False, False, True)


@pytest.mark.long
def test_the_workers_have_no_term_if_their_guard_gets_none() -> None:
    assert not is_term_here(False)


def test_a_local_agent_sends_its_workers_a_term_at_once() -> None:
    assert not is_term_here(True, is_local=True)


def test_slurms_term_may_have_reached_the_workers_too() -> None:
    assert play(signal.SIGTERM) == [("SIGTERM", True)]


def test_a_local_term_and_a_ctrl_c_are_the_agents_alone() -> None:
    assert play(signal.SIGTERM, is_local=True) == [("SIGTERM", False)]
    assert play(signal.SIGINT) == [("SIGINT", False)]


def test_one_request_that_comes_twice_is_one() -> None:
    assert play(signal.SIGINT, signal.SIGTERM, is_local=True) == [("SIGINT", False)]


def test_who_asks_again_later_means_now() -> None:
    assert play(signal.SIGINT, signal.SIGINT, same_within_s=0.0) == [("SIGINT", False), "escalate"]
    assert play(signal.SIGTERM, signal.SIGTERM, same_within_s=0.0, is_local=True)[1:] == ["escalate"]


def term_twice(*second: signal.Signals) -> list[object]:
    """What is told after a first TERM of Slurm and, later, these."""
    told: list[object] = []
    same_within_s = 0.1

    async def main() -> None:
        handle(told, same_within_s=same_within_s)
        await play_now(signal.SIGCONT, signal.SIGTERM)
        await asyncio.sleep(2 * same_within_s)
        await play_now(*second)
        await asyncio.sleep(4 * same_within_s)

    run(main)
    assert told.pop(0) == ("SIGTERM", True)
    return told


@pytest.mark.long
def test_a_second_scancel_with_term_means_now() -> None:
    assert term_twice(signal.SIGTERM) == ["escalate"]


@pytest.mark.long
@pytest.mark.parametrize(
    "signals",
    [
        (signal.SIGTERM, signal.SIGCONT, signal.SIGTERM),  # as 22.05 to 26.05 end a job whose GraceTime is over
        (signal.SIGCONT, signal.SIGTERM),
        (signal.SIGTERM, signal.SIGCONT),  # as the shell outside of an image tells of both
    ],
)
def test_the_end_of_a_preemptions_grace_hurries_nobody(signals: tuple[signal.Signals, ...]) -> None:
    assert term_twice(*signals) == []


def test_a_hangup_and_a_quit_stop_the_run_as_with_torchrun() -> None:
    assert play(signal.SIGHUP) == [("SIGHUP", False)]
    assert play(signal.SIGQUIT, is_local=True) == [("SIGQUIT", False)]


def test_a_hangup_that_is_ignored_as_below_nohup_stays_ignored() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert play(signal.SIGHUP) == []
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_a_local_agent_passes_its_workers_signals_on_at_once() -> None:
    assert play(signal.SIGUSR1, signal.SIGUSR2, is_local=True) == ["pass on SIGUSR1", "pass on SIGUSR2"]


def looked_after(*numbers: signal.Signals, got: set[signal.Signals], until: int) -> list[object]:
    """What is told, `until` so much is, if the guard got these of the signals, a moment after the agent."""
    told: list[object] = []
    answers = {number: iter([False, False]) for number in got}

    async def main() -> None:
        handle(told, has_got=lambda number: number in got and next(answers[number], True))
        await play_now(*numbers)
        while len(told) < until:
            await asyncio.sleep(0.001)

    run(main)
    return told


@pytest.mark.long
def test_what_the_workers_have_got_themselves_is_not_passed_on() -> None:
    expected = ["forget SIGUSR1", "got SIGUSR1, as the workers did"]
    assert looked_after(signal.SIGUSR1, got={signal.SIGUSR1}, until=2) == expected


@pytest.mark.long
def test_what_the_shell_outside_of_an_image_tells_of_a_moment_later_is_the_same_signal() -> None:
    told: list[object] = []
    got = {signal.SIGUSR1}

    async def main() -> None:
        reader, writer = os.pipe()
        AgentSignals(
            asyncio.get_running_loop(),
            is_local=False,
            has_got=got.__contains__,
            forget=got.discard,
            pass_on=told.append,
            stop=lambda *_: None,
            escalate=lambda: None,
            say=told.append,
            outside=reader,
        )
        await play_now(signal.SIGUSR1)
        os.write(writer, b"USR1\n")
        while not told:
            await asyncio.sleep(0.001)
        os.close(writer)
        await asyncio.sleep(1.2 * ARRIVES_WITHIN_S)  # by then a second one would have been passed on

    run(main)
    assert told == ["got SIGUSR1, as the workers did"]


@pytest.mark.long
def test_what_the_agent_alone_got_is_passed_on_once_though_it_came_twice_at_once() -> None:
    told = looked_after(signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1, got={signal.SIGUSR2}, until=3)
    assert sorted(map(str, told)) == ["forget SIGUSR2", "got SIGUSR2, as the workers did", "pass on SIGUSR1"]


def test_what_comes_again_later_is_passed_on_again() -> None:
    told: list[object] = []

    async def main() -> None:
        handle(told, is_local=True)
        await play_now(signal.SIGUSR1)
        await play_now(signal.SIGUSR1)

    run(main)
    assert told == ["pass on SIGUSR1"] * 2
