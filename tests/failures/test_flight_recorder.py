"""What torch's flight recorder says about collectives, from dumps as torch writes them and from damaged ones."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.codec import from_json, to_json
from hpc_elastic.failures.flight_recorder import (
    RankCollectives,
    describe_collectives,
    parse_flight_record,
)

TORCH = "/opt/python/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def entry(number: int, operation: str = "all_reduce", *, retired: bool = True, line: int = 88, **more: Any) -> object:
    """Return an entry as `torch._C._distributed_c10d._dump_fr_trace` of torch 2.13 has it."""
    return {
        "frames": [
            {"name": operation, "filename": TORCH, "line": 3245},
            {"name": "step", "filename": "/home/ada/train.py", "line": line},
            {"name": "<module>", "filename": "/home/ada/train.py", "line": 120},
        ],
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "profiling_name": f"nccl:{operation}",
        "state": "scheduled",
        "retired": retired,
        "is_p2p": False,
    } | more


def record(rank: int, *entries: object) -> RankCollectives:
    return parse_flight_record({"version": "2.10", "entries": list(entries)}, rank, "/home/ada")


def test_the_rank_that_did_not_enter_a_collective_is_told() -> None:
    waiting = [record(rank, entry(1), entry(2, retired=False)) for rank in range(3)]
    assert list(describe_collectives([*waiting, record(3, entry(1))], 4)) == [
        "collective 2 of default_pg: ranks 0-2 waited in all_reduce (train.py:88 in step); rank 3 had called 1 of it"
    ]


def test_ranks_that_called_different_collectives_are_told_apart() -> None:
    records = [record(0, entry(5, retired=False)), record(1, entry(5, "broadcast", retired=False, line=90))]
    (sentence,) = describe_collectives(records, 2)
    assert "rank 0 waited in all_reduce (train.py:88 in step)" in sentence
    assert "rank 1 waited in broadcast (train.py:90 in step)" in sentence


def test_records_that_are_not_there_are_counted() -> None:
    (sentence,) = describe_collectives([record(0, entry(1, retired=False))], 4)
    assert sentence.endswith("the records of 3 ranks were not there")


def test_one_record_that_is_not_there_is_told_as_one() -> None:
    (sentence,) = describe_collectives([record(0, entry(1, retired=False))], 2)
    assert sentence.endswith("the record of 1 rank was not there")


def test_a_rank_that_called_no_collective_of_the_world_is_told() -> None:
    waiting = [record(rank, entry(1, retired=False)) for rank in range(3)]
    (sentence,) = describe_collectives([*waiting, record(3)], 4)
    assert sentence.endswith("; no call of it was in the record of rank 3")


def test_a_rank_outside_a_group_is_not_missed_in_it() -> None:
    own = [record(rank, entry(1, retired=False, process_group=("7", "shards"))) for rank in range(2)]
    (sentence,) = describe_collectives([*own, record(2), record(3)], 4)
    assert sentence == "collective 1 of shards (7): ranks 0-1 waited in all_reduce (train.py:88 in step)"


def test_ranks_that_are_equally_far_behind_are_told_together() -> None:
    records = [record(0, entry(2, retired=False)), record(1, entry(1)), record(2, entry(1))]
    (sentence,) = describe_collectives(records, 3)
    assert sentence.endswith("; ranks 1-2 had called 1 of it")


def test_what_has_ended_and_what_is_no_collective_is_not_waited_for() -> None:
    done = record(0, entry(1), entry(2, retired=False, state="completed"), entry(1, retired=False, is_p2p=True))
    assert (done.called, done.pending) == ({"default_pg": 2}, ())
    assert list(describe_collectives([done], 1)) == []


def test_a_record_is_read_as_it_was_written() -> None:
    before = record(2, entry(1), entry(2, retired=False))
    written = json.loads(json.dumps({"format_version": 1, "attempt": 3, **to_json(before)}))
    assert from_json(RankCollectives, written) == before


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=True),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["entries", "frames", "process_group", "collective_seq_id", "pending", "called", "rank", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(ANYTHING)
def test_any_object_gives_a_record(dump: object) -> None:
    found = parse_flight_record(dump, 0)
    list(describe_collectives([found], 1))
