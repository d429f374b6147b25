"""The head's frame: disk, clock and connections around the machine."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from hpc_elastic.agent.drivers.coordinator import COORDINATOR_TIMES, Coordinator, CoordinatorTimes
from hpc_elastic.agent.drivers.head_outputs import HeadOutputs
from hpc_elastic.agent.drivers.head_watch import WatchTimes
from hpc_elastic.agent.net.transport import Connection
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.telemetry import Telemetry
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.errors import ExitCode, MissingNode, RendezvousCause
from hpc_elastic.membership.gathering import Diagnosis
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.messages import (
    Assign,
    Broken,
    Dropped,
    End,
    Failed,
    Finished,
    Message,
    Refused,
    Stop,
    Stopped,
    Terminated,
    Welcome,
)
from hpc_elastic.membership.notices import NoticeGiven
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.store import append_line, claim
from hpc_elastic.scheduler.allocation import Allocation
from tests.agent.answers import Answers
from tests.membership.script import HeadScript, a_failure, a_join
from tests.plans import make_run_plan

Diagnose = Callable[[Sequence[str]], Sequence[Diagnosis]]


class Scene:
    """A head of one node, with its own member played by the test."""

    def __init__(
        self,
        root: Path,
        nodes: int = 1,
        diagnose: Diagnose = lambda _: (),
        restart: str = "restart_all",
        progress_file: str | None = None,
        answers: Answers | None = None,
        times: CoordinatorTimes = COORDINATOR_TIMES,
        heard: NoticeGiven | None = None,
    ) -> None:
        place = Allocation(job_id="42", restart_count=0, array_task=None, node_id=0, nodes=("node0",), is_local=False)
        self.layout = RunLayout(root)
        self.heard: asyncio.Queue[Message] = asyncio.Queue()
        self.superseded: list[str] = []
        self.disk = BackgroundThread("disk", asyncio.get_running_loop())
        plan = make_run_plan(root, progress_file=progress_file)
        journal = Journal(self.layout, plan, place, questions=answers or Answers())
        telemetry = Telemetry(plan, place, journal=journal, disk=self.disk, say=print)
        head = self.head(nodes, restart)
        self.gathering = head.gathering
        self.coordinator = Coordinator(
            head,
            node="node0",
            journal=journal,
            disk=self.disk,
            telemetry=telemetry,
            outputs=HeadOutputs(to_own_member=self.heard.put_nowait, superseded=self.superseded.append),
            diagnose=diagnose,
            times=times,
            heard=lambda: heard,
        )

    @staticmethod
    def head(nodes: int, restart: str) -> Head:
        head = HeadScript(nodes, restarts={"default": restart}).head
        head._members.leases.next_tick = head.gathering._deadline = head.gathering._say_at = float("inf")
        return head


class OtherSide:
    """As much of a connection as a head needs."""

    is_closed_by_peer = True

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def close(self) -> None:
        self.sent.append(Refused(reason="closed", exit_code=0))

    def abort(self, why: str) -> None:
        self.sent.append(Refused(reason=why, exit_code=0))


def play(
    root: Path,
    scene: Callable[[Scene], Awaitable[None]],
    *,
    nodes: int = 1,
    diagnose: Diagnose = lambda _: (),
    restart: str = "restart_all",
    progress_file: str | None = None,
    answers: Answers | None = None,
    times: CoordinatorTimes = COORDINATOR_TIMES,
    heard: NoticeGiven | None = None,
) -> None:
    async def main() -> None:
        troubles: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
        made = Scene(root, nodes, diagnose, restart, progress_file, answers, times, heard)
        await asyncio.wait_for(scene(made), 30)
        await made.coordinator.close()
        await made.disk.close(5)
        assert troubles == []

    asyncio.run(main())


async def until(scene: Scene, kind: type[Message]) -> Message:
    while not isinstance(message := await scene.heard.get(), kind):
        pass
    return message


def test_a_run_of_one_node_from_its_join_to_its_result(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        assert await made.heard.get() == Welcome(allocation=1, head="node0")
        assert isinstance(await made.heard.get(), Assign)
        assert Path(made.layout.claim(1)).exists()
        made.coordinator.received_from_own(Finished(attempt=1))
        assert await made.heard.get() == End(exit_code=0, cause="every rank exited 0")
        made.coordinator.own_member_left("left")
        await made.coordinator.over.wait()
        assert Path(made.layout.exit_code).read_text() == "0\n"

    play(tmp_path, scene)


def test_a_node_that_joins_with_a_clock_an_hour_off_is_reported_and_joins(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        other = OtherSide()
        made.coordinator.received_from_own(a_join(0))
        hour_ago = time.time_ns() - 3600 * 10**9
        made.coordinator.received(cast(Connection, other), replace(a_join(1), clock_ns=hour_ago))
        assert isinstance(await until(made, Assign), Assign)
        assert Welcome(allocation=1, head="node0") in other.sent
        await made.disk.call(lambda: None)  # the events before it are written
        (event,) = [
            json.loads(line)
            for line in Path(made.layout.events("node0")).read_text().splitlines()
            if "node.clock_differs" in line
        ]
        assert (event["metadata"]["node"], round(event["metadata"]["offset_s"])) == ("node1", -3600)

    play(tmp_path, scene, nodes=2)


def test_a_member_of_its_own_that_joins_again_while_the_run_ends_is_sent_away(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        await until(made, Assign)
        made.coordinator.received_from_own(Finished(attempt=1))
        await until(made, End)
        made.coordinator.own_member_left("no answer for 6 s")
        made.coordinator.received_from_own(a_join(0))
        refused = await until(made, Refused)
        assert refused == Refused(reason="the run is over", exit_code=0)

    play(tmp_path, scene)


def test_what_a_store_host_breaks_is_judged_by_the_progress_that_there_was(tmp_path: Path) -> None:
    """Else a run whose store host dies now and then would end for want of progress."""

    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        await until(made, Assign)
        (tmp_path / "checkpoint").write_text("one epoch")
        made.coordinator.received_from_own(Broken(attempt=1, reason="the store host ended"))
        await until(made, Stop)
        made.coordinator.received_from_own(Stopped(attempt=1, failures=(), unkillable=(), store_port=25001))
        await until(made, Assign)
        before, after = (json.loads(Path(made.layout.claim(attempt)).read_text())["progress"] for attempt in (1, 2))
        assert before != after

    play(tmp_path, scene, progress_file=str(tmp_path / "checkpoint"))


def test_a_head_that_finds_a_later_attempt_ends_nothing_and_says_so_to_its_agent(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        await until(made, Assign)
        record = json.loads(Path(made.layout.claim(1)).read_text())
        assert claim(made.layout.claim(2), {**record, "attempt": 2, "head": "node1"})
        await made.coordinator.over.wait()
        assert made.superseded == ["node1 has opened attempt 2"]
        made.coordinator.received_from_own(Finished(attempt=1))
        await made.disk.call(lambda: None)
        assert not Path(made.layout.result).exists()

    play(tmp_path, scene, times=CoordinatorTimes(watch=WatchTimes(look_every_s=0.001)))


def test_a_head_that_ends_the_run_while_another_one_goes_on_writes_no_result(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        await until(made, Assign)
        record = json.loads(Path(made.layout.claim(1)).read_text())
        assert claim(made.layout.claim(2), {**record, "attempt": 2, "head": "node1"})
        made.coordinator.received_from_own(Finished(attempt=1))
        await made.coordinator.over.wait()
        assert made.superseded == ["node1 has opened attempt 2"]
        assert not Path(made.layout.result).exists()

    play(tmp_path, scene, times=CoordinatorTimes(watch=WatchTimes(look_every_s=600.0)))


def test_a_head_that_steps_down_does_nothing_that_is_due_before(tmp_path: Path) -> None:
    """It was paused until its round was over, and is to follow another head by now."""

    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        made.gathering._deadline, made.gathering._min_nodes = 0.0, 1
        made.coordinator.step_down("another agent is head")
        assert made.superseded == ["another agent is head"]
        await asyncio.sleep(0)
        await made.disk.call(lambda: None)
        assert not Path(made.layout.claim(1)).exists()

    play(tmp_path, scene, nodes=2)


def test_a_head_that_wakes_up_in_a_later_start_of_the_job_does_nothing_that_is_due_before(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        await asyncio.sleep(0)
        made.gathering._deadline, made.gathering._min_nodes = 0.0, 1
        made.coordinator._timer = None  # as one that has run out while it was paused
        append_line(made.layout.requests, {"kind": "start", "by": "node1", "time": "now", "allocation": 2})
        await made.coordinator.over.wait()
        await made.disk.call(lambda: None)
        assert made.superseded == ["the job has started again: allocation 2"]
        assert not Path(made.layout.claim(1)).exists()

    play(tmp_path, scene, nodes=2, times=CoordinatorTimes(watch=WatchTimes(look_every_s=0.001)))


def test_nobody_who_could_end_the_job_is_worth_a_word_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(replace(a_join(0), is_launch_host=True))
        made.coordinator.received(cast("Connection", OtherSide()), a_join(1))
        await until(made, Assign)
        await made.disk.call(lambda: None)

    play(tmp_path, scene, nodes=2)
    assert capsys.readouterr().out.count("no agent can reach Slurm's controller") == 1


def test_the_end_of_a_node_does_not_overtake_its_failure_when_the_disk_is_slow(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        await until(made, Assign)
        is_fast = threading.Event()
        made.disk.best_effort(is_fast.wait)
        made.coordinator.received_from_own(Failed(attempt=1, failure=a_failure(0)))
        made.coordinator.received_from_own(Finished(attempt=1))
        is_fast.set()
        end = await until(made, End)
        assert end == End(exit_code=0, cause="every rank exited 0, but for 1 rank that failed, which is ignored")

    play(tmp_path, scene, restart="ignore", progress_file="*.pt")


def test_a_run_directory_that_cannot_be_written_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "attempts").write_text("a file where a folder should be")

    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        end = await until(made, End)
        assert isinstance(end, End)
        assert end.exit_code == 5

    play(tmp_path, scene, times=CoordinatorTimes(retries_for_s=0.3))


def test_requests_are_read_again_after_the_file_system_was_in_trouble(tmp_path: Path) -> None:
    requests = Path(RunLayout(tmp_path).requests)
    requests.mkdir()  # reading it fails, as it does on a stale file handle

    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        await until(made, Assign)
        for _ in range(5):
            await made.disk.call(lambda: None)
            await asyncio.sleep(0.002)
        requests.rmdir()
        append_line(str(requests), {"kind": "stop", "by": "ada@login1", "time": "now"})
        while True:
            message = await made.heard.get()
            if getattr(message, "reason", "") == "cancelled by ada@login1":
                return

    play(tmp_path, scene, times=CoordinatorTimes(watch=WatchTimes(look_every_s=0.001)))


@pytest.mark.long
def test_a_new_start_of_the_job_is_heard_of_while_the_disk_is_busy(tmp_path: Path) -> None:
    """The new start waits for a lease, and not for what the older one writes or reads meanwhile."""
    is_free = threading.Event()

    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        await until(made, Assign)
        made.disk.best_effort(is_free.wait)
        append_line(made.layout.requests, {"kind": "start", "by": "node1", "time": "now", "allocation": 2})
        try:
            while not made.superseded:
                await asyncio.sleep(0.01)
        finally:
            is_free.set()
        assert made.superseded == ["the job has started again: allocation 2"]

    play(tmp_path, scene)


def test_the_nodes_that_are_missing_are_looked_at_again_and_again(tmp_path: Path) -> None:
    asked: list[tuple[str, ...]] = []

    def diagnose(nodes: Sequence[str]) -> list[Diagnosis]:
        asked.append(tuple(nodes))
        missing = MissingNode(node="node1", cause=RendezvousCause.WRONG_SECRET, detail="authenticated wrongly")
        return [Diagnosis(missing=missing, gave_up=len(asked) == 3)]

    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        end = await until(made, End)
        assert isinstance(end, End)
        assert end.cause == "at most 1 of at least 2 nodes can join; missing: node1 authenticated wrongly"
        assert asked == [("node1",)] * 3

    times = CoordinatorTimes(watch=WatchTimes(diagnose_after_s=0.001, diagnose_every_s=0.001))
    play(tmp_path, scene, nodes=2, diagnose=diagnose, times=times)


def test_who_was_refused_for_its_version_does_not_hold_the_others(
    tmp_path: Path,
) -> None:
    async def scene(made: Scene) -> None:
        made.coordinator.received_from_own(a_join(0))
        await until(made, Welcome)
        gathering = made.coordinator._head.gathering
        gathering._settings = replace(gathering._settings, versions={"torch": "2"})
        other = OtherSide()
        join = replace(a_join(1), versions={"torch": "1"})
        made.coordinator.received(cast("Connection", other), join)
        assert isinstance(await until(made, End), End)
        assert [type(message) for message in other.sent] == [Refused, Refused]

    play(tmp_path, scene, nodes=2)


def test_a_join_that_its_agent_has_given_up_is_not_taken_in(tmp_path: Path) -> None:
    """It comes over a slow connection after a later one, which the agent has said goodbye on, and not closed yet."""

    async def scene(made: Scene) -> None:
        later, earlier = OtherSide(), OtherSide()
        made.coordinator.received(cast("Connection", later), replace(a_join(1), number=6))
        made.coordinator.received(cast("Connection", later), Dropped(reason="no answer to the join"))
        made.coordinator.received(cast("Connection", earlier), replace(a_join(1), number=5))
        assert earlier.sent == [Refused(reason="closed", exit_code=0)]
        made.coordinator.closed(cast("Connection", later), "the other side closed the connection")
        made.coordinator.received_from_own(a_join(0))
        await until(made, Welcome)
        assert made.coordinator._head._roster.missing() == ("node1",)

    play(tmp_path, scene, nodes=2)


def test_the_end_of_an_old_connection_takes_nothing_from_the_agent_that_came_since(tmp_path: Path) -> None:
    async def scene(made: Scene) -> None:
        old, new = OtherSide(), OtherSide()
        made.coordinator.received(cast("Connection", old), a_join(1))
        made.coordinator.received(cast("Connection", old), Dropped(reason="it ends"))
        agent = replace(a_join(1).agent, port=a_join(1).agent.port + 1)
        made.coordinator.received(cast("Connection", new), replace(a_join(1), agent=agent))
        made.coordinator.closed(cast("Connection", old), "the other side closed the connection")
        made.coordinator.received_from_own(a_join(0))
        await until(made, Assign)
        assert any(isinstance(message, Assign) for message in new.sent)

    play(tmp_path, scene, nodes=2)


async def terminate(made: Scene) -> End:
    """Starts the workers of a run of one node, sends its agent a TERM, and returns how the run ends for it."""
    made.coordinator.received_from_own(a_join(0))
    await until(made, Assign)
    made.coordinator.received_from_own(Terminated(signal_name="SIGTERM"))
    await until(made, Stop)
    made.coordinator.received_from_own(Stopped(attempt=1, failures=(), unkillable=(), store_port=1))
    end = await until(made, End)
    assert isinstance(end, End)
    return end


@pytest.mark.parametrize(
    ("is_requeued", "exit_code", "state"),
    [
        ([False], ExitCode.STOPPED, "CANCELLED"),
        ([True], ExitCode.REQUEUE, None),
        ([None, None, False], ExitCode.STOPPED, "CANCELLED"),  # Slurm is asked again until it answers
        ([None, None, True], ExitCode.REQUEUE, None),
        ([None], ExitCode.REQUEUE, None),  # it may have requeued the job, which a result would end
    ],
)
def test_a_stop_from_outside_ends_the_run_only_if_slurm_says_that_the_job_does_not_start_again(
    tmp_path: Path,
    is_requeued: list[bool | None],
    exit_code: ExitCode,
    state: str | None,
) -> None:
    async def scene(made: Scene) -> None:
        assert (await terminate(made)).exit_code == exit_code
        result = Path(made.layout.result)
        assert (json.loads(result.read_text())["state"] if result.exists() else None) == state

    times = CoordinatorTimes(scheduler_answers_within_s=0.2, asks_again_after_s=0.01)
    play(tmp_path, scene, answers=Answers(is_requeued=is_requeued), times=times)


def test_whoever_asks_for_the_end_while_slurm_is_silent_ends_the_run(tmp_path: Path) -> None:
    """The next start of the job, should there be one, would only find the request."""
    layout = RunLayout(tmp_path)

    class Silent(Answers):
        def is_requeued(self, job_id: str, restart_count: int) -> bool | None:
            if not Path(layout.requests).exists():
                append_line(layout.requests, {"kind": "stop", "by": "ada@login1", "time": "now"})
            return None

    async def scene(made: Scene) -> None:
        assert (await terminate(made)).exit_code == ExitCode.STOPPED
        assert json.loads(Path(made.layout.result).read_text())["state"] == "CANCELLED"

    times = CoordinatorTimes(asks_again_after_s=0.01, watch=WatchTimes(look_every_s=0.01))
    play(tmp_path, scene, answers=Silent(), times=times)
