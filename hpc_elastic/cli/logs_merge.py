"""`hpc-elastic logs` over many ranks: merged by time, filtered, each line with the rank that wrote it."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from hpc_elastic.cli.log_files import check_permission
from hpc_elastic.errors import UsageError
from hpc_elastic.hostlist import name_some
from hpc_elastic.observe.dedupe import Deduper, Groups
from hpc_elastic.observe.facts import list_attempts
from hpc_elastic.observe.log_streams import AnyStream, Batch, merge, open_streams
from hpc_elastic.observe.roster import RankPlace, read_roster
from hpc_elastic.rank_set import RankSetError, format_ranks, name_ranks, parse_ranks
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.new_names import exists
from hpc_elastic.units import parse_duration

ALL = "all"
FOLLOW_WINDOW_NS = 2_000_000_000
_BUFFER_BYTES = 256 * 1024
_MOST_PREFIXES = 1000
# What may move a terminal's cursor or change its state; colours (ESC [ ... m) and tabs may stay.
_CONTROL = re.compile(rb"\x1b(?!\[[0-9;:]*m)|[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f]|\xc2[\x80-\x9f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What of which ranks is shown; `ranks` None: those of the node, those that failed, or all.

    `since_ns` is in Unix nanoseconds, `tail` a number of lines; None: no bound.
    """

    ranks: tuple[int, ...] | None
    node: str | None
    is_failed: bool
    attempt: int | None
    grep: re.Pattern[str] | None
    since_ns: int | None
    tail: int | None
    is_deduped: bool
    with_stdout: bool
    with_stderr: bool

    @property
    def last(self) -> int | None:
        """How many lines at the end of each stream are enough; None if more may be needed."""
        return None if self.grep is not None or self.is_deduped else self.tail


def parse_choice(arguments: Namespace, *, now: float) -> Choice | None:
    """Return what is asked for; None if the command line asks for nothing that needs single lines.

    Args:
        arguments: the command line.
        now: Unix seconds.

    Raises:
        UsageError: an expression, a time, a set of ranks or a number is wrong.
    """
    ranks = _ranks(arguments.rank)
    is_many = arguments.rank == ALL or (ranks is not None and len(ranks) > 1)
    wide = (arguments.failed, arguments.grep is not None, arguments.since is not None, arguments.dedupe)
    narrow = (arguments.tail is not None, arguments.stdout, arguments.stderr)
    if not (is_many or any(wide) or any(narrow) or (arguments.node is not None and arguments.rank is not None)):
        return None
    if arguments.script:
        raise UsageError("--script prints one file as it is", tip="leave the options about ranks and lines out")
    if arguments.failed and arguments.rank is not None:
        raise UsageError("--failed and --rank exclude each other", tip="ask for one of them")
    if arguments.failed and arguments.follow:
        raise UsageError("--failed shows attempts that are over, --follow one that runs", tip="ask for one of them")
    if arguments.tail is not None and arguments.tail < 0:
        raise UsageError(f"--tail is {arguments.tail}, expected a number of lines")
    if ranks is None and arguments.rank != ALL and not any(wide) and arguments.node is None:
        ranks = (0,)  # as without any option
    return Choice(
        ranks=ranks,
        node=arguments.node,
        is_failed=arguments.failed,
        attempt=arguments.attempt,
        grep=_expression(arguments.grep),
        since_ns=None if arguments.since is None else parse_since(arguments.since, now=now),
        tail=arguments.tail,
        is_deduped=arguments.dedupe,
        with_stdout=arguments.stdout or not arguments.stderr,
        with_stderr=arguments.stderr or not arguments.stdout,
    )


def _ranks(text: str | None) -> tuple[int, ...] | None:
    if text is None or text == ALL:
        return None
    try:
        ranks = parse_ranks(text)
    except RankSetError as error:
        raise UsageError(f"--rank: {error}", tip="`--rank 3`, `--rank 3,7-9` or `--rank all`") from error
    if not ranks:
        raise UsageError(f"--rank: {text!r} names no rank", tip="`--rank 3`, `--rank 3,7-9` or `--rank all`")
    return ranks


