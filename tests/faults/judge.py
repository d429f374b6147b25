"""Holds what a run's records say of their failures against what must be said."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpc_elastic.failures.classes import MEANINGS, Blame, FailureClass
from hpc_elastic.rank_set import parse_ranks
from tests.faults.fault import Ended, Fault, Silent

LONGEST_LINE = 3000
_RANK = re.compile(r"\brank (\d+) on ([\w.-]+)")
_NODE = re.compile(r"(?:^|[ ,:])(local\d+)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the records say of one attempt's end; the class is "" if they name no root cause."""

    failure_class: str
    rank: int | None
    node: str
    line: str
    silent: str = ""
    candidates: str = ""
    is_derived: bool = False

    @classmethod
    def of(cls, record: Any, line: str, failures: Any) -> Told:
        """Return what a claim or a result says, with its line for people.

        Where there is no root cause it is read from the line and the failures, as before there was one.
        """
        cause = record.get("root_cause")
        if cause is not None:
            return cls(
                failure_class=cause["class"],
                rank=cause["rank"],
                node=cause["node"],
                line=line,
                silent=cause["silent"],
                candidates=cause["candidates"],
            )
        found = _RANK.search(line)
        if found is not None:
            failure = failures.get(found[1], {})
            return cls(
                failure_class=failure.get("class", "?"), rank=int(found[1]), node=found[2], line=line, is_derived=True
            )
        node = _NODE.search(line)
        return cls(failure_class="", rank=None, node=node[1] if node else "", line=line)


def misses(fault: Fault, result: Any, claims: list[Any]) -> Iterator[str]:
    """Yield what is wrong about a run, a line each.

    Args:
        fault: the fault, with what is expected.
        result: the contents of `result.json`.
        claims: those of the claims of all attempts, in their order.
    """
    right = fault.exit_code if isinstance(fault.exit_code, tuple) else (fault.exit_code,)
    if result["exit_code"] not in right:
        yield f"exit code {result['exit_code']}, expected {' or '.join(map(str, right))}"
    attempts = len(fault.before) + 1
    if result["attempts"] not in (attempts, 0) or len(claims) not in (attempts, 0):
        yield f"{result['attempts']} attempts, expected {attempts}"
    for number, (claim, expected) in enumerate(zip(claims[1:], fault.before, strict=False), start=1):
        told = Told.of(claim, claim["reason"], {})
        yield from (f"attempt {number}: {wrong}" for wrong in _wrong(told, expected, is_cancelled=False))
    told = Told.of(result, result["cause"], result["failures"])
    yield from _wrong(told, fault.end, is_cancelled=result["state"] == "CANCELLED")


def shown_raw(text: str) -> Iterator[str]:
    """Yield a complaint if what people read has a control character; records may have them, as JSON escapes them."""
    found = re.search(r".*[\x00-\x08\x0b-\x1f\x7f-\x9f].*", text)
    if found is not None:
        yield f"people read a control character: {found[0][:300]!r}"


def _wrong(told: Told, expected: Ended, *, is_cancelled: bool) -> Iterator[str]:
    if not _is_class(told, expected, is_cancelled=is_cancelled):
        yield f"class {told.failure_class or 'none'}, expected {' or '.join(expected.classes) or 'none'}"
    if not _is_culprit(told, expected.culprit):
        named = f"rank {told.rank} on {told.node or '-'}, silent {told.silent or '-'}"
        yield f"culprit {named}, expected {expected.culprit}"
    if re.search(expected.cause, told.line) is None:
        yield f"the cause {told.line[:300]!r} does not say {expected.cause}"
    if len(told.line) > LONGEST_LINE:
        yield f"the cause has {len(told.line)} characters"


def _is_class(told: Told, expected: Ended, *, is_cancelled: bool) -> bool:
    if not told.failure_class:  # nothing failed in a run that was stopped, so it may say so by its state alone
        is_stop = all(MEANINGS[FailureClass(word)].blame is Blame.STOPPED for word in expected.classes)
        return not expected.classes or (is_stop and is_cancelled)
    return told.failure_class in expected.classes


def _is_culprit(told: Told, culprit: int | tuple[int, ...] | str | Silent | None) -> bool:
    if culprit is None:
        return told.rank is None
    if isinstance(culprit, str):
        return told.node == culprit
    if isinstance(culprit, Silent):
        return told.rank == culprit.rank or parse_ranks(told.silent) == (culprit.rank,)
    right = culprit if isinstance(culprit, tuple) else (culprit,)
    if told.rank is None and told.candidates:  # several, of which none is named before the others
        return set(parse_ranks(told.candidates)) <= set(right)
    return told.rank in right
