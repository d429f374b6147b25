"""Reads the stacks that faulthandler writes, and groups equal ones over ranks; pure.

The format is that of `_Py_DumpTracebackThreads` (CPython's Python/traceback.c): threads from the newest to the oldest,
which is the main thread, each from the innermost call on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

NO_STACK = "no stack: "  # begins the text of a rank that wrote none, followed by why
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-fA-F]+.*\(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
# Paths of code that is not the user's own: installed packages, the standard library, and this package's bootstrap.
_NOT_USERS = re.compile(
    r"<frozen |/(site|dist)-packages/|/lib(64)?/python3(\.\d+)?/|/hpc_elastic/(launch\.py$|worker/|rundir/)|^<string>$"
)
_DISTRIBUTED = "/torch/distributed/"
_WRAPPERS = frozenset({"wrapper", "_fn", "inner", "<lambda>", "<module>"})
_SYNCHRONIZE = re.compile(r"/torch/cuda/(__init__|streams)\.py$")
_BACKWARD = ("/torch/autograd/", "/torch/_tensor.py")
_MOST_NODES = 3  # that a sentence names


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFrame:
    """One call of a stack."""

    path: str
    line: int
    function: str

    @property
    def place(self) -> str:
        """The file's name without its folder, and the line: `train.py:88`."""
        return f"{self.path.rpartition('/')[2]}:{self.line}"

    @property
    def is_users(self) -> bool:
        """Whether it is of the user's own code."""
        return _NOT_USERS.search(self.path) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStack:
    """What one rank wrote when it was asked for its stacks; or, after `NO_STACK`, why it wrote nothing."""

    rank: int
    node: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Where a rank is: the function, `place` in the user's own code, and whether it waits for other ranks there.

    A rank that wrote no stack has neither function nor place; `trouble` says why.
    """

    function: str = ""
    place: str = ""
    users_function: str = ""
    is_waiting: bool = False
    trouble: str = ""

    @property
    def frame(self) -> str:
        """The innermost frame of the user's own code: `train.py:88 in step`; empty if there is none."""
        return f"{self.place} in {self.users_function}" if self.place else ""

    def describe(self, *, is_one: bool = True) -> str:
        """Return what the rank does, as the end of a sentence whose subject is one rank or several."""
        if self.trouble:
            return f"gave no stack: {self.trouble}"
        where = f" ({self.place})" if self.place else ""
        if self.is_waiting:
            return f"wait{'s' if is_one else ''} in {self.function}{where}"
        if not self.function:
            return f"{'has' if is_one else 'have'} an empty stack"
        if self.function == "<module>" and self.place:  # a script's own lines
            return f"{'is' if is_one else 'are'} at {self.place}"
        return f"{'is' if is_one else 'are'} in {self.function}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackGroup:
    """Ranks that are at the same place, in order, and their nodes."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    where: Whereabouts

    def sentence(self, *, of_nodes: int) -> str:
        """Return the group as a sentence without its end, such as `5 ranks on node17 are in read (data.py:31)`.

        Args:
            of_nodes: the number of all nodes; a group that is on each of them names none.
        """
        count = len(self.ranks)
        subject = f"rank {self.ranks[0]}" if count == 1 else f"{count} ranks"
        on = "" if len(self.nodes) >= of_nodes and count > 1 else f" on {_name(self.nodes)}"
        return f"{subject}{on} {self.where.describe(is_one=count == 1)}"


def parse_threads(text: str) -> list[list[StackFrame]]:
    """Return the threads of a faulthandler's text, each from the innermost call on; the main thread is the last one.

    Lines that are not of the format are passed over.
    """
    threads: list[list[StackFrame]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif threads and (match := _FRAME.match(line)):
            number = int(match[2]) if match[2].isdigit() else 0
            threads[-1].append(StackFrame(path=match[1], line=number, function=match[3]))
    return threads


def find_whereabouts(text: str) -> Whereabouts:
    """Return where a rank's main thread is, from what it wrote: see `RankStack.text`."""
    trouble = next((line[len(NO_STACK) :] for line in text.splitlines() if line.startswith(NO_STACK)), None)
    if trouble is not None:
        return Whereabouts(trouble=trouble)
    threads = parse_threads(text)
    if not threads or not threads[-1]:
        return Whereabouts(trouble="" if threads else "what it wrote is no stack")
    main = threads[-1]
    users = next((frame for frame in main if frame.is_users), None)
    place, users_function = (users.place, users.function) if users else ("", "")
    waits_in = _waits_in(main)
    return Whereabouts(
        function=waits_in or main[0].function,
        place=place,
        users_function=users_function,
        is_waiting=waits_in is not None,
    )