def _expression(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        tip = "it is a regular expression of Python; a backslash before . ( [ * + ? makes them plain"
        raise UsageError(f"--grep: {text!r} is no regular expression: {error}", tip=tip) from error


def parse_since(text: str, *, now: float) -> int:
    """Return the time in Unix nanoseconds that `10m` (ago), `14:30` (today) or `2026-01-31T14:30` means.

    A time without a zone is one of this machine's zone.

    Raises:
        UsageError: the text is none of these.
    """
    if ":" not in text:  # 14:30 is a time of day here, not Slurm's minutes and seconds
        with contextlib.suppress(ValueError, OverflowError):
            return int((now - parse_duration(text).total_seconds()) * 1e9)
    today = datetime.fromtimestamp(now).date().isoformat()
    is_time_of_day = re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text, re.A) is not None
    given = f"{today}T{text.zfill(5) if text.count(':') == 1 else text.zfill(8)}" if is_time_of_day else text
    try:
        moment = datetime.fromisoformat(given[:-1] + "+00:00" if given.endswith("Z") else given)
        return int(moment.astimezone(timezone.utc).timestamp() * 1e9)
    except (ValueError, OverflowError) as error:
        tip = "a duration such as 10m or 2h, a time of today such as 14:30, or 2026-01-31T14:30"
        raise UsageError(f"--since: {text!r} is no duration and no time", tip=tip) from error


def print_merged(layout: RunLayout, choice: Choice) -> int:
    """Print what the chosen ranks wrote in one attempt.

    Raises:
        UsageError: there is no such attempt, node or rank.
        FileSystemError: this user may not read some of it.
    """
    attempt, failed = _attempt(layout, choice)
    if attempt is None:
        print("no rank has failed", file=sys.stderr)
        return 0
    places = choose_places(layout, choice, attempt, failed=failed)
    if choice.is_failed:
        which = name_ranks([place.rank for place in places]) if places else "no rank"
        print(f"{which} failed in attempt {attempt}", file=sys.stderr)
    streams = open_streams(
        layout, places, with_stdout=choice.with_stdout, with_stderr=choice.with_stderr, last=choice.last
    )
    printer = LinePrinter(choice, has_prefix=len(places) > 1)
    with _without_collection():
        printer.print_batches(merge(streams))
        printer.finish()
    check_permission(streams)
    return 0


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Suspend the search for reference cycles: there are none here, and among 20,000 files' lines it takes a third."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class MergedFollower:
    """Prints the new lines of the chosen ranks again and again, from attempt to attempt."""

    def __init__(self, layout: RunLayout, choice: Choice) -> None:
        self._layout = layout
        self._choice = choice
        self._attempt = 0
        self._streams: list[AnyStream] = []
        self._printer = LinePrinter(choice, window_ns=FOLLOW_WINDOW_NS)

    def advance(self, attempts: Iterable[int], *, is_over: bool) -> bool:
        """Print what is new, given the numbers of the attempts; return whether the attempt asked for is over."""
        numbers = list(attempts)
        only = self._choice.attempt
        later = [number for number in numbers if number > self._attempt]
        if self._attempt:
            self._copy(is_last=bool(later) or is_over)
        elif later and only is None:
            later = later[-1:]
        if only is not None:
            if not self._attempt and (only in numbers or is_over):
                self._open(only)
                self._copy(is_last=is_over or max(numbers, default=0) > only)
            return max(numbers, default=0) > only
        for number in later:
            is_latest = number == later[-1]
            if is_latest and not is_over and not exists(self._layout.world(number)):
                break  # the roster follows its claim at once
            self._open(number)
            self._copy(is_last=is_over or not is_latest)
        return False

    def finish(self) -> None:
        """Print what is held back."""
        self._printer.finish()

    def _open(self, number: int) -> None:
        is_first = not self._attempt
        if not is_first:
            self._printer.finish()
            print(f"--- attempt {number} ---", file=sys.stderr, flush=True)
        places = choose_places(self._layout, self._choice, number, is_strict=is_first)
        running = {place.rank for place in places if place.attempt <= self._attempt}  # their role was not restarted
        kept = [stream for stream in self._streams if stream.is_of(running)]
        new = (place for place in places if is_first or place.rank not in running)
        self._streams = kept + self._opened(new, last=self._choice.last if is_first else None)
        self._printer.has_prefix = len(places) > 1 or self._printer.has_prefix
        self._attempt = number

    def _opened(self, places: Iterable[RankPlace], *, last: int | None) -> list[AnyStream]:
        choice = self._choice
        return open_streams(
            self._layout, places, with_stdout=choice.with_stdout, with_stderr=choice.with_stderr, last=last
        )

    def _copy(self, *, is_last: bool) -> None:
        self._printer.print_batches(merge(self._streams, is_last=is_last))
        self._printer.flush(time.time_ns())
        check_permission(self._streams)


