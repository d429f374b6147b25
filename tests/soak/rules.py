"""What must hold of the marks that the ranks of all attempts left, and of the claims; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.soak.trainer import SAVE_EVERY


@dataclass(frozen=True, slots=True)
class Mark:
    """One line of the marks; see `trainer`."""

    time_ns: int
    attempt: int
    rank: int
    world_size: int
    pid: int
    node: str
    kind: str
    step: int


def whole_lines(text: str) -> list[str]:
    """The lines of a file that ranks go on writing: of the last one a reader may see a part."""
    return text[: text.rfind("\n") + 1].splitlines()


def parse_marks(lines: Iterable[str]) -> list[Mark]:
    """Parse whole lines of marks. A writer that is killed leaves no part of one, but a reader may see a part before."""
    marks = []
    for line in lines:
        time_ns, attempt, rank, world_size, pid, node, kind, step = line.split(" ")
        moment, number, own, size = int(time_ns), int(attempt), int(rank), int(world_size)
        marks.append(Mark(moment, number, own, size, int(pid), node, kind, int(step)))
    return marks


def broken_rules(marks: Sequence[Mark], claims: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What is wrong, a line each.

    Args:
        marks: in any order.
        claims: the contents of `attempts/NNNN/claim.json`, by attempt.
    """
    attempts: dict[int, list[Mark]] = {}
    for mark in sorted(marks, key=lambda mark: mark.time_ns):
        attempts.setdefault(mark.attempt, []).append(mark)
    yield from _overlaps(attempts)
    for attempt, made in attempts.items():
        yield from _strangers(attempt, made, claims)
    yield from _lost_steps(attempts)
    yield from _broken_chain(claims)


def _overlaps(attempts: Mapping[int, Sequence[Mark]]) -> Iterator[str]:
    """Return where two attempts worked at the same time, or out of their order."""
    for earlier, later in pairwise(sorted(attempts)):
        last, first = attempts[earlier][-1], attempts[later][0]
        if last.time_ns >= first.time_ns:
            late_ms = (last.time_ns - first.time_ns) / 1e6
            yield (
                f"two worlds at work: rank {last.rank} on {last.node} worked in attempt {earlier} {late_ms:.1f} ms "
                f"after rank {first.rank} on {first.node} had begun attempt {later}"
            )


def _strangers(attempt: int, made: Iterable[Mark], claims: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return ranks that ran twice, with several world sizes, or on a node that is not in the claim."""
    if attempt > len(claims):
        yield f"attempt {attempt} was at work without a claim"
        return
    places: dict[int, set[tuple[int, str]]] = {}
    sizes = set()
    for mark in made:
        places.setdefault(mark.rank, set()).add((mark.pid, mark.node))
        sizes.add(mark.world_size)
    if len(sizes) > 1:
        yield f"attempt {attempt} has several world sizes: {sorted(sizes)}"
    yield from (
        f"rank {rank} of attempt {attempt} was there {len(found)} times: {sorted(found)}"
        for rank, found in places.items()
        if len(found) > 1
    )
    strangers = {node for found in places.values() for _, node in found} - set(claims[attempt - 1]["members"])
    if strangers:
        yield f"attempt {attempt} was at work on {sorted(strangers)}, which are not in its claim"


def _lost_steps(attempts: Mapping[int, Sequence[Mark]]) -> Iterator[str]:
    """Steps that were repeated though a checkpoint has them, left out, or not in their order."""
    done = saved = 0
    for attempt in sorted(attempts):
        position = None
        for mark in attempts[attempt]:
            if mark.kind == "begin" and mark.rank == 0:
                position = mark.step
                if not saved <= position <= done or done - position > SAVE_EVERY:
                    yield f"attempt {attempt} began at step {position}; {saved} was saved, {done} done"
            elif mark.kind == "step":
                if position is None or mark.step != position + 1:
                    yield f"attempt {attempt} did step {mark.step} after {position}"
                position = mark.step
                done = max(done, mark.step)
            elif mark.kind == "saved":
                saved = max(saved, mark.step)


def _broken_chain(claims: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Claims that do not follow from each other; one file a number is the file system's promise already."""
    numbers = [claim["attempt"] for claim in claims]
    if numbers != list(range(1, len(claims) + 1)):
        yield f"the attempts are {numbers}"
    for before, after in pairwise(claims):
        if after["predecessor"] != before["attempt"]:
            yield f"attempt {after['attempt']} follows {after['predecessor']}"
        for key in ("restarts", "node_losses"):
            if after["spend"][key] < before["spend"][key]:
                yield f"attempt {after['attempt']} has forgotten {key}: {before['spend'][key]} were spent"
        aside = [each["node"] for each in after.get("set_aside", ())]  # whose agents may lead, and start no workers
        if after["head"] not in (*after["members"], *aside):
            yield f"attempt {after['attempt']} was opened by {after['head']}, which is not in it"
