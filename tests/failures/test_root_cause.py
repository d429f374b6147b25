"""Which of an attempt's failures is named as the cause, and what is said of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.failures.classes import MEANINGS, Blame, FailureClass
from hpc_elastic.failures.root_cause import (
    FoundCause,
    ObservedFailure,
    StoppedRanks,
    find_root_cause,
    name_unfinished,
)
from hpc_elastic.rank_set import parse_ranks
from hpc_elastic.rundir.records import FailureRecord, RootCause
from tests.membership.script import a_failure

NODES = {rank: f"node{rank // 2}" for rank in range(6)}
CLOSED = "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"
TIMED_OUT = "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"


def culprit(rank: int, message: str = "ValueError: bad batch", **more: Any) -> FailureRecord:
    return a_failure(rank, node=NODES[rank], message=message, **more)


def victim(rank: int, **more: Any) -> FailureRecord:
    return a_failure(rank, node=NODES[rank], message=CLOSED, failure_class="peer_lost", **more)


def timed_out(rank: int, frame: str = "", **more: Any) -> FailureRecord:
    failure = a_failure(rank, node=NODES[rank], message=TIMED_OUT, failure_class="collective_timeout", **more)
    return replace(failure, frame=frame)


def at(failure: FailureRecord, frame: str) -> FailureRecord:
    return replace(failure, frame=frame)


def find(
    *observed: tuple[float, FailureRecord],
    succeeded: tuple[int, ...] = (),
    waiting: tuple[int, ...] = (),
    paused: tuple[int, ...] = (),
) -> FoundCause:
    failures = [ObservedFailure(failure=failure, at=at) for at, failure in observed]
    stopped = StoppedRanks(nodes=NODES, succeeded=succeeded, waiting=waiting, paused=paused)
    found = find_root_cause(3, failures, stopped)
    assert found is not None
    return found


def test_a_rank_that_finds_its_peers_gone_after_the_stop_is_the_one_that_others_waited_for() -> None:
    observed = [(0.1 * rank, timed_out(rank)) for rank in (0, 1, 3, 4, 5)]
    cause = find(*observed, (3.0, victim(2, is_after_stop=True))).cause
    assert (cause.rank, cause.failure_class) == (2, "silent")
    assert cause.line.startswith("rank 2 did not take part in a collective in which others timed out")


def test_the_line_about_thousands_of_ranks_in_no_order_is_one_that_people_can_read() -> None:
    """It named each of them, in 10,000 characters, in `status`, the claims, and the agents' and the script's output."""
    nodes = {rank: f"node{rank // 8}" for rank in range(4096)}
    failures = [a_failure(rank, node=nodes[rank], message="ValueError: bad batch") for rank in range(0, 4096, 2)]
    observed = [ObservedFailure(failure=failure, at=0.0001 * failure.rank) for failure in failures]
    found = find_root_cause(3, observed, StoppedRanks(nodes=nodes))
    assert found is not None
    assert (
        "; ranks 2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,... (2047 ranks) failed" in found.cause.line
    )
    assert len(found.cause.line) < 300
    assert parse_ranks(found.cause.failed) == parse_ranks(found.cause.candidates) == tuple(range(0, 4096, 2))


def test_ranks_that_fail_in_the_same_way_are_told_together_and_only_the_first_may_be_the_cause() -> None:
    """4,096 ranks need some seconds to find that a file is missing; the line told of those of the first half second."""
    observed = [(0.2 * rank, culprit(rank, f"FileNotFoundError: /data/shard_{rank}")) for rank in (3, 0, 1, 2, 5, 4)]
    cause = find(*observed).cause
    assert cause.line == (
        "rank 0 on node0 failed with exit code 1: FileNotFoundError: /data/shard_0; ranks 1-5 failed in the same way"
    )
    assert (cause.candidates, cause.failed) == ("0-2", "0-5")


def test_a_rank_that_timed_out_like_the_others_took_part_though_its_end_was_seen_after_the_stop() -> None:
    observed = [(0.01 * rank, timed_out(rank, f"train.py:{rank}", is_after_stop=rank > 0)) for rank in range(6)]
    cause = find(*observed).cause
    assert (cause.failure_class, cause.candidates) == ("collective_timeout", "")
    assert "did not take part" not in cause.line


def test_a_rank_that_lost_its_peers_as_the_first_ones_timed_out_may_have_waited_with_them() -> None:
    observed = [(0.0, timed_out(0, "train.py:7")), (0.01, at(victim(1, is_after_stop=True), "train.py:8"))]
    observed += [(0.02 * rank, timed_out(rank, "train.py:7", is_after_stop=True)) for rank in (2, 3, 4, 5)]
    cause = find(*observed).cause
    assert (cause.rank, cause.failure_class) == (0, "collective_timeout")
    assert cause.line.endswith("they waited at different lines: ranks 0,2-5 at train.py:7, rank 1 at train.py:8")


def test_a_stop_for_a_lost_connection_asks_nobody_where_it_was_so_nobody_is_said_to_be_absent() -> None:
    observed = [(0.0, at(victim(1), "train.py:8"))]
    observed += [(0.02 * rank, timed_out(rank, "train.py:7", is_after_stop=True)) for rank in (3, 4, 5, 0)]
    cause = find(*observed).cause
    assert (cause.rank, cause.failure_class, cause.candidates) == (0, "collective_timeout", "0,2")
    assert "they waited at different lines: ranks 0,3-5 at train.py:7, rank 1 at train.py:8" in cause.line
    assert cause.line.endswith("; rank 2 had not failed")


def test_ranks_that_lost_their_peer_at_the_line_where_it_timed_out_waited_there_too() -> None:
    observed = [(0.0, timed_out(0, "train.py:7")), *((0.1, at(victim(rank), "train.py:7")) for rank in range(1, 6))]
    line = find(*observed).cause.line
    assert "no other rank waited there" not in line
    assert line.endswith("it is a consequence, and no rank is known to have failed by itself")


def test_of_the_ranks_that_did_not_time_out_those_that_wait_themselves_are_not_named() -> None:
    assert find((0.0, timed_out(0)), waiting=(1, 3, 4)).cause.candidates == "2,5"
    assert find((0.0, timed_out(0)), waiting=(1, 2, 3, 4, 5)).cause.candidates == "1-5"  # then nobody is left to name


@pytest.mark.parametrize("fails", [timed_out, victim])
def test_a_rank_that_stood_still_is_the_one_that_others_waited_for(fails: Callable[..., FailureRecord]) -> None:
    cause = find(*((0.1 * rank, fails(rank)) for rank in (0, 1, 3)), succeeded=(5,), paused=(2, 5)).cause
    assert (cause.rank, cause.node, cause.failure_class) == (2, "node1", "silent")
    assert cause.line.startswith(
        "rank 2 on node1 was stopped by a signal such as SIGSTOP, or by a debugger, while others"
    )


def test_several_ranks_that_stood_still_are_candidates_and_none_if_another_failed_by_itself() -> None:
    assert find((0.0, timed_out(0)), paused=(2, 3)).cause.candidates == "2-3"
    assert find((0.0, timed_out(0)), (0.1, culprit(4)), paused=(2,)).cause.rank == 4
    assert "SIGSTOP" not in find((0.0, timed_out(0)), (0.1, timed_out(2)), paused=(2,)).cause.line


def test_without_a_failure_there_is_no_cause() -> None:
    assert find_root_cause(1, [], StoppedRanks(nodes=NODES)) is None


def test_a_rank_that_failed_by_itself_goes_before_the_victims_that_were_heard_of_first() -> None:
    cause = find((0.0, victim(0)), (0.1, victim(4)), (0.2, culprit(3))).cause
    assert (cause.rank, cause.node, cause.failure_class, cause.attempt) == (3, "node1", "exception", 3)
    assert cause.line == "rank 3 on node1 failed with exit code 1: ValueError: bad batch"
    assert (cause.failed, cause.victims, cause.silent) == ("3", "0,4", "1-2,5")
    assert (cause.observed_first, cause.candidates) == (0, "")


def test_a_failure_from_before_the_stop_goes_before_one_that_was_reported_earlier_but_happened_after_it() -> None:
    cause = find((0.0, victim(0)), (0.1, culprit(1, is_after_stop=True)), (0.9, culprit(4))).cause
    assert (cause.rank, cause.candidates) == (4, "")


def test_a_failure_after_the_stop_is_the_cause_if_all_others_are_victims() -> None:
    assert find((0.0, victim(0)), (0.1, culprit(5, is_after_stop=True))).cause.rank == 5


def test_on_one_node_the_clock_decides_and_between_nodes_the_order_of_arrival() -> None:
    first, second = culprit(1, timestamp=5.0), culprit(0, timestamp=4.0)
    assert find((0.0, first), (0.1, second)).cause.rank == 0
    other_node = culprit(4, timestamp=1.0)  # its machine's clock is slow
    assert find((0.0, first), (0.1, other_node)).cause.rank == 1


def test_ranks_that_fail_alike_are_counted_and_named_once() -> None:
    cause = find(*((rank / 100, culprit(rank)) for rank in range(6))).cause
    assert (
        cause.line == "rank 0 on node0 failed with exit code 1: ValueError: bad batch; ranks 1-5 failed in the same way"
    )
    assert (cause.candidates, cause.failed, cause.silent) == ("0-5", "0-5", "")


def test_the_few_that_had_not_failed_where_many_failed_alike_are_named() -> None:
    cause = find(*((rank / 100, culprit(rank, "no step for 60 s")) for rank in (0, 1, 3, 5))).cause
    assert cause.line.endswith("; ranks 1,3,5 failed in the same way, ranks 2,4 had not failed")
    line = find(*((rank / 100, culprit(rank)) for rank in range(3))).cause.line
    assert line.endswith("; ranks 1-2 failed in the same way")  # three others, of which nobody knows


def test_a_rank_that_alone_waited_for_nobody_is_named_as_that() -> None:
    others = [(1.0 + rank / 10, victim(rank)) for rank in (0, 2, 3, 4, 5)]
    cause = find((0.9, timed_out(1)), *others).cause
    assert cause.rank == 1
    assert cause.line.endswith("; no other rank waited there, and the others failed when it had ended")


def test_two_different_failures_at_about_the_same_time_are_both_named() -> None:
    cause = find((0.0, culprit(0)), (0.2, culprit(4, "KeyError: 'lr'"))).cause
    assert cause.line == (
        "rank 0 on node0 failed with exit code 1: ValueError: bad batch; at about the same time "
        "rank 4 on node2 failed with exit code 1: KeyError: 'lr', which may be the cause as well"
    )
    assert cause.candidates == "0,4"


def test_a_second_failure_much_later_is_no_candidate() -> None:
    cause = find((0.0, culprit(0)), (3.0, culprit(4, "KeyError: 'lr'"))).cause
    assert (cause.line, cause.candidates) == ("rank 0 on node0 failed with exit code 1: ValueError: bad batch", "")


def test_a_rank_that_could_not_be_started_goes_before_all_others() -> None:
    never = a_failure(5, node="node2", failure_class="start_failed", message="No such file or directory: train.py")
    assert find((0.0, culprit(0)), (2.0, never)).failure.failure_class == "start_failed"


def test_the_rank_that_did_not_take_part_is_named_where_all_others_timed_out() -> None:
    found = find(*((float(rank), timed_out(rank)) for rank in (0, 1, 2, 4, 5)))
    cause = found.cause
    assert (cause.rank, cause.node, cause.failure_class) == (3, "node1", FailureClass.SILENT.value)
    assert cause.line.startswith("rank 3 did not take part in a collective in which others timed out; rank 0 on node0")
    assert (cause.failed, cause.victims, cause.silent) == ("", "0-2,4-5", "3")
    assert found.failure.rank == 0  # its role and its signature count


WAITED = "DistStoreError: wait timeout after 3000ms, keys: /default_pg/0//cpu//0/3"


def test_the_rank_that_did_not_join_is_named_where_all_others_waited_for_the_process_group() -> None:
    failures = [a_failure(r, node=NODES[r], message=WAITED, failure_class="rendezvous") for r in (0, 1, 2, 4, 5)]
    cause = find(*((float(each.rank), each) for each in failures)).cause
    assert (cause.rank, cause.node, cause.failure_class) == (3, "node1", FailureClass.SILENT.value)
    assert cause.line.startswith("rank 3 did not join the process group for which others waited; rank 0 on node0")


def test_a_rank_that_reached_nobody_says_nothing_about_who_is_missing() -> None:
    refused = "DistNetworkError: The client socket has timed out after 3000ms while trying to connect to (node0, 1)."
    failure = a_failure(2, node=NODES[2], message=refused, failure_class="rendezvous")
    assert find((0.0, failure)).cause.rank == 2


def test_several_silent_ranks_are_candidates_and_none_is_picked() -> None:
    cause = find((0.0, timed_out(0)), (0.1, timed_out(1))).cause
    assert (cause.rank, cause.node, cause.candidates) == (None, "", "2-5")
    assert cause.line.startswith("ranks 2-5 did not take part")


def test_a_rank_that_exited_0_early_is_the_one_that_the_others_lost() -> None:
    cause = find((0.0, victim(0)), (0.1, victim(1)), succeeded=(4,)).cause
    assert (cause.rank, cause.failure_class) == (4, "silent")
    assert cause.line.startswith("rank 4 had ended with exit code 0 while others still worked; rank 0 on node0 failed")


def test_victims_alone_are_said_to_be_consequences() -> None:
    cause = find((0.0, victim(0)), (0.1, victim(1))).cause
    assert cause.rank == 0
    assert cause.line.endswith("it is a consequence, and no rank is known to have failed by itself")


def test_ranks_that_timed_out_at_different_lines_are_named_with_them() -> None:
    frames = dict.fromkeys(NODES, "train.py:9 in step") | {4: "train.py:12"}
    line = find(*((rank / 10, timed_out(rank, frame=frame)) for rank, frame in frames.items())).cause.line
    assert line.endswith("; they waited at different lines: ranks 0-3,5 at train.py:9 in step, rank 4 at train.py:12")
    same = find(*((rank / 10, timed_out(rank, frame="train.py:9")) for rank in NODES)).cause.line
    assert same.endswith("no rank is known to have failed by itself")
    unknown = find(*((rank / 10, timed_out(rank, frame="" if rank else "train.py:9")) for rank in NODES)).cause.line
    assert unknown.endswith("no rank is known to have failed by itself")


def test_more_lines_than_a_cause_has_room_for_are_counted_together() -> None:
    line = find(*((rank / 10, timed_out(rank, frame=f"train.py:{rank}")) for rank in NODES)).cause.line
    assert line.endswith("rank 3 at train.py:3, ranks 4-5 elsewhere")


CHECKPOINT = (
    "CheckpointException: CheckpointException ranks:dict_keys([%s])\nTraceback (most recent call last): (RANK 3)"
)


def test_the_rank_whose_part_of_a_distributed_checkpoint_failed_is_named() -> None:
    told = [(rank / 100, culprit(rank, CHECKPOINT % "3")) for rank in (0, 1, 4)]
    cause = find(*told, (0.4, culprit(3, CHECKPOINT % "3"))).cause
    assert (cause.rank, cause.candidates, cause.failed, cause.victims) == (3, "", "3", "0-1,4")
    late = find(*told, (0.4, culprit(3, CHECKPOINT % "3", is_after_stop=True))).cause
    assert late.rank == 3
    both = find(*told, *((0.4, culprit(rank, CHECKPOINT % "3, 5")) for rank in (3, 5))).cause
    assert both.candidates == "3,5"
    assert find(*told).cause.rank == 0, "the message names the rank, which left nothing itself"


def test_every_class_has_a_meaning_and_advice_for_what_is_not_wanted() -> None:
    assert set(MEANINGS) == set(FailureClass)
    for failure_class, meaning in MEANINGS.items():
        assert meaning.phrase
        assert meaning.advice or failure_class is FailureClass.CANCELLED


@given(
    st.lists(
        st.tuples(
            st.floats(0, 10),
            st.builds(
                a_failure,
                rank=st.integers(0, 5),
                node=st.sampled_from(["node0", "node1", "node2"]),
                exitcode=st.sampled_from([1, 3, -9]),
                failure_class=st.sampled_from([each.value for each in FailureClass]),
                message=st.text(max_size=20),
                timestamp=st.floats(0, 10),
                is_after_stop=st.booleans(),
            ),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sets(st.integers(0, 5)),
)
def test_no_victim_is_the_cause_while_a_culprit_is_known(
    observed: list[tuple[float, FailureRecord]], succeeded: set[int]
) -> None:
    failures = [ObservedFailure(failure=failure, at=at) for at, failure in sorted(observed, key=lambda each: each[0])]
    found = find_root_cause(1, failures, StoppedRanks(nodes=NODES, succeeded=succeeded))
    assert found is not None
    if any(each.blame is Blame.CULPRIT for each in failures):
        assert ObservedFailure(failure=found.failure, at=0).blame is Blame.CULPRIT
        assert found.cause.rank in parse_ranks(found.cause.failed)
    assert "\n" not in found.cause.line
    assert found.failure in [each.failure for each in failures]


@pytest.mark.parametrize("later", [0.4, 5.0])
def test_a_culprit_is_found_however_late_it_is_heard_of(later: float) -> None:
    assert find((0.0, victim(0)), (later, culprit(2))).cause.rank == 2


@pytest.mark.parametrize(
    ("succeeded", "node", "nodes", "rank"),
    [({0, 1, 2}, "node1", (), 3), ({0, 1}, "node1", (), None), ({0}, "", ("node0", "node1"), None)],
    ids=["one rank", "ranks of one node", "ranks of two nodes"],
)
def test_ranks_that_ran_on_are_named_with_their_nodes_though_others_have_ended_since(
    succeeded: set[int], node: str, nodes: tuple[str, ...], rank: int | None
) -> None:
    """When the time was over, ranks of both nodes ran; some exited 0 before they were stopped."""
    seen = RootCause(attempt=1, failure_class="stalled", line="ranks still ran", nodes=("node0", "node1"))
    places = {0: "node0", 1: "node0", 2: "node1", 3: "node1"}
    cause = name_unfinished(seen, StoppedRanks(nodes=places, succeeded=succeeded))
    assert (cause.node, cause.nodes, cause.rank) == (node, nodes, rank)
