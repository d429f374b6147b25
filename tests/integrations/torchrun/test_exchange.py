"""The two threads' agreement, one call after the other where nothing has to wait."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from hpc_elastic.integrations.torchrun.attempt_store import AttemptStore
from hpc_elastic.integrations.torchrun.exchange import Exchange, Failure, Over, Round, StoppedError, TorchAgentStage
from hpc_elastic.integrations.torchrun.store_calls import StoreCalls
from hpc_elastic.membership.messages import Assign, StopManner
from hpc_elastic.rundir.records import Endpoint

BOUND_S = 20.0


def a_round(attempt: int = 1) -> Round:
    return Round(
        assign=Assign(
            attempt=attempt,
            group_rank=0,
            group_world_size=2,
            first_rank=0,
            workers=1,
            world_size=2,
            role="default",
            first_role_rank=0,
            role_world_size=2,
            master=Endpoint(address="127.0.0.2", port=1),
            serves_store=False,
            is_failure_ignored=False,
            world_digest="",
            head="node1",
        )
    )


def at_work(attempt: int = 1) -> tuple[Exchange, Round, list[TorchAgentStage]]:
    exchange, heard = Exchange(), list[TorchAgentStage]()
    exchange.listen(heard.append)
    exchange.offer(a_round(attempt))
    current = exchange.next_round()
    assert exchange.take(current)
    return exchange, current, heard


def test_a_round_is_offered_taken_and_asked_for_again() -> None:
    exchange, current, heard = at_work()
    assert exchange.asked_to_stop() is None
    exchange.stop(StopManner.RESTART)
    assert exchange.asked_to_stop() is StopManner.RESTART
    exchange.withdraw()
    exchange.offer(a_round(2))
    assert exchange.next_round().assign.attempt == 2
    assert not exchange.take(current)
    assert heard == [TorchAgentStage.IDLE, TorchAgentStage.AT_WORK, TorchAgentStage.IDLE]


def test_a_round_that_was_stopped_before_it_was_taken_is_nobodys() -> None:
    exchange = Exchange()
    exchange.offer(a_round())
    current = exchange.next_round()
    exchange.stop(StopManner.FENCE)
    assert not exchange.take(current)
    assert exchange.stage is TorchAgentStage.IDLE


def test_who_may_not_start_waits_for_the_stop() -> None:
    exchange = Exchange()
    exchange.offer(a_round())
    current = exchange.next_round()
    threading.Timer(0.05, exchange.stop, [StopManner.FENCE]).start()
    assert not exchange.take(current, may_start=lambda: False)


def test_who_may_start_again_before_any_stop_does_so() -> None:
    """A process that was paused hears its head before the deadline that has passed is acted on."""
    exchange = Exchange()
    exchange.offer(a_round())
    current = exchange.next_round()
    answers = iter([False, True])
    threading.Timer(0.05, exchange.touch).start()
    assert exchange.take(current, may_start=lambda: next(answers))
    assert exchange.stage is TorchAgentStage.AT_WORK


def test_a_harder_stop_says_whether_the_workers_are_being_stopped_already() -> None:
    exchange, _, _ = at_work()
    assert not exchange.stop(StopManner.GRACE)
    assert exchange.asked_to_stop() is StopManner.GRACE
    assert exchange.stop(StopManner.FENCE)


def test_the_end_stops_the_workers_and_every_wait() -> None:
    exchange, current, _ = at_work()
    exchange.end(Over(exit_code=1, cause="why"))
    exchange.end(Over(exit_code=2, cause="again"))
    assert exchange.asked_to_stop() is StopManner.FENCE
    assert exchange.wait_until_over() == Over(exit_code=1, cause="why")
    with pytest.raises(StoppedError):
        exchange.next_round()
    assert not exchange.stands(current)


def test_a_failure_after_the_exit_barrier_is_none() -> None:
    exchange, _, heard = at_work()
    exchange.finish()
    exchange.fail(Failure(rank=0, local_rank=0, pid=1, exitcode=1))
    assert (exchange.stage, exchange.failure) == (TorchAgentStage.FINISHED, None)
    assert heard[-1] is TorchAgentStage.FINISHED


def test_torchs_agent_leaves_once_and_a_failure_stays_one() -> None:
    """It has no workers any more, also where it ends for no failure of theirs."""
    exchange, _, heard = at_work()
    exchange.leave()
    exchange.leave()
    assert heard == [TorchAgentStage.IDLE, TorchAgentStage.AT_WORK, TorchAgentStage.GONE]
    exchange, _, heard = at_work()
    exchange.fail(Failure(rank=0, local_rank=0, pid=1, exitcode=1))
    exchange.leave()
    assert heard == [TorchAgentStage.IDLE, TorchAgentStage.AT_WORK, TorchAgentStage.GONE]
    exchange, _, heard = at_work()
    exchange.finish()
    exchange.leave()
    assert exchange.stage is TorchAgentStage.FINISHED


class SilentStore:
    """A store on a machine that has lost its power."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.released = threading.Event()

    def _hang(self, *_: Any) -> Any:
        self.asked.set()
        self.released.wait(BOUND_S)

    set = get = multi_get = multi_set = wait = _hang


@pytest.mark.long
def test_an_exchange_of_ranks_with_a_dead_node_is_over_when_the_round_is() -> None:
    exchange, current, _ = at_work()
    silent = SilentStore()
    store = AttemptStore(exchange, StoreCalls(exchange), current, silent, finish=lambda: None)
    stopper = threading.Thread(target=lambda: silent.asked.wait(BOUND_S) and exchange.stop(StopManner.FENCE))
    stopper.start()
    store.set("torchelastic/role_info/0", b"mine")
    stopper.join()
    assert store.multi_get(["torchelastic/role_info/0", "torchelastic/role_info/1"]) == [b"mine", b"mine"]
    first_rank, world_size, *_ = json.loads(store.get("torchelastic/assigned_ranks/0"))
    assert (first_rank, world_size) == (1, 2)  # no worker takes itself for rank 0, or for the only one
    silent.released.set()


def test_an_error_of_the_store_is_one_while_the_round_stands() -> None:
    class BrokenStore(SilentStore):
        def get(self, key: str) -> Any:
            raise RuntimeError("connection reset")

    exchange, current, _ = at_work()
    store = AttemptStore(exchange, StoreCalls(exchange), current, BrokenStore(), finish=lambda: None)
    with pytest.raises(RuntimeError, match="connection reset"):
        store.get("torchelastic/assigned_ranks/0")
    exchange.stop(StopManner.FENCE)
    assert store.get("torchelastic/assigned_ranks/0")


def test_the_exit_barrier_is_membership() -> None:
    exchange, current, _ = at_work()
    ended: list[str] = []
    store = AttemptStore(exchange, StoreCalls(exchange), current, SilentStore(), finish=lambda: ended.append("waited"))
    assert store.add("torchelastic/agent/terminal_state/num_members", 1) == 0
    store.wait(["torchelastic/agent/terminal_state/last_member"])
    assert ended == ["waited"]
