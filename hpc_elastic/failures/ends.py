"""The rules that give the end of a process its class, in their order: by exit code or signal, and its last output."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass

from hpc_elastic.failures.classes import FailureClass
from hpc_elastic.failures.evidence import FailureEvidence
from hpc_elastic.failures.exception_rules import HARDWARE, ILLEGAL, tell_host_oom, tell_memory
from hpc_elastic.failures.output_end import WRAPPERS_LINES, find_reason
from hpc_elastic.failures.traceback_text import ends_with_fault, parse_fault, parse_traceback

UNKNOWN_USE = "how much was in use is not known"
_SHELL_SIGNALS = {"SIGKILL": 137, "SIGSEGV": 139, "SIGABRT": 134, "SIGBUS": 135, "SIGTERM": 143, "SIGINT": 130}
# A Python whose subprocess a signal ended hands -9 on to sys.exit, and the kernel keeps the low byte. Not HUP and INT:
# -1 and -2 are codes that people choose.
_PYTHON_SIGNALS = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGTERM", "SIGILL", "SIGFPE")
_CALLED = re.compile(  # subprocess.CalledProcessError.__str__
    r"^CalledProcessError: Command (?s:.*)(?:died with <Signals\.(SIG\w+): \d+>|returned non-zero exit status (\d+))\.$"
)
# What a shell prints of a command that a signal ended (glibc, strsignal): bash with the line and the process id before.
_SHELL_WORDS = {
    "SIGKILL": "Killed",
    "SIGSEGV": "Segmentation fault",
    "SIGABRT": "Aborted",
    "SIGBUS": "Bus error",
    "SIGTERM": "Terminated",
}
# A line of torch's log, or what libstdc++ prints of a C++ exception that nothing caught.
_LOGGED = r"(?m)^(?:\[rank\d+\]:)?(?:\[[A-Z]\d{3,4} [^\]\n]{1,200}\]|  what\(\): )[^\n]*?"
_TIMEOUTS = re.compile(
    # torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, checkTimeout, and its heartbeat monitor (Megatron-LM#935).
    _LOGGED
    + r"(?:Watchdog caught collective operation timeout|Received a (?:dump signal due to a collective|global) timeout|"
    r"ProcessGroupNCCL's watchdog got stuck|Process group watchdog .*wait timeout)"
)
_NCCLS = r"NCCL error[^\n]{0,300}\n(?:nccl\w+: [^\n]*\n)?Last error: ?\n"  # its last error stands in a line of its own
_NCCL_BLOCK = re.compile(_NCCLS + r"[^\n]+")
# The same watchdog on a connection that broke, after which it speaks of "a collective timeout" as well.
_LOST_BY_NCCL = (
    "remote process exited or there was a network error|ncclRemoteError|Connection closed by remote peer|"
    rf"{_NCCLS}[^\n]*(?:[Cc]onnection (?:closed|reset|refused)|Connect to )"
)
_NCCL_LOST = re.compile(rf"{_LOGGED}(?:{_LOST_BY_NCCL})")
_LOST = re.compile(
    rf"{_LOGGED}(?:{_LOST_BY_NCCL}|Failed to recv, got 0 bytes|Connection closed by peer|Connection reset by peer)"
)
_CUDA_SAYS = r"(?:CUDA error|Cuda failure)[^\n]{0,300}?"
_CUDA = {
    FailureClass.CUDA_HARDWARE: rf"{_CUDA_SAYS}(?:{HARDWARE})",
    FailureClass.CUDA_ILLEGAL_ACCESS: rf"{_CUDA_SAYS}(?:{ILLEGAL})",
    FailureClass.CUDA_OUT_OF_MEMORY: r"CUDA error: out of memory|CUDA out of memory",
    FailureClass.CUDA_ERROR: r"CUDA error: ",
}
_DUMPED_LATER = re.compile(r"(?m)^Timeout \((\d[\d:.]{0,20})\)!$")  # Modules/faulthandler.c
# The lines that say why native code gave up (libstdc++, glibc's malloc and assert, Python, torch).
_ABORT_LINES = re.compile(
    r"(?m)^(?:[ \t]*what\(\):|terminate called|free\(\)|malloc\(\)|malloc_|double free|munmap_chunk|corrupted |"
    r"realloc\(\)|\*\*\* |Fatal Python error: (?!Aborted)|.*: Assertion `|OMP: Error|OpenBLAS )"
)

# gloo/transport/tcp/pair.cc: what another rank has sent does not fit; a thread of gloo throws it, not one of Python.
_SIZES = re.compile(
    r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)\. Received data size doesn't match expected size"
)
_COLLECTIVES_FILE = re.compile(r"/torch/distributed/distributed_c10d\.py$")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnd:
    """The end of a worker: what is known of it, and whether an exception that ended it is."""

    evidence: FailureEvidence
    has_exception: bool = False

    @property
    def signal_name(self) -> str:
        """The signal that ended the worker, or the program that a shell ran as the worker; "" for none."""
        evidence = self.evidence
        if evidence.signal_name is not None:
            return evidence.signal_name
        return signal_of_program(evidence) or next(
            (name for name, code in _SHELL_SIGNALS.items() if evidence.exit_code == code and self._shell_says(name)), ""
        )

    def _shell_says(self, name: str) -> bool:
        if name == "SIGKILL" and self._has_oom_kill:
            return True
        word, tail = _SHELL_WORDS.get(name), self.evidence.stderr_tail
        return word is not None and re.search(rf"(?m)(?:: line \d+: +\d+ |^){word}\b", tail) is not None

    @property
    def _has_oom_kill(self) -> bool:
        return self.evidence.memory is not None and self.evidence.memory.oom_kills > 0

    def is_killed(self, name: str) -> bool:
        """Return whether this signal ended it, and it left no exception."""
        return not self.has_exception and self.signal_name == name


def find_shell_code(tail: str) -> int | None:
    """Return the exit code of a command of which bash says, close to the end, that a signal ended it; None for none.

    A TERM is what a stop sends, so it does not count.
    """
    near = "\n".join(tail.rstrip().split("\n")[-1 - WRAPPERS_LINES :])
    words = {word: name for name, word in _SHELL_WORDS.items() if name != "SIGTERM"}
    found = re.findall(rf"(?m): line \d+: +\d+ ({'|'.join(words)})\b", near)
    return _SHELL_SIGNALS[words[found[-1]]] if found else None


def signal_of_program(evidence: FailureEvidence) -> str:
    """Return the signal that ended a program which a Python script ran and whose end it passed on; "" for none."""
    numbers = {int(signal.Signals[name]): name for name in _PYTHON_SIGNALS}
    if evidence.signal_name is not None or not evidence.exit_code:
        return ""
    if not evidence.written_by:
        return numbers.get(256 - evidence.exit_code, "")
    if evidence.failure_class == FailureClass.EXIT_CODE.value:
        chain = parse_traceback(evidence.traceback)
        text = chain[-1].text if chain and chain[-1].short_type == "SystemExit" else ""
        return numbers.get(-int(text), "") if re.fullmatch(r"-\d{1,3}", text) else ""
    found = _CALLED.match(evidence.message.strip())
    if found is None:
        return ""
    by_code = {str(code): name for name, code in _SHELL_SIGNALS.items()}
    return found[1] or by_code.get(found[2], "")


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return "" if found is None else _line_at(text, found.start()).strip()


def _line_at(text: str, start: int) -> str:
    """Return the rest of a line, with the last error of NCCL in the lines behind it."""
    end = text.find("\n", start)
    line = text[start : end if end >= 0 else None]
    block = _NCCL_BLOCK.search(text, start)
    return text[start : block.end()] if block is not None and block.start() < start + len(line) else line


def _killed(end: WorkerEnd) -> str:
    """Return by which signal the worker was killed, or the program that it ran."""
    return f"{'' if end.evidence.signal_name is not None else 'its program was '}killed by {end.signal_name}"


def _say_exit(end: WorkerEnd) -> str:
    evidence = end.evidence
    tail = evidence.stderr_tail
    dumped = _DUMPED_LATER.findall(tail) if evidence.exit_code == 1 and ends_with_fault(tail) else []
    if dumped:
        return f"faulthandler.dump_traceback_later ended it, after a timeout of {dumped[-1]}"
    return text_of_exit(evidence) or find_reason(tail) or f"exit code {evidence.exit_code}"


def text_of_exit(evidence: FailureEvidence) -> str:
    """Return the text that `sys.exit` was given, "" if it was given a number or the worker ended in another way."""
    if evidence.written_by != "bootstrap" or evidence.failure_class != FailureClass.EXIT_CODE.value:
        return ""
    chain = parse_traceback(evidence.traceback)
    if not chain or chain[-1].short_type != "SystemExit" or re.fullmatch(r"-?\d*", chain[-1].text):
        return ""
    return evidence.message


def _say_message(end: WorkerEnd) -> str:
    return end.evidence.message or "it could not be started"


def _tell_nothing(_: WorkerEnd) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRule:
    """A rule for ends of processes: its name and reason for people, its class, and when it holds."""

    name: str
    reason: str
    failure_class: FailureClass
    holds: Callable[[WorkerEnd], bool]
    say: Callable[[WorkerEnd], str] = _killed
    tell: Callable[[WorkerEnd], str] = _tell_nothing


def _is_oom_by_cgroup(end: WorkerEnd) -> bool:
    memory = end.evidence.memory
    return end.is_killed("SIGKILL") and memory is not None and memory.oom_kills > 0


def _is_oom_by_host(end: WorkerEnd) -> bool:
    # The node's counter has the kills of other jobs' cgroups too: it counts only where the own cgroup is not known.
    evidence = end.evidence
    return end.is_killed("SIGKILL") and evidence.memory is None and evidence.host_oom_kills > 0


def _say_oom(end: WorkerEnd) -> str:
    return f"killed by the out-of-memory killer: {_tell_oom(end)}"


def _tell_oom(end: WorkerEnd) -> str:
    return tell_memory(end.evidence) or UNKNOWN_USE


def _tell_host_oom(end: WorkerEnd) -> str:
    return tell_host_oom(end.evidence)


def _logs(pattern: re.Pattern[str]) -> Callable[[WorkerEnd], bool]:
    return lambda end: end.is_killed("SIGABRT") and pattern.search(end.evidence.stderr_tail) is not None


def _lost_before(tail: str) -> bool:
    """Return whether NCCL's watchdog had found a broken connection before it said that something timed out."""
    lost, timed_out = _NCCL_LOST.search(tail), _TIMEOUTS.search(tail)
    return lost is not None and timed_out is not None and lost.start() < timed_out.start()


