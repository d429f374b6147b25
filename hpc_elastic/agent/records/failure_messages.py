"""Shortens the messages of failures in a run's result, of which each of thousands of ranks may have one of 8 KiB."""

from __future__ import annotations

from dataclasses import replace

from hpc_elastic.rundir.records import FailureRecord, RunResultRecord

MOST_CHARACTERS = 1 << 20  # of all messages of a result together
LEAST_CHARACTERS = 512  # of one message, however many there are


def with_short_messages(result: RunResultRecord) -> RunResultRecord:
    """Return the result with messages that are 1 MiB together at most, or half a KiB each where they are very many.

    A state_dict that does not fit the model is a message of 8 KiB on every rank: for 10,000 of them the result would
    have 88 MB, which each `status` reads, and so does each agent without a head. The message of the rank in the root
    cause stays as it is. The error files have all.
    """
    most = max(LEAST_CHARACTERS, MOST_CHARACTERS // max(1, len(result.failures)))
    cause = result.root_cause.rank if result.root_cause is not None else None
    if all(len(failure.message) <= most for failure in result.failures.values()):
        return result
    failures = {
        rank: failure if failure.rank == cause else _shortened(failure, most)
        for rank, failure in result.failures.items()
    }
    return replace(result, failures=failures)


def _shortened(failure: FailureRecord, most: int) -> FailureRecord:
    """Return a failure with the beginning of its message: that is what a line about it has room for."""
    if len(failure.message) <= most:
        return failure
    return replace(failure, message=f"{failure.message[:most]} [...]")
