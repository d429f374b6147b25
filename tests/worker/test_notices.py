"""`notice_received`, `on_notice` and `saving` in workers of every kind, whose agent is played here."""

from __future__ import annotations

import signal
import subprocess
import sys
import timeit
from collections.abc import Callable, Iterator
from threading import Thread

import pytest

from hpc_elastic.agent.workers.heartbeats import Heartbeats
from hpc_elastic.heartbeat_memory import POLLS, SLOT_NUMBERS, map_memory
from hpc_elastic.membership.notices import NoticeCounts, NoticeGiven
from hpc_elastic.worker import heartbeat_writer, notices
from tests.worker.conftest import Runner
from tests.worker.test_heartbeat_writer import PACKAGE, Node, _own_python

GIVEN = NoticeGiven(reason="time_limit", seconds_left=90.0, by="the clock")
FIRST = NoticeCounts(polls=1, beats=1)


@pytest.fixture
def node(runner: Runner) -> Iterator[Node]:
    made = Node(runner)
    yield made
    made.heartbeats.close()


@pytest.fixture
def rank() -> Iterator[Heartbeats]:
    """This process as the only rank of a node."""
    heartbeats = Heartbeats()
    heartbeat_writer.begin(heartbeats.begin([0])[0].memory, 0)
    yield heartbeats
    heartbeat_writer._forget()
    heartbeat_writer.at_notice = None
    notices._forget()
    heartbeats.close()


def give(heartbeats: Heartbeats, first: NoticeCounts = FIRST, given: NoticeGiven = GIVEN) -> None:
    heartbeats.hold_for_notice(0, given)
    heartbeats.name_notice(0, first)


class Waiting(Thread):
    """A call in a thread, which has begun when the constructor returns."""

    def __init__(self, call: Callable[[], object], has_begun: Callable[[], bool]) -> None:
        super().__init__()
        self._call = call
        self.answer: object = "none yet"
        self.start()
        while not has_begun():
            pass

    def run(self) -> None:
        self.answer = self._call()


def test_there_is_no_notice_before_one_is_given(rank: Heartbeats) -> None:
    assert [notices.notice_received() for _ in range(3)] == [None] * 3
    assert rank.count_polls(0).polls == 3


def test_a_notice_says_why_and_counts_the_seconds_down(rank: Heartbeats) -> None:
    give(rank)
    notice = notices.notice_received()
    assert notice
    assert notice.reason == "time_limit"
    first = notice.seconds_left
    assert first is not None
    assert 80 < first <= 90
    assert notice.seconds_left < first  # type: ignore[operator]
    give(rank, given=NoticeGiven(reason="operator", seconds_left=0.0, by="ada"))
    later = notices.notice_received()
    assert later is not None
    assert (later.reason, later.seconds_left) == ("operator", 0.0)


def test_the_seconds_are_none_if_nobody_knows_them(rank: Heartbeats) -> None:
    give(rank, given=NoticeGiven(reason="operator", seconds_left=None, by="ada"))
    notice = notices.notice_received()
    assert notice is not None
    assert notice.seconds_left is None


def test_hears_of_it_from_the_named_call_on(rank: Heartbeats) -> None:
    give(rank, NoticeCounts(polls=3, beats=1))
    assert [bool(notices.notice_received()) for _ in range(5)] == [False, False, True, True, True]


@pytest.mark.parametrize(("named", "hears"), [(1, True), (2, False)])
def test_a_call_waits_until_the_agents_agree(rank: Heartbeats, named: int, hears: bool) -> None:
    rank.hold_for_notice(0, GIVEN)
    waiting = Waiting(notices.notice_received, lambda: rank.count_polls(0).polls == 1)
    waiting.join(0.05)
    assert waiting.is_alive()
    rank.name_notice(0, NoticeCounts(polls=named, beats=1))
    waiting.join(10)
    assert bool(waiting.answer) is hears


def test_no_call_waits_that_nobody_asked_for_a_notice_in(rank: Heartbeats) -> None:
    """A heartbeat of a script without `on_notice` is not held up."""
    rank.hold_for_notice(0, GIVEN)
    heartbeat_writer.heartbeat(1)
    assert rank.read()[0].count == 1


def test_functions_are_called_once_at_the_named_heartbeat_in_their_order(rank: Heartbeats) -> None:
    called: list[tuple[int, str, str]] = []

    def note(name: str) -> Callable[[notices.Notice], None]:
        return lambda notice: called.append((rank.read()[0].count, name, notice.reason))

    assert notices.on_notice(first := note("first")) is first
    notices.on_notice(note("second"))
    give(rank, NoticeCounts(polls=1, beats=3))
    for step in range(6):
        heartbeat_writer.heartbeat(step)
    assert called == [(3, "first", "time_limit"), (3, "second", "time_limit")]


def test_a_function_that_beats_is_not_called_again_by_that(rank: Heartbeats) -> None:
    called = []
    for name in "ab":

        @notices.on_notice
        def beats(notice: notices.Notice, name: str = name) -> None:
            called.append(name)
            heartbeat_writer.heartbeat()
            called.append(name.upper())

    give(rank)
    heartbeat_writer.heartbeat()
    assert called == ["a", "A", "b", "B"]


def test_a_rank_saves_while_a_function_is_called_and_its_exception_is_the_ranks(rank: Heartbeats) -> None:
    seen = []

    @notices.on_notice
    def fails(notice: notices.Notice) -> None:
        seen.append(rank.saving())
        raise RuntimeError("the disk is full")

    give(rank)
    with pytest.raises(RuntimeError, match="the disk is full"):
        heartbeat_writer.heartbeat()
    heartbeat_writer.heartbeat()
    assert seen == [{0}]
    assert rank.saving() == frozenset()