def _says(pattern: re.Pattern[str]) -> Callable[[WorkerEnd], str]:
    return lambda end: _without_stamp(_first(pattern, end.evidence.stderr_tail))


def _without_stamp(line: str) -> str:
    """Return a line without the stamp of torch's log or of a C++ exception, and without the group that torch names."""
    line = re.sub(r"^(?:\[rank\d+\]:)?(?:\[[^\]]*\] ?|what\(\): *)", "", line)
    return re.sub(r"^(?:\[(?:PG|Rank) [^\]]*\] ?)+", "", line).strip()


def _logs_cuda(failure_class: FailureClass) -> EndRule:
    pattern = re.compile(_LOGGED + f"(?:{_CUDA[failure_class]})")
    return EndRule(
        name=f"abort by an error of CUDA: {failure_class.value.removeprefix('cuda_').replace('_', ' ')}",
        reason="SIGABRT, and torch's log or the C++ exception says which error of CUDA it was",
        failure_class=failure_class,
        holds=_logs(pattern),
        say=_says(pattern),
    )


def _say_abort(end: WorkerEnd) -> str:
    tail = end.evidence.stderr_tail
    starts = [0, *(found.end() for found in re.finditer("\n", tail))]
    lines = [_line_at(tail, start).strip() for start in starts if _ABORT_LINES.match(tail, start)]
    told = [line for line in lines if not line.startswith("terminate called")] or lines
    return f"{_killed(end)}: {_without_stamp(told[0])}" if told else _killed(end)