class LinePrinter:
    """Prints chosen lines, each with its rank if there are several.

    The lines of one rank go where it wrote them, those of several ranks to standard output.
    """

    def __init__(self, choice: Choice, *, has_prefix: bool = False, window_ns: int | None = None) -> None:
        self._choice = choice
        self.has_prefix = has_prefix
        self._deduper = None if not choice.is_deduped else Deduper() if window_ns is None else Deduper(window_ns)
        self._last: deque[tuple[int, bytes]] = deque(maxlen=choice.tail)
        self._is_tailing = choice.tail is not None
        self._buffers = {1: bytearray(), 2: bytearray()}
        self._prefixes: dict[int, bytes] = {}
        self._of_several: dict[tuple[int, ...], bytes] = {}  # prefixes too
        self._time_ns = 0

    def print_batches(self, batches: Iterable[Batch]) -> None:
        """Print the lines of these batches that were asked for."""
        since_ns, grep, deduper = self._choice.since_ns, self._choice.grep, self._deduper
        for batch in batches:
            if batch.time_ns > self._time_ns:
                self._time_ns = batch.time_ns
            if since_ns is not None and batch.time_ns < since_ns:
                continue
            lines = batch.lines if grep is None else list(_matching(grep, batch.lines))
            if not lines:
                continue
            if deduper is not None:
                if batch.source.rank not in self._prefixes:
                    self._prefix(batch)
                if ready := deduper.add(self._time_ns, batch.source.rank, lines):
                    self._put_groups(ready)
            else:
                self._put(batch, lines)

    def flush(self, now_ns: int) -> None:
        """Print what need not be held back any longer; after the first call a `tail` holds nothing back."""
        if self._deduper is not None:
            self._put_groups(self._deduper.expire(now_ns))
        if self._is_tailing:
            self._is_tailing = False
            for target, line in self._last:
                self._write(target, line)
            self._last.clear()
        self._empty()

    def finish(self) -> None:
        """Print all that is held back."""
        if self._deduper is not None:
            self._put_groups(self._deduper.finish())
        self.flush(self._time_ns)

    def _put(self, batch: Batch, lines: list[bytes]) -> None:
        source = batch.source
        if not self.has_prefix:
            target = 2 if source.is_stderr else 1
            self._write_all(target, (line + b"\n" for line in lines))
            return
        prefix = self._prefix(batch)
        self._write_all(1, [b"%b%b\n" % (prefix, line) for line in _all_shown(lines)])

    def _put_groups(self, groups: Groups) -> None:
        if groups.lines:
            who = map(self._who, groups.ranks)
            self._write_all(1, [b"%b%b\n" % each for each in zip(who, _all_shown(groups.lines), strict=True)])

    def _prefix(self, batch: Batch) -> bytes:
        source = batch.source
        prefix = self._prefixes.get(source.rank)
        if prefix is None:
            prefix = self._prefixes[source.rank] = f"[{source.node}:{source.rank}] ".encode()
        return prefix

    def _who(self, ranks: int | list[int]) -> bytes:
        if isinstance(ranks, int):
            return self._prefixes[ranks]
        key = tuple(ranks)
        prefix = self._of_several.get(key)
        if prefix is None:
            if len(self._of_several) > _MOST_PREFIXES:
                self._of_several.clear()
            prefix = self._of_several[key] = f"[{name_ranks(ranks)}] ".encode()
        return prefix

    def _write_all(self, target: int, lines: Iterable[bytes]) -> None:
        if self._is_tailing:
            self._last.extend((target, line) for line in lines)
            return
        self._write(target, b"".join(lines))

    def _write(self, target: int, content: bytes) -> None:
        if content and self._buffers[3 - target]:  # on a terminal both are one, so their order counts
            self._empty()
        self._buffers[target] += content
        if len(self._buffers[target]) > _BUFFER_BYTES:
            self._empty()

    def _empty(self) -> None:
        for target, buffer in self._buffers.items():
            if buffer:
                content = bytes(buffer)
                buffer.clear()
                store.write_all(target, content)


