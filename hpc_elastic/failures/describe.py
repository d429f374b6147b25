"""Says a failure in one line, and gives failures that are alike the same signature."""

from __future__ import annotations

import re

from hpc_elastic.failures.classes import MEANINGS, FailureClass
from hpc_elastic.rundir.records import FailureRecord

LONGEST_WORDS = 500  # of an error message in the line about a failure; the error file has all of it
# Classes whose phrase says what the exit code or the signal means; the detail, where there is one, follows it.
_EXPLAINED = {
    FailureClass.OUT_OF_MEMORY: "was killed by the out-of-memory killer",
    FailureClass.STALLED: "stalled",
    FailureClass.UNKILLABLE: "could not be killed",
}


def describe_failure(failure: FailureRecord) -> str:
    """Describe a failure in one line: which rank, on which node, how it ended, and its error message."""
    rank = f"rank {failure.rank} on {failure.node}"
    message = first_line(failure.message)
    if failure.failure_class == FailureClass.START_FAILED.value:
        return f"{rank} could not be started: {message}"
    for failure_class, words in _EXPLAINED.items():
        if failure.failure_class == failure_class.value:
            return f"{rank} {words}{_after_colon(failure.detail or message)}"
    if failure.signal_name:
        return f"{rank} was killed by {failure.signal_name}{_after_colon(failure.detail)}"
    number = f"exit code {failure.exitcode}"
    if message in ("", number):  # it left no message
        return f"{rank} failed with {number}{_after_colon(failure.detail)}"
    return f"{rank} failed with {number}: {message}"


def first_line(message: str) -> str:
    """Return the first line of a message that is not blank, clipped to what a line about a failure has room for."""
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return line if len(line) <= LONGEST_WORDS else f"{line[:LONGEST_WORDS]} [...]"


def failure_signature(failure: FailureRecord) -> str:
    """Return a text that is equal for equal failures: class, exit code and message with its numbers masked."""
    words = re.sub(r"0x[0-9a-f]+|\d+", "#", failure.message)[:500]
    return f"{failure.failure_class}/{failure.exitcode}/{words}"


def phrase_of(word: str) -> str:
    """Return what a class means, by its word in a record; the word itself if only a newer version knows it."""
    try:
        return MEANINGS[FailureClass(word)].phrase
    except ValueError:
        return word


def _after_colon(text: str) -> str:
    return f": {first_line(text)}" if text.strip() else ""