def _tell_sizes(end: WorkerEnd) -> str:
    """Return what did not fit in which collective, if the stack has it."""
    tail = end.evidence.stderr_tail
    frames = (frame for frame in parse_fault(tail) if _COLLECTIVES_FILE.search(frame.file))
    called = next((f"{frame.function} " for frame in frames), "a collective ")
    if (found := _SIZES.search(tail)) is None:
        return ""
    sizes = f"in {called}another rank sent {found[1]} bytes, and it expected {found[2]} at most"
    return f"{sizes}: the ranks' tensors differ in size or type"


def _is_shared_memory_full(end: WorkerEnd) -> bool:
    return end.is_killed("SIGBUS") and end.evidence.full("/dev/shm") is not None


_OWN_FAULTS = {
    "SIGILL": "an instruction that this processor does not have",
    "SIGFPE": "an integer division by zero, or the like, in native code",
    "SIGXCPU": "the limit of CPU time (ulimit -t)",
    "SIGXFSZ": "the limit of a file's size (ulimit -f)",
    "SIGSYS": "a system call that is not allowed here",
    "SIGPIPE": "written to a pipe or connection that nobody reads any more",
}


def _tell_signal(end: WorkerEnd) -> str:
    if end.signal_name == "SIGKILL" and end.evidence.host_oom_kills:
        return f"{_tell_host_oom(end)}, none of them in this cgroup"
    return _OWN_FAULTS.get(end.signal_name, "")


