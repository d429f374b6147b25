"""What the signals that an agent gets mean."""

from __future__ import annotations

import asyncio
import os
import signal

from hpc_elastic.agent.system.signals import FOR_WORKERS, SAME_WITHIN_S, STOPS, AgentSignals


def play(*numbers: signal.Signals, is_local: bool = False, same_within_s: float = SAME_WITHIN_S) -> list[object]:
    """What is told when this process gets these signals, one after the other."""
    told: list[object] = []
    previous = signal.getsignal(signal.SIGHUP)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        AgentSignals(
            loop,
            is_local=is_local,
            has_term=lambda: False,
            stop=lambda name, have_workers: told.append((name, have_workers)),
            escalate=lambda: told.append("escalate"),
            say=told.append,
            same_within_s=same_within_s,
        )
        for number in numbers:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
        for number in (*STOPS, *FOR_WORKERS):
            loop.remove_signal_handler(number)

    asyncio.run(main())
    signal.signal(signal.SIGHUP, previous)
    return told


def is_term_here(*answers: bool, is_local: bool = False) -> bool:
    """What the agent finds if its guard answers so, and with the last answer from then on."""
    left = list(answers)

    async def main() -> bool:
        signals = AgentSignals(
            asyncio.get_running_loop(),
            is_local=is_local,
            has_term=lambda: left.pop(0) if len(left) > 1 else left[0],
            stop=lambda *_: None,
            escalate=lambda: None,
            say=lambda _: None,
        )
        return await signals.is_term_here()

    return asyncio.run(main())


def test_a_term_that_the_shell_outside_of_an_image_got_is_the_agents() -> None:
    told: list[object] = []
    reader, writer = os.pipe()
    os.set_blocking(reader, False)

    async def main() -> None:
        AgentSignals(
            asyncio.get_running_loop(),
            is_local=False,
            has_term=lambda: False,
            stop=lambda name, have_workers: told.append((name, have_workers)),
            escalate=lambda: told.append("escalate"),
            say=told.append,
            terms=reader,
        )
        os.write(writer, b"\n")
        while not told:
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

    asyncio.run(main())
    assert told == [("SIGTERM", True)]


def test_the_workers_have_a_term_that_their_guard_has_got_a_moment_later() -> None:
    assert is_term_here(False, False, True)


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


def test_what_is_for_the_workers_does_not_end_the_agent() -> None:
    assert play(signal.SIGUSR1, signal.SIGUSR2) == [
        f"got {name}, which is for the workers" for name in ("SIGUSR1", "SIGUSR2")
    ]
