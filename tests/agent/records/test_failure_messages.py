"""What a result says of thousands of ranks that failed with long messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpc_elastic.agent.records.failure_messages import LEAST_CHARACTERS, MOST_CHARACTERS, with_short_messages
from hpc_elastic.rundir.records import RootCause, RunResultRecord
from tests.agent.records.runs import a_result
from tests.membership.script import a_failure

LONG = "RuntimeError: Error(s) in loading state_dict for Llama:\n" + "\tsize mismatch for layers.0.wq.weight\n" * 200


def failed(ranks: int, message: str = LONG) -> RunResultRecord:
    failures = {str(rank): a_failure(rank, message=message) for rank in range(ranks)}
    cause = RootCause(attempt=1, failure_class="exception", line="rank 3 failed", rank=3)
    return replace(a_result(1, "rank 3 failed"), failures=failures, root_cause=cause)


@pytest.mark.parametrize("ranks", [0, 1, 100])
def test_messages_of_some_failures_are_as_they_are(ranks: int) -> None:
    assert with_short_messages(failed(ranks)) == failed(ranks)


def test_short_messages_of_thousands_of_failures_are_as_they_are() -> None:
    assert with_short_messages(failed(3000, "ValueError: no")) == failed(3000, "ValueError: no")


@pytest.mark.parametrize(("ranks", "most"), [(300, MOST_CHARACTERS // 300), (4096, LEAST_CHARACTERS)])
def test_messages_of_many_failures_are_shortened_to_their_beginnings_but_for_that_of_the_cause(
    ranks: int, most: int
) -> None:
    found = with_short_messages(failed(ranks)).failures
    assert len(found) == ranks
    assert found["3"] == a_failure(3, message=LONG)
    assert {failure.message for rank, failure in found.items() if rank != "3"} == {f"{LONG[:most]} [...]"}
