"""Says a failure in one line, and gives failures that are alike the same signature."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from hpc_elastic.failures.classes import MEANINGS, FailureClass

if TYPE_CHECKING:
    from hpc_elastic.rundir.records import FailureRecord

LONGEST_WORDS = 500  # of an error message in the line about a failure; the error file has all of it
# Classes whose words say what the exit code or the signal means; the detail, where there is one, follows them.
_EXPLAINED = {
    FailureClass.OUT_OF_MEMORY: "was killed by the out-of-memory killer",
    FailureClass.STALLED: "stalled",
    FailureClass.UNKILLABLE: "could not be killed",
}
# Classes of which the signal alone does not say what happened: a tired reader need not know what SIGBUS is.
_SIGNALLED = {
    FailureClass.SEGMENTATION_FAULT: "a segmentation fault in native code",
    FailureClass.ABORTED: "native code gave up",
    FailureClass.BUS_ERROR: "memory that a file or a device no longer backs",
    FailureClass.SHARED_MEMORY_FULL: "no room in shared memory (/dev/shm)",
}
# Classes of which native code says more before it gives up than that it does.
_TOLD_AT_ABORT = (
    FailureClass.ABORTED,
    FailureClass.CUDA_HARDWARE,
    FailureClass.CUDA_ILLEGAL_ACCESS,
    FailureClass.CUDA_OUT_OF_MEMORY,
    FailureClass.CUDA_ERROR,
    FailureClass.COLLECTIVE_TIMEOUT,
    FailureClass.PEER_LOST,
)
_KILLED = re.compile(r"(?:its program was )?killed by SIG[\w+-]+(?:: )?")
_SIGNED = 500  # characters of a message that make its signature
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")
_AMOUNT = re.compile(r"[\d.]+ of [\d.]+ [KMGT]iB")
_NESTED = "Traceback (most recent call last):"
_COMPILERS = "TorchRuntimeError: "  # torch/_dynamo/exc.py
_TRIED = re.compile(r"\bDynamo failed to run FX node .*: got (\w+\(.*\))(?:\n|$)")
_NOT_LOADED = "UnpicklingError: Weights only load failed"  # torch/serialization.py
_REFUSED = re.compile(r"WeightsUnpickler error: \s*(\S.*)")
_BANNER = re.compile(r"([A-Za-z_][\w.]*: )?(?:[^\w\n]*\n)+")  # before words, behind the type of an exception
# torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp, with TORCH_DISTRIBUTED_DEBUG=DETAIL.
_MISMATCH = re.compile(
    r"(?s)^(.*?Detected mismatch between collectives on ranks)\. Rank (\d+) is running collective: "
    r"CollectiveFingerPrint\((.*?)\), but Rank (\d+) is running collective: CollectiveFingerPrint\((.*)"
)
_FINGERPRINT = re.compile(r"OpType=(\w+)(?:, TensorShape=(\[[^\]]*\]), TensorDtypes=(\w+))?")
# torch/csrc/distributed/c10d/NCCLUtils.hpp, C10D_NCCL_CHECK: what NCCL could not do stands in its last error only.
_NCCL = re.compile(
    r"^(?P<before>[^\n]{0,300}?)NCCL error(?: in: [^,\n]{1,300})?[,:] (?P<kind>[^\n]{1,200}?)"
    r"(?: \(run with [^)\n]{1,60}\))?(?:, NCCL version [^\n]{0,60})?\n"
    r"(?:nccl\w{1,60}: [^\n]{0,300}\n)?Last error: ?\n *(?P<last>\S[^\n]{0,500})"
)
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Warning)?(: .*)?")


class DescribedFailure(Protocol):
    """What is said of a failure: that of a record, or what a reader knows of one."""

    @property
    def rank(self) -> int:
        """The global rank."""

    @property
    def node(self) -> str:
        """The node's name, empty if it is not known."""

    @property
    def failure_class(self) -> str:
        """The word of its class."""

    @property
    def message(self) -> str:
        """The error message."""

    @property
    def detail(self) -> str:
        """What explains the class further."""

    @property
    def exitcode(self) -> int | None:
        """The exit code, None if it is not known."""

    @property
    def signal_name(self) -> str | None:
        """The signal that killed it, None if none did."""