def choose_places(
    layout: RunLayout, choice: Choice, attempt: int, *, is_strict: bool = True, failed: Sequence[int] = ()
) -> list[RankPlace]:
    """Return the chosen ranks of an attempt, with their nodes and the attempts in which they were started.

    Args:
        layout: the run's.
        choice: what is asked for.
        attempt: the attempt.
        is_strict: whether a rank or a node that it has not got is an error.
        failed: the ranks that failed in it, for a choice of these.

    Raises:
        UsageError: the attempt has no roster, or `is_strict` and it has no such rank or node.
    """
    places = read_roster(layout, attempt)
    if not places:
        raise UsageError(f"attempt {attempt} has no roster yet", tip="try again in a moment, or ask for an older one")
    wanted = failed if choice.is_failed else choice.ranks
    if wanted is not None:
        missing = [rank for rank in wanted if rank not in places]
        if missing and is_strict and not choice.is_failed:
            known = format_ranks(places)
            raise UsageError(f"there is no rank {format_ranks(missing)} in attempt {attempt}: it has ranks {known}")
        places = {rank: places[rank] for rank in wanted if rank in places}
    if choice.node is None:
        return list(places.values())
    found = [place for place in places.values() if place.node == choice.node]
    if not found and is_strict and not choice.is_failed:
        nodes = sorted({place.node for place in places.values()})
        raise UsageError(
            f"none of these ranks was on {choice.node!r} in attempt {attempt}", tip=f"they are on {name_some(nodes)}"
        )
    return found


def failed_ranks(layout: RunLayout, attempt: int) -> tuple[int, ...]:
    """Return the ranks that failed in an attempt: each of them has an error file.

    A listing of a rank's folder is one question to a file server, which answers anew to it.

    Raises:
        FileSystemError: this user may not see whether a rank has one.
    """
    return tuple(rank for rank in store.list_numbers(layout.ranks(attempt)) if _has_failed(layout, attempt, rank))


def _has_failed(layout: RunLayout, attempt: int, rank: int) -> bool:
    folder, name = os.path.split(layout.error(attempt, rank))
    try:
        return name in os.listdir(folder)
    except PermissionError:
        with store.file_system_errors(folder, "read"):
            raise
    except OSError:
        return False


def _attempt(layout: RunLayout, choice: Choice) -> tuple[int | None, tuple[int, ...]]:
    """Return the attempt that is asked for, None if none failed, and its failed ranks if these are asked for."""
    attempts = list_attempts(layout)
    if not attempts:
        raise UsageError("no rank has written yet: there is no attempt", tip="`hpc-elastic status` says why")
    if choice.attempt is not None and choice.attempt not in attempts:
        found = f"attempts {attempts[0]} to {attempts[-1]}"
        raise UsageError(f"there is no attempt {choice.attempt}: {layout.root} has {found}")
    if not choice.is_failed:
        return choice.attempt or attempts[-1], ()
    if choice.attempt is not None:
        return choice.attempt, failed_ranks(layout, choice.attempt)
    for number in reversed(attempts):
        if failed := failed_ranks(layout, number):
            return number, failed
    return None, ()


def _matching(grep: re.Pattern[str], lines: Iterable[bytes]) -> Iterator[bytes]:
    search: Callable[[str], object] = grep.search
    return (line for line in lines if search(line.decode(errors="replace")))


def _all_shown(lines: list[bytes]) -> list[bytes]:
    """Return the lines as `_shown` does, after one look at all of them: hardly any has what it would change."""
    together = b" ".join(lines)
    is_plain = b"\x1b" not in together and not _CONTROL.search(together)
    return lines if is_plain else list(map(_shown, lines))


def _shown(line: bytes) -> bytes:
    """Return what a terminal still shows of a line that a progress bar has overwritten, with nothing that moves it."""
    if b"\r" in line:
        line = line.rstrip(b"\r").rsplit(b"\r", 1)[-1]
    if _CONTROL.search(line):
        line = _CONTROL.sub(lambda match: "".join(f"\\x{byte:02x}" for byte in match[0]).encode(), line)
    return line + b"\x1b[0m" if b"\x1b[" in line else line