RULES_FOR_ENDS: tuple[EndRule, ...] = (
    EndRule(
        name="could not be started",
        reason="there is no process, or the worker's bootstrap says that there was nothing to run",
        failure_class=FailureClass.START_FAILED,
        holds=lambda end: not end.evidence.is_started or end.evidence.failure_class == "start_failed",
        say=_say_message,
    ),
    EndRule(
        name="survived KILL",
        reason="the process was still there some time after the agent's KILL",
        failure_class=FailureClass.UNKILLABLE,
        holds=lambda end: end.evidence.has_survived_kill,
        say=lambda _: "still there after KILL",
    ),
    EndRule(
        name="exception",
        reason="an exception was recorded, or ends its output: the rules for exceptions decide",
        failure_class=FailureClass.EXCEPTION,
        holds=lambda end: end.has_exception,
        say=_say_message,
    ),
    EndRule(
        name="stopped by its agent",
        reason="the signal that ended it is the one that its agent had sent",
        failure_class=FailureClass.TORN_DOWN,
        holds=lambda end: bool(end.evidence.sent_signal) and end.signal_name == end.evidence.sent_signal,
        say=lambda end: f"stopped by its agent with {end.signal_name}",
    ),
    EndRule(
        name="out of memory",
        reason="SIGKILL, and its memory cgroup counts a kill for memory since the start of the attempt",
        failure_class=FailureClass.OUT_OF_MEMORY,
        holds=_is_oom_by_cgroup,
        say=_say_oom,
        tell=_tell_oom,
    ),
    EndRule(
        name="out of memory of the node",
        reason="SIGKILL, its memory cgroup cannot be read, and the node counts a kill for memory meanwhile",
        failure_class=FailureClass.OUT_OF_MEMORY,
        holds=_is_oom_by_host,
        say=lambda _: "killed by SIGKILL, probably by the out-of-memory killer",
        tell=_tell_host_oom,
    ),
    EndRule(
        name="segmentation fault",
        reason="SIGSEGV",
        failure_class=FailureClass.SEGMENTATION_FAULT,
        holds=lambda end: end.is_killed("SIGSEGV"),
        say=lambda end: f"{_killed(end)}: a segmentation fault",
    ),
    EndRule(
        name="shared memory full",
        reason="SIGBUS, and nothing is free in /dev/shm",
        failure_class=FailureClass.SHARED_MEMORY_FULL,
        holds=_is_shared_memory_full,
        say=lambda end: f"{_killed(end)}: nothing is free in /dev/shm",
    ),
    EndRule(
        name="bus error",
        reason="SIGBUS",
        failure_class=FailureClass.BUS_ERROR,
        holds=lambda end: end.is_killed("SIGBUS"),
        say=lambda end: f"{_killed(end)}: a bus error",
    ),
    *(_logs_cuda(failure_class) for failure_class in _CUDA),
    EndRule(
        name="abort by tensors of different sizes",
        reason="SIGABRT, and gloo says that another rank sent more in a collective than this one has room for",
        failure_class=FailureClass.ABORTED,
        holds=_logs(_SIZES),
        say=_says(_SIZES),
        tell=_tell_sizes,
    ),
    EndRule(
        name="abort by a timed-out collective",
        reason="SIGABRT, and the watchdog of NCCL says that a collective timed out, and not before that a peer is lost",
        failure_class=FailureClass.COLLECTIVE_TIMEOUT,
        holds=lambda end: _logs(_TIMEOUTS)(end) and not _lost_before(end.evidence.stderr_tail),
        say=_says(_TIMEOUTS),
    ),
    EndRule(
        name="abort by a lost peer",
        reason="SIGABRT, and torch's log says that a connection to another rank broke",
        failure_class=FailureClass.PEER_LOST,
        holds=_logs(_LOST),
        say=_says(_LOST),
    ),
    EndRule(
        name="abort",
        reason="SIGABRT: an assertion, a C++ exception that nothing caught, a corrupt heap",
        failure_class=FailureClass.ABORTED,
        holds=lambda end: end.is_killed("SIGABRT"),
        say=_say_abort,
    ),
    EndRule(
        name="signal",
        reason="any other signal",
        failure_class=FailureClass.SIGNAL,
        holds=lambda end: bool(end.signal_name),
        tell=_tell_signal,
    ),
    EndRule(
        name="exit code",
        reason="an exit code, and no exception",
        failure_class=FailureClass.EXIT_CODE,
        holds=lambda _: True,
        say=_say_exit,
    ),
)