def test_a_function_that_is_given_after_the_notice_is_called_at_the_next_heartbeat(rank: Heartbeats) -> None:
    give(rank)
    heartbeat_writer.heartbeat()
    called: list[notices.Notice] = []
    notices.on_notice(called.append)
    assert not called
    heartbeat_writer.heartbeat()
    assert len(called) == 1


def test_a_heartbeat_with_a_function_waits_until_the_agents_agree(rank: Heartbeats) -> None:
    called: list[notices.Notice] = []
    notices.on_notice(called.append)
    rank.hold_for_notice(0, GIVEN)
    waiting = Waiting(heartbeat_writer.heartbeat, lambda: rank.count_polls(0).beats == 1)
    waiting.join(0.05)
    assert waiting.is_alive()
    rank.name_notice(0, NoticeCounts(polls=1, beats=2))
    waiting.join(10)
    assert not called


def test_saving_is_nested_and_ends_in_any_thread(rank: Heartbeats) -> None:
    from hpc_elastic.worker import saving

    assert not rank.saving()
    with saving():
        with saving():
            assert rank.saving() == {0}
        assert rank.saving() == {0}
        other = saving()
        other.__enter__()
    assert rank.saving() == {0}
    thread = Thread(target=other.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert not rank.saving()


def test_saving_in_many_threads_is_counted_right(rank: Heartbeats) -> None:
    from hpc_elastic.worker import saving

    def save_often() -> None:
        for _ in range(2000):
            with saving():
                pass

    threads = [Thread(target=save_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not rank.saving()


def test_an_exception_ends_the_saving(rank: Heartbeats) -> None:
    from hpc_elastic.worker import saving

    with pytest.raises(ValueError, match="no"), saving():
        raise ValueError("no")
    assert not rank.saving()


# In processes of their own.


@pytest.mark.long
def test_a_script_hears_of_a_notice_where_nothing_of_ours_is_installed(node: Node) -> None:
    give(node.heartbeats)
    source = "from hpc_elastic.worker import notice_received\nprint(notice_received().reason)"
    outcome = node.run("--script", str(node.runner.write("s.py", source)), python=(sys.executable, "-I", "-S"))
    assert (outcome.stdout, outcome.stderr) == ("time_limit\n", "")


@pytest.mark.long
def test_a_command_that_has_the_package_hears_of_a_notice(node: Node) -> None:
    give(node.heartbeats)
    kind, program, *arguments = _own_python(
        "from hpc_elastic.worker import notice_received; print(notice_received().reason)"
    )
    assert node.run(kind, program, *arguments).stdout == "time_limit\n"


@pytest.mark.parametrize("is_waiting", [True, False], ids=["waiting", "named"])
def test_a_forked_child_hears_of_nothing_and_never_waits(node: Node, is_waiting: bool) -> None:
    node.heartbeats.hold_for_notice(0, GIVEN)
    if not is_waiting:
        node.heartbeats.name_notice(0, FIRST)
    source = """
import os
from hpc_elastic.worker import heartbeat, notice_received, on_notice, saving
on_notice(lambda notice: os._exit(3))
block = saving()
block.__enter__()
pid = os.fork()
if not pid:
    heartbeat()
    block.__exit__(None, None, None)
    os._exit(2 if notice_received() else 0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert node.run_script(source).stdout == "0\n"
    assert node.heartbeats.saving() == {3}
    assert node.heartbeats.count_polls(0) == NoticeCounts(polls=0, beats=0)


def test_outside_of_a_run_there_is_no_notice_and_torch_is_not_imported() -> None:
    source = """
import sys
from hpc_elastic.worker import Notice, heartbeat, notice_received, on_notice, saving
on_notice(print)
with saving(): heartbeat(1)
print(notice_received(), "torch" in sys.modules)
"""
    environment = {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "None False\n", done.stderr


def test_a_poll_without_a_notice_costs_less_than_2_microseconds(rank: Heartbeats) -> None:
    fastest = min(timeit.repeat(notices.notice_received, number=2000, repeat=50)) / 2000
    assert rank.count_polls(0).polls == 100_000
    assert fastest < 2e-6


def test_a_heartbeat_after_a_notice_costs_less_than_2_microseconds(rank: Heartbeats) -> None:
    notices.on_notice(lambda notice: None)
    give(rank)
    fastest = min(timeit.repeat(heartbeat_writer.heartbeat, number=2000, repeat=50)) / 2000
    assert fastest < 2e-6


def test_a_poll_counts_itself_before_it_looks(rank: Heartbeats) -> None:
    """The agent reads the count after it has written WAIT: a call that saw nothing has to be in it."""
    memory = map_memory(rank.begin([0])[0].memory)
    seen: list[int] = []

    class Slot:
        def __getitem__(self, number: int) -> int:
            if number != POLLS:
                seen.append(memory[POLLS])
            return memory[number]

        def __setitem__(self, number: int, value: int) -> None:
            memory[number] = value

    assert SLOT_NUMBERS == 16
    heartbeat_writer._slot = Slot()  # type: ignore[assignment]
    notices.notice_received()
    assert seen == [1]


@pytest.mark.long
def test_what_a_rank_forks_ignores_the_signal_of_a_notice(runner: Runner) -> None:
    node = Node(runner)
    node.heartbeats = Heartbeats(notice_signal=signal.SIGUSR2)
    node.files = node.heartbeats.begin((2, 3))[1]
    source = """
import os, signal
signal.signal(signal.SIGUSR2, lambda *_: print("heard", flush=True))
pid = os.fork()
if not pid:
    os.kill(os.getpid(), signal.SIGUSR2)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
os.kill(os.getpid(), signal.SIGUSR2)
"""
    assert node.run_script(source).stdout == "0\nheard\n"
    node.heartbeats.close()
