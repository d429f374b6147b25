"""File calls and imports of torch on a node, read from what strace has written about every process of it.

A file call is a system call that takes a path, as `strace --trace=%file` has it. Theory of operation. strace follows
the node's slurmd and all it starts. A process is what its latest exec says; one that was forked and has not called exec
is what its parent is, but a fork of the fork server that comes to the script's first line is a worker.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

# strace needs these for the tree of processes; none takes a path, but for exec.
OPTIONS = ("-f", "-qq", "-ttt", "-y", "-s", "300", "--pidns-translation", "--signal=none", "--trace=%file,%process")
NOT_OF_FILES = frozenset(
    (
        *("clone", "clone3", "fork", "vfork", "exit", "exit_group", "wait4", "waitid", "waitpid"),
        *("kill", "tkill", "tgkill", "pidfd_open", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo"),
        "arch_prctl",
    )
)
# The words of a command line, and what such a process is.
PROGRAMS = (
    ("hpc_elastic.agent.main", "agent"),
    ("hpc_elastic.agent.guard.process", "guard"),
    ("hpc_elastic.worker.fork_server", "fork server"),
    ("hpc_elastic.worker.store_host", "store host"),
    ("hpc_elastic.worker.bootstrap", "worker"),
    ("/torchrun", "agent"),
    ("training.py", "worker"),
)
OTHERS = "Slurm and the script"
_LINE = re.compile(r"(\d+) +(\d+\.\d+) (?:<\.\.\. )?(\w+)(.*)")
_CHILD = re.compile(r"= \d+(?: /\* (\d+) in strace's PID NS \*/)?$")
_TORCH = re.compile(r'"[^"]*/torch/lib/libtorch_cpu\.so"')
_ON_PROC = re.compile(r'"/proc/|^\(\d+</proc\b')  # -y names what a descriptor is of
_MARK = re.compile(r'/mark-([a-z-]+)"')


@dataclass(frozen=True)
class Call:
    """A line of strace's; `is_new` is false for the second part of a call that was written in two."""

    pid: int
    at: float
    name: str
    rest: str
    is_new: bool


@dataclass
class Process:
    """What is known of one process or thread."""

    parent: int | None = None
    programs: list[tuple[float, str]] = field(default_factory=list)  # when, and its command line
    marks: dict[str, float] = field(default_factory=dict)
    has_torch: bool = False


@dataclass(frozen=True)
class Restart:
    """What one node did from a fault until its worker's first step: file calls by the kind of the process."""

    outside: Mapping[str, int]  # up to the script's first line, and of all other processes
    in_script: int  # from its first line to its first step
    on_proc: int  # of those outside, but for OTHERS, those on /proc, which is memory on every node

    @property
    def total_outside(self) -> int:
        """Without those of Slurm and of the batch script, which go on all the time."""
        return sum(number for kind, number in self.outside.items() if kind != OTHERS)


class Trace:
    """All that strace wrote about a node."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._calls = list(parse(lines))
        self._processes: dict[int, Process] = {}
        for call in self._calls:
            self._learn(call)

    def fault(self) -> float | None:
        """When a process of this node raised, None if none did."""
        return min(self._marked("raises"), default=None)

    def imports_of_torch(self) -> Counter[str]:
        """How many processes have imported torch, by their kind; a fork of one that has is none."""
        return Counter(self._kind(pid) for pid, process in self._processes.items() if process.has_torch)

    def file_calls_to_first_step(self) -> Restart:
        """Of the cold start."""
        return self._count(0.0)

    def file_calls_of_restart(self, fault: float) -> Restart:
        """From a fault until the first step of the worker that is started after it."""
        return self._count(fault)

    def _count(self, begin: float) -> Restart:
        end = min(at for at in self._marked("stepped") if at > begin)
        outside: Counter[str] = Counter()
        in_script = on_proc = 0
        for call in self._calls:
            if not begin < call.at <= end or not call.is_new or call.name in NOT_OF_FILES:
                continue
            first_line = self._first_line(call.pid)
            if first_line is not None and begin < first_line <= call.at:
                in_script += 1
            else:
                kind = self._kind(call.pid, call.at)
                outside[kind] += 1
                on_proc += kind != OTHERS and bool(_ON_PROC.search(call.rest))
        return Restart(dict(outside), in_script, on_proc)

    def _marked(self, name: str) -> Iterator[float]:
        return (process.marks[name] for process in self._processes.values() if name in process.marks)

    def _learn(self, call: Call) -> None:
        process = self._processes.setdefault(call.pid, Process())
        if call.name in ("execve", "execveat") and call.is_new:
            process.programs.append((call.at, call.rest))
        elif call.name in ("clone", "clone3", "fork", "vfork") and (found := _CHILD.search(call.rest)):
            child = int(found.group(1) or found.group(0).split()[1])
            self._processes.setdefault(child, Process()).parent = call.pid
        elif found := _MARK.search(call.rest):
            process.marks.setdefault(found.group(1), call.at)
        elif _TORCH.search(call.rest) and call.name.startswith("open") and "ENOENT" not in call.rest:
            process.has_torch = True

    def _first_line(self, pid: int) -> float | None:
        """When the script began in this process, or in the one that it is a thread or a child of."""
        at: int | None = pid
        while at is not None:
            process = self._processes[at]
            if "first-line" in process.marks:
                return process.marks["first-line"]
            at = None if process.programs else process.parent
        return None

    def _kind(self, pid: int, at: float = float("inf")) -> str:
        own: int | None = pid
        while own is not None:
            process = self._processes[own]
            if "first-line" in process.marks:
                return "worker"
            commands = [command for moment, command in process.programs if moment <= at]
            for command in reversed(commands):
                for word, kind in PROGRAMS:
                    if word in command:
                        return kind
            own = process.parent
        return OTHERS


def parse(lines: Iterable[str]) -> Iterator[Call]:
    """The calls of a trace; passes over what is no call."""
    for line in lines:
        if found := _LINE.match(line.rstrip("\n")):
            pid, at, name, rest = found.groups()
            yield Call(int(pid), float(at), name, rest, "<... " not in line[: found.start(4)])
