"""Reads what torch's flight recorder kept of each rank's collectives, and says which ranks did not enter one.

The recorder is torch's (torch/csrc/distributed/c10d/FlightRecorder.hpp, torch 2.4 and later): a ring of the latest
operations of each process group, with a number that counts the group's collectives alike on all of its ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hpc_elastic.codec import objects_in
from hpc_elastic.failures.traceback_text import Frame, name_frame
from hpc_elastic.rank_set import name_ranks

MOST_GROUPS = 8  # of which something is said
_WORLD = "default_pg"  # the group that all ranks are in


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """The first collective of a process group that had not ended on a rank.

    `number` counts the collectives of the group from 1, `group` is its description and name, `frame` the line of the
    user's own code that called it.
    """

    group: str
    number: int
    operation: str
    frame: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCollectives:
    """What a rank's recorder had: how many collectives it had called of each group, and which had not ended."""

    rank: int
    called: Mapping[str, int]
    pending: tuple[Collective, ...] = ()


Key = TypeVar("Key", Collective, int)


def parse_flight_record(dump: object, rank: int, directory: str = "") -> RankCollectives:
    """Return what an unpickled dump says; whatever is not as torch writes it is left out.

    Args:
        dump: the object in the file.
        rank: whose it is.
        directory: the working directory, from which files are named.
    """
    called: dict[str, int] = {}
    pending: dict[str, Collective] = {}
    for entry in objects_in(dump, "entries"):
        number, group = entry.get("collective_seq_id"), _group(entry.get("process_group"))
        if type(number) is not int or number < 1 or entry.get("is_p2p") is True or not group:
            continue
        called[group] = max(called.get(group, 0), number)
        if entry.get("retired") is True or entry.get("state") == "completed":
            continue
        if group not in pending or number < pending[group].number:
            name = str(entry.get("profiling_name") or "a collective")
            frame = _frame(entry.get("frames"), directory)
            pending[group] = Collective(group=group, number=number, operation=name.rpartition(":")[2], frame=frame)
    return RankCollectives(rank=rank, called=called, pending=tuple(pending.values()))


def describe_collectives(records: Sequence[RankCollectives], world_size: int) -> Iterator[str]:
    """Yield a sentence for each process group in which ranks waited.

    Args:
        records: of the ranks whose recorders were read.
        world_size: how many ranks there were; a group whose record has all of them is the world's.
    """
    groups = list(dict.fromkeys(each.group for record in records for each in record.pending))
    for group in groups[:MOST_GROUPS]:
        waiting = {record.rank: each for record in records for each in record.pending if each.group == group}
        number = min(each.number for each in waiting.values())
        in_it = {rank: each for rank, each in waiting.items() if each.number == number}
        counts = {record.rank: record.called.get(group) for record in records if record.rank not in waiting}
        behind = {rank: count for rank, count in counts.items() if count is not None and count < number}
        absent = [rank for rank, count in counts.items() if count is None and group == _WORLD]
        sentences = [f"{name_ranks(ranks)} waited in {_call(call)}" for call, ranks in _by_key(in_it)]
        sentences += [f"{name_ranks(ranks)} had called {count} of it" for count, ranks in _by_key(behind)]
        if absent:
            sentences.append(f"no call of it was in the record of {name_ranks(absent)}")
        unread = world_size - len(records)
        if unread > 0:
            sentences.append(
                f"the record{'s' if unread > 1 else ''} of {unread} rank{'s were' if unread > 1 else ' was'} not there"
            )
        yield f"collective {number} of {group}: {'; '.join(sentences)}"


def _by_key(of_ranks: Mapping[int, Key]) -> Iterator[tuple[Key, list[int]]]:
    """Yield each value with its ranks, the one of most ranks first."""
    ranks_of: dict[Key, list[int]] = {}
    for rank, each in of_ranks.items():
        ranks_of.setdefault(each, []).append(rank)
    yield from sorted(ranks_of.items(), key=lambda item: (-len(item[1]), item[1]))


def _call(collective: Collective) -> str:
    return f"{collective.operation} ({collective.frame})" if collective.frame else collective.operation


def _group(value: object) -> str:
    """Return a group as people know it: its description, else its name."""
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not all(isinstance(each, str) for each in value):
        return ""
    name, description = value
    return description if description in (_WORLD, name) else f"{description} ({name})" if description else name


def _frame(frames: object, directory: str) -> str:
    """Return the innermost line of the user's own code; torch lists the innermost frame first."""
    found = []
    for each in frames if isinstance(frames, (list, tuple)) else ():
        file, line, name = (
            (each.get(key) for key in ("filename", "line", "name")) if isinstance(each, dict) else [None] * 3
        )
        if isinstance(file, str) and type(line) is int and isinstance(name, str):
            found.append(Frame(file=file, line=line, function=name))
    own = [frame for frame in found if frame.is_users]
    return name_frame(own[0], own[-1], directory) if own else ""