def _waits_in(frames: Sequence[StackFrame]) -> str | None:
    """Return the function in which the frames wait for other ranks, None if they do not.

    It is the innermost one of torch.distributed, in front of the user's own code; or the backward pass, in which
    DistributedDataParallel waits in C++ for its all_reduce.
    """
    for frame in frames:
        if frame.is_users:
            return None
        if _DISTRIBUTED in frame.path and frame.function not in _WRAPPERS:
            return frame.function
        if any(part in frame.path for part in _BACKWARD):
            return "backward"
        if _SYNCHRONIZE.search(frame.path) and frame.function in ("synchronize", "wait"):
            return frame.function
    return None


def find_waiting(where: Mapping[int, Whereabouts], world_size: int) -> frozenset[int]:
    """Return the ranks that most likely wait for others, of ranks that have all stalled.

    They are those in a collective. Of the rest, the larger half too if it is at one place and the others are not: a
    rank that waits for a GPU, and so for a collective of NCCL, is somewhere in the user's own code. In a world of one
    there is nobody to wait for but its own GPU.
    """
    if world_size == 1:
        return frozenset()
    waiting = frozenset(rank for rank, at in where.items() if at.is_waiting)
    places = Counter(at for rank, at in where.items() if rank not in waiting and not at.trouble)
    others = len(where) - len(waiting)
    if places and 1 < (most := max(places.values())) < others and 2 * most > others:
        common = max(places, key=lambda at: places[at])
        waiting |= {rank for rank, at in where.items() if at == common}
    return waiting


def may_all_wait(where: Mapping[int, Whereabouts]) -> bool:
    """Return whether all these ranks may wait for another one: all are in collectives, or several at one place."""
    are_together = len(where) > 1 and len(set(where.values())) == 1 and not any(at.trouble for at in where.values())
    return are_together or all(at.is_waiting for at in where.values())


def group_stacks(stacks: Iterable[RankStack]) -> tuple[StackGroup, ...]:
    """Group ranks that are at the same place: those that wait for others last, within that small groups first.

    So the first group is what to look at first: the few that do not take part in what the many wait for.
    """
    found: dict[Whereabouts, list[RankStack]] = {}
    for stack in stacks:
        found.setdefault(find_whereabouts(stack.text), []).append(stack)
    groups = [
        StackGroup(
            ranks=tuple(sorted(stack.rank for stack in members)),
            nodes=tuple(dict.fromkeys(stack.node for stack in sorted(members, key=lambda stack: stack.rank))),
            where=where,
        )
        for where, members in found.items()
    ]
    return tuple(sorted(groups, key=lambda group: (group.where.is_waiting, len(group.ranks), group.ranks)))


def describe_groups(groups: Sequence[StackGroup]) -> str:
    """Return all groups as one line: `507 ranks wait in all_reduce (train.py:88); 5 ranks on node17 are in ...`."""
    of_nodes = len({node for group in groups for node in group.nodes})
    largest_first = sorted(groups, key=lambda group: (-len(group.ranks), group.ranks))
    return "; ".join(group.sentence(of_nodes=of_nodes) for group in largest_first)


def _name(nodes: Sequence[str]) -> str:
    if len(nodes) > _MOST_NODES:
        return f"{len(nodes)} nodes"
    return nodes[0] if len(nodes) == 1 else f"{', '.join(nodes[:-1])} and {nodes[-1]}"