def describe_failure(failure: DescribedFailure) -> str:
    """Describe a failure in one line: which rank, on which node, how it ended, and its error message."""
    rank = f"rank {failure.rank}{f' on {failure.node}' if failure.node else ''}"
    message = telling_line(failure.message)
    if failure.failure_class == FailureClass.START_FAILED.value:
        return f"{rank} could not be started: {message}"
    for failure_class, words in _EXPLAINED.items():
        if failure.failure_class == failure_class.value:
            detail = failure.detail or message
            return f"{rank} {words}{_after_colon(detail)}{' in use' if _AMOUNT.fullmatch(detail) else ''}"
    if failure.signal_name:
        return f"{rank} was killed by {failure.signal_name}{_after_colon(_meaning_of_signal(failure))}"
    number = f"exit code {failure.exitcode}" if failure.exitcode is not None else ""
    failed = f"{rank} failed{f' with {number}' if number else ''}"
    if message in ("", number):  # it left no message
        return f"{failed}{_after_colon(failure.detail)}"
    return f"{failed}: {message}"


def _meaning_of_signal(failure: DescribedFailure) -> str:
    """Return what is known beside the signal that killed a worker: what native code said, details, or its meaning."""
    is_told = failure.failure_class in {word.value for word in _TOLD_AT_ABORT}
    said = _KILLED.sub("", telling_line(failure.message), count=1) if is_told else ""
    if failure.detail and failure.failure_class == FailureClass.ABORTED.value:
        return failure.detail  # it explains what was said
    meaning = next((words for word, words in _SIGNALLED.items() if word.value == failure.failure_class), "")
    return "; ".join(part for part in (said, failure.detail) if part) or meaning


def telling_line(message: str) -> str:
    """Return a message as one line: its first one, and of what that announces the line which says it.

    That is what was raised behind a traceback that it quotes. So says torch of a process that it has spawned:
    `ProcessRaisedException: -- Process 0 terminated with the following error: ZeroDivisionError: division by zero`.
    It is the next line behind a colon, as in `Error(s) in loading state_dict for Linear:`, what an operator raised
    that torch.compile tried, what torch.load did not allow in a file, and the last error of NCCL.
    """
    message = _without_banner(message)
    first = first_line(message)
    if mismatch := _MISMATCH.match(message):
        ours, theirs = (" ".join(filter(None, _fingerprint(mismatch[number]))) for number in (3, 5))
        return f"{mismatch[1]}: rank {mismatch[2]} runs {ours}, rank {mismatch[4]} runs {theirs}"
    if nccl := _NCCL.match(message.lstrip()):
        return first_line(f"{nccl['before']}NCCL error: {nccl['kind']}: {nccl['last']}")
    if first.startswith(_NOT_LOADED) and (refused := _REFUSED.search(message)):
        return first_line(f"{_NOT_LOADED}: {refused[1]}")
    if len(first) > LONGEST_WORDS:
        return first
    if first.startswith(_COMPILERS) and (tried := _TRIED.search(message)):
        return first_line(f"{first}: {tried[1]}")
    if _NESTED not in message:
        second = next((line for line in message.splitlines()[1:] if line.strip() not in ("", first)), "")
        return first_line(f"{first} {second.strip()}") if first.endswith(":") else first
    last = message.rstrip().rpartition("\n")[2]
    if _EXCEPTION.fullmatch(last) is None or last in first:  # it is torn, or told already
        return first
    return first_line(f"{first.rstrip(':')}: {last}")


def _without_banner(message: str) -> str:
    """Return a message without the lines of signs, such as `=====`, above its first words."""
    message = message.strip()
    found = _BANNER.match(message)
    return f"{found[1] or ''}{message[found.end() :].lstrip()}" if found else message


def _fingerprint(text: str) -> tuple[str, ...]:
    """Return the operation of a collective, and of its tensor the shape and the type."""
    found = _FINGERPRINT.search(text)
    return found.groups("") if found else ("another one",)


def first_line(message: str) -> str:
    """Return the first line of a message that is not blank, clipped to what a line about a failure has room for."""
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return line if len(line) <= LONGEST_WORDS else f"{line[:LONGEST_WORDS]} [...]"


def failure_signature(failure: FailureRecord) -> str:
    """Return a text that is equal for equal failures: class, exit code and message with its numbers masked."""
    return f"{failure.failure_class}/{failure.exitcode}/{_masked(failure.message)}"


def _masked(message: str) -> str:
    """Return the first characters of a message whose numbers are masked; of a long one no more is looked at."""
    masked = _NUMBER.sub("#", message[: 4 * _SIGNED])
    if len(masked) < _SIGNED + len("0x"):  # of a number that is cut off, its beginning may be left at the end
        masked = _NUMBER.sub("#", message)
    return masked[:_SIGNED]


def phrase_of(word: str) -> str:
    """Return what a class means, by its word in a record; the word itself if only a newer version knows it."""
    try:
        return MEANINGS[FailureClass(word)].phrase
    except ValueError:
        return word


def _after_colon(text: str) -> str:
    return f": {first_line(text)}" if text.strip() else ""
