"""The words for why an allocation ended after which the run goes on, apart from the records as `status` needs them."""

from __future__ import annotations

REQUEUED = "requeued"
ASKED_AGAIN = "requeue_requested"  # a person's request
NOT_STARTED_AGAIN = "Slurm does not start the job again"  # in the cause of a run, with Slurm's refusal after it
_WORDS = {
    "time_limit": "the job's time limit was reached",
    "preempted": "Slurm took the job's nodes for another job",
    "node_lost": "too few nodes were left",
    REQUEUED: "Slurm requeued the job",
    ASKED_AGAIN: "a person asked for another start of the job",
}


def describe_reason(reason: str, reservation: str | None = None) -> str:
    """Return a sentence about the end of an allocation, for people; an unknown reason is returned as it is.

    Args:
        reason: a word of `RESULT_REASONS`.
        reservation: the one whose end was the job's time limit; None or empty if it was its own.
    """
    if reason == "time_limit" and reservation:
        return f"the job's reservation {reservation} ended"
    return _WORDS.get(reason, reason)


def describe_end(allocation: int, reason: str | None, reservation: str | None = None) -> str:
    """Return for people why an allocation ended after which the run goes on; None: nobody could say."""
    if reason is None:
        return f"allocation {allocation} ended without a word, killed perhaps"
    return f"allocation {allocation} ended because {describe_reason(reason, reservation)}"
