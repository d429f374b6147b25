"""Reads the traceback that Python printed: its chain of exceptions, and the innermost frame of the user's own code.

A traceback is read line by line and never evaluated; any text gives a result, at worst an empty one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from posixpath import dirname, relpath
from textwrap import dedent

CAUSE = "The above exception was the direct cause of the following exception:"
CONTEXT = "During handling of the above exception, another exception occurred:"
LAUNCHERS_ERROR = "ChildFailedError"  # of torchrun
REMOTE_TRACEBACKS = ("_RemoteTraceback", "RemoteTraceback")  # of multiprocessing and concurrent.futures
_HEADS = ("Traceback (most recent call last):", "Exception Group Traceback (most recent call last):")
_FRAME = re.compile(r'(?:  ?|> )File "([^"\n]{1,4096})", line (\d{1,9})(?:, in (.{1,500}))?$')  # "> " by loguru
_THREAD_FRAME = re.compile(r'  File "([^"\n]{1,4096})", line (\d{1,9}) in (.{1,500})$')  # as faulthandler prints it
_RAISED = re.compile(r"([^\W\d][\w.]{0,300}|[^\W\d][\w.]{0,200}\.<locals>\.\w{1,100})(?:: (.*))?$")
_OTHER_THREAD = re.compile(r"Thread 0x[0-9a-f]{1,16}\b.{0,100}\(most recent call first\):$")
# What torch passes on of another process: torch/_utils.py, and torch/multiprocessing/spawn.py.
RELAYED = re.compile(r"\s*(?:Caught \S+ |-- Process \d+ terminated with the following error:)")
# What its launcher tells of the worker that failed first: torch/distributed/elastic/multiprocessing/errors/__init__.py.
_LAUNCHED = re.compile(r"\nRoot Cause \(first observed failure\):\n(?s:.*?)\n  traceback : (Traceback(?s:.*?))\n=+")
_REMOTE = re.compile(r"[\w.]{0,100}\bRemoteTraceback:|[\w.]{0,100}\b_RemoteTraceback:")
# What torch's excepthook puts before each line (torch/distributed/distributed_c10d.py, 2.13); its log has `[rank0]:[W`.
_RANK_PREFIX = re.compile(r"^\[rank\d{1,9}\]:(?: |$)")
_THREAD = re.compile(r"Exception in thread (.{1,200}):$")  # before the traceback (threading.excepthook)
_GROUP_MARGIN = re.compile(r"^(?:  )+[+|] ?")
# Between the exceptions of a group, and behind the last one, without the margin (traceback.TracebackException).
_MEMBER = re.compile(r"(-\+)?-{4,} (?:\d{1,9}|\.\.\.) -{4,}$")
_GROUP_END = re.compile(r"-{20,}$")
# Code that is not the user's: Python's own, installed packages, torch in a checkout, and this package.
_INSTALLED = r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|/python\d\.\d+/|^<"
_FOREIGN = re.compile(
    rf"{_INSTALLED}|/torch/(?:_\w+|distributed|nn|utils|autograd|cuda|"
    r"optim|multiprocessing|serialization)\b|/hpc_elastic/(?:worker|memory|launch|last_word|failures|rundir)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A line of a traceback: the file as printed, the line's number, the function, and the line's source."""

    file: str
    line: int
    function: str
    source: str = ""

    @property
    def is_users(self) -> bool:
        """Whether the file is the user's own: no installed package, not Python's library, torch or this package."""
        return not _FOREIGN.search(self.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """An exception of a chain.

    `type_name` is as printed, such as `torch.distributed.DistNetworkError`; `link` says how it belongs to the one
    before it in the chain: `cause`, `context`, or "" for the first. `thread` is the name of the thread that the chain
    ended, as far as Python says so: such an exception does not end the process. Only the first of a chain has it.
    `ended_process` says that torch's excepthook printed it, which Python calls for an exception that ends a process: a
    handler that prints an exception and goes on does not.
    """

    type_name: str
    text: str
    frames: tuple[Frame, ...] = ()
    link: str = ""
    thread: str = ""
    ended_process: bool = False

    @property
    def short_type(self) -> str:
        """The type's name without its module, as in error files."""
        return self.type_name.rpartition(".")[2]

    @property
    def is_group(self) -> bool:
        """Whether it is an ExceptionGroup; the first of its exceptions is before it in the chain, if it was printed."""
        return self.short_type.endswith("ExceptionGroup")

    @property
    def innermost(self) -> Frame | None:
        """The frame in which it was raised, as far as Python knows."""
        return self.frames[-1] if self.frames else None

    @property
    def was_raised_by_user(self) -> bool:
        """Whether a `raise` in the user's own code made it, and no code that torch compiled."""
        frame = self.innermost
        return frame is not None and frame.is_users and frame.source.split(" ")[0] == "raise"


@dataclass(slots=True)
class _Block:
    """The exception that is being read."""

    link: str
    thread: str = ""
    has_rank: bool = False  # its lines begin with the rank, as torch's excepthook prints them
    frames: list[Frame] = field(default_factory=list)
    raised: str | None = None  # the line with type and text, once it was read
    more: list[str] = field(default_factory=list)

    @property
    def is_quoting(self) -> bool:
        """Whether the text quotes another process's traceback, as multiprocessing and concurrent.futures do."""
        return sum(line.startswith('"""') for line in self.more) == 1

    def finish(self) -> Raised | None:
        if self.raised is None:
            return None
        found = _RAISED.match(self.raised)
        if found is None:
            return None
        text = "\n".join([found[2] or "", *self.more]).strip("\n ")
        frames = tuple(self.frames)
        return Raised(
            type_name=found[1],
            text=text,
            frames=frames,
            link=self.link,
            thread=self.thread,
            ended_process=self.has_rank,
        )


class _Groups:
    """The groups of exceptions that are being read: the first of each is kept, as what the group was raised for."""

    def __init__(self) -> None:
        self.is_at_first_member = False
        self._open: list[Raised] = []
        self._skipped: int | None = None  # while further exceptions are passed over: how many groups deep

    def read(self, line: str, block: _Block | None, chains: list[list[Raised]]) -> bool:
        """Read a line, after which `block` is over, if it is of a group's frame or an exception to pass over."""
        member = _MEMBER.match(line)
        self.is_at_first_member = False
        if self._skipped is not None:
            if member and member[1]:
                self._skipped += 1
            elif _GROUP_END.match(line):
                self._skipped = self._skipped - 1 if self._skipped else None
            return True
        if member and member[1] and block is not None:
            raised = block.finish()
            if raised is None or not raised.is_group:
                return False
            self._open.append(raised)
            self.is_at_first_member = True
            return True
        if self._open and (member or _GROUP_END.match(line)):
            _close(block, chains)
            self._close_group(chains)
            self._skipped = 0 if member else None
            return True
        return False

    def finish(self, chains: list[list[Raised]]) -> None:
        """Close the groups whose end is missing."""
        while self._open:
            self._close_group(chains)

    def _close_group(self, chains: list[list[Raised]]) -> None:
        group = self._open.pop()
        if not chains:
            chains.append([])
        chains[-1].append(replace(group, link="cause" if chains[-1] else group.link))


def parse_traceback(text: str) -> tuple[Raised, ...]:
    """Return the chain of exceptions of the last traceback in a text, in the order in which they were raised."""
    chains = parse_tracebacks(text)
    return chains[-1] if chains else ()


def parse_tracebacks(text: str) -> tuple[tuple[Raised, ...], ...]:
    """Return the chains of all tracebacks in a text, such as the end of a log, from the first to the last."""
    chains: list[list[Raised]] = []
    block: _Block | None = None
    link, before = "", ""
    groups = _Groups()
    for line, has_rank in _lines(text):
        stripped, thread = line.strip(), _THREAD.match(before)
        before = line
        if block is not None and block.has_rank and block.raised is not None and stripped and not has_rank:
            _close(block, chains)  # what follows is not of the exception
            block = None
        if groups.read(line, block, chains):
            block, link = None, "context" if groups.is_at_first_member else ""
        elif stripped in (CAUSE, CONTEXT):
            _close(block, chains)
            block, link = None, "cause" if stripped == CAUSE else "context"
        elif block is not None and block.is_quoting:
            _read(block, line)
        elif line.startswith(_HEADS):
            _close(block, chains)
            if not link:
                chains.append([])
            name = thread[1] if thread and not link else ""
            block, link = _Block(link=link if chains and chains[-1] else "", thread=name, has_rank=has_rank), ""
        elif block is not None:
            _read(block, line)
        elif _FRAME.match(line):  # a syntax error, or the rest of a traceback whose beginning is cut off
            chains.append([])
            block, link = _Block(link="", has_rank=has_rank), ""
            _read(block, line)
        elif (link or _REMOTE.match(line)) and _RAISED.match(
            line
        ):  # an exception that has no frames has no head either
            if not link:
                chains.append([])
            block, link = _Block(link=link, raised=line, has_rank=has_rank), ""
    _close(block, chains)
    groups.finish(chains)
    return tuple(tuple(chain) for chain in chains if chain)


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each line without what stands before those of a traceback, and whether that was torch's rank."""
    for line in text.split("\n"):
        without = _RANK_PREFIX.sub("", line)
        yield _GROUP_MARGIN.sub("", without), len(without) != len(line)


def _close(block: _Block | None, chains: list[list[Raised]]) -> None:
    raised = block.finish() if block is not None else None
    if raised is not None:
        if not chains:
            chains.append([])
        chains[-1].append(raised)


def _read(block: _Block, line: str) -> None:
    if block.raised is not None:
        block.more.append(line)
        return
    found = _FRAME.match(line)
    if found:
        function = found[3] or ""
        block.frames.append(Frame(file=found[1], line=int(found[2]), function=function))
    elif line[:1] not in ("", " "):
        block.raised = line
    elif line.startswith("    ") and block.frames and not block.frames[-1].source:
        last = block.frames[-1]
        block.frames[-1] = Frame(file=last.file, line=last.line, function=last.function, source=line.strip())


def parse_fault(text: str) -> tuple[Frame, ...]:
    """Return the frames of the thread that failed, from the outermost in, of what faulthandler printed.

    A dump after a time has no such thread; then it is the main thread, which stands last.
    """
    current: list[Frame] = []
    last: list[Frame] = []
    frames: list[Frame] | None = None
    for line, _ in _lines(text):
        if line.startswith(("Current thread ", "Stack (most recent call first):")):
            frames = current = []
        elif _OTHER_THREAD.match(line):
            frames = last = []
        elif frames is not None:
            found = _THREAD_FRAME.match(line)
            if found is None:
                frames = None
            else:
                frames.append(Frame(file=found[1], line=int(found[2]), function=found[3]))
    return tuple(reversed(current or last))


def ends_with_fault(text: str) -> bool:
    """Return whether the last line of a text is one of a stack that faulthandler printed."""
    return _THREAD_FRAME.match(text.rstrip("\n").rpartition("\n")[2]) is not None


def innermost_of_user(chain: tuple[Raised, ...], chosen: Raised) -> Frame | None:
    """Return the innermost frame of the user's own code at which an exception of a chain was raised.

    An exception that another process raised (a data loader's worker, a pool) has that process's traceback in its
    text, or in that of the exception before it; then the frame is the one there. One of torch.compile names the line
    that it compiled.
    """
    if chosen.type_name.startswith("torch._dynamo.") and (frame := _last_of_user(_compiled(chosen.text))) is not None:
        return frame
    remote = [raised for raised in chain if raised.short_type in REMOTE_TRACEBACKS]
    relayed = [chosen.text] if RELAYED.match(chosen.text) else []  # other texts may quote anything
    for text in (*relayed, *(raised.text for raised in remote)):
        inner = parse_embedded(text)
        frame = _last_of_user(inner)
        if frame is not None:
            return frame
    # What a signal handler raises inside a library has that library's frames only; what followed has all.
    later = chain[chain.index(chosen) :] if chosen in chain else (chosen,)
    found = next((frame for raised in later if (frame := _last_of_user(raised.frames)) is not None), None)
    return found or next((frame for raised in later if (frame := _last_beside_script(raised.frames)) is not None), None)


def parse_embedded(text: str) -> tuple[Frame, ...]:
    """Return the frames of a traceback inside an exception's text, such as that of a data loader's worker."""
    if "Traceback (most recent call last):" not in text:
        return ()
    return _frames_in(text)


def _compiled(text: str) -> tuple[Frame, ...]:
    """Return the frames of the code that torch.compile worked on (torch/_dynamo/exc.py, augment_exc_message)."""
    return _frames_in(text.partition("\nfrom user code:\n ")[2])


def _frames_in(text: str) -> tuple[Frame, ...]:
    found = (_FRAME.match(line) for line in text.split("\n"))
    return tuple(Frame(file=each[1], line=int(each[2]), function=each[3] or "") for each in found if each)


def parse_launched(raised: Raised) -> tuple[Raised, ...]:
    """Return the exceptions of the worker that failed first, as a ChildFailedError of torch's launcher quotes them.

    () if it is no such error, or if that worker left no error file.
    """
    found = _LAUNCHED.search(raised.text) if raised.short_type == LAUNCHERS_ERROR else None
    return parse_traceback(dedent(f"  {found[1]}")) if found else ()


def _last_of_user(frames: tuple[Frame, ...]) -> Frame | None:
    return next((frame for frame in reversed(frames) if frame.is_users), None)


def _last_beside_script(frames: tuple[Frame, ...]) -> Frame | None:
    """Return the innermost frame in the folder of the script, or below, of a project that looks like torch's code."""
    script = next((frame for frame in frames if frame.function == "<module>"), None)
    if script is None or re.search(_INSTALLED, script.file):
        return None
    own = (frame for frame in reversed(frames) if _is_below(frame.file, dirname(script.file)))
    return next((frame for frame in own if not re.search(_INSTALLED, frame.file)), None)


def name_frame(frame: Frame | None, outermost: Frame | None, directory: str = "") -> str:
    """Return a frame as a person names it, such as `train.py:88 in step`; "" for None.

    The file is named from the worker's directory if it is below that, else from the outermost frame's.
    """
    if frame is None:
        return ""
    bases = [directory, dirname(outermost.file) if outermost is not None else ""]
    name = next((relpath(frame.file, base) for base in bases if base and _is_below(frame.file, base)), frame.file)
    where = f"{name}:{frame.line}"
    return where if frame.function in ("", "<module>") else f"{where} in {frame.function}"


def _is_below(file: str, directory: str) -> bool:
    return file.startswith(directory.rstrip("/") + "/")
