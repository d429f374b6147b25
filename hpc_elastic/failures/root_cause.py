"""Finds the failure that caused the others of an attempt, among what all nodes report.

Theory of operation. When one rank fails, the others fail after it, because their collectives and connections break,
and the failure that the head hears of first is often one of theirs. So the choice waits until every node has stopped
its workers, which the next attempt waits for in any case, and goes by blame first:

1. Failures of ranks that failed by themselves go before those of victims (`classes.Blame`), and of these a rank that
   could not be started goes first: it never was a peer of the others.
2. Among the former, those that happened before the rank's agent sent its TERM go before those after it, which may be
   reactions to it.
3. Among these, the one that the head heard of first; on one node, where there is one clock, the earliest. Clocks of
   different machines are never compared.

Failures of the same standing that the head heard of within `SIMULTANEOUS_S` may all be the cause: they are named as
candidates. Where all that failed are victims, they waited for a rank that a signal or a debugger had stopped; if
there is none, for one that neither failed nor was on a lost node, and did not take part either, unless its stack shows
that it waits itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from hpc_elastic.failures.classes import Blame, FailureClass, blame_of
from hpc_elastic.failures.describe import describe_failure, failure_signature
from hpc_elastic.rank_set import format_ranks, name_ranks
from hpc_elastic.rundir.records import FailureRecord, RootCause

SIMULTANEOUS_S = 0.5
# Of a rank that reached the store and waited there for the others of a process group. Other words about a rendezvous
# are of a rank that reached nobody, and do not say who is missing.
_WAITED_AT_STORE = re.compile(
    r"wait timeout after \d+ ?ms|Timed out after \d+ seconds waiting for clients|in store based barrier"
)
# What torch's distributed checkpoints raise in every rank, with the ranks whose part failed
# (torch/distributed/checkpoint/api.py).
_FAILED_AT_CHECKPOINT = re.compile(r"CheckpointException: CheckpointException ranks:dict_keys\(\[([\d, ]+)\]\)")
MOST_NAMED = 4  # ranks that a line names one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFailure:
    """A failure, and when the head heard of it, in its own monotonic seconds."""

    failure: FailureRecord
    at: float

    @property
    def blame(self) -> Blame:
        """How far this failure can be the cause."""
        return blame_of(self.failure.failure_class)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedRanks:
    """The ranks whose workers were stopped for a failure, by their node, and those that had exited 0 before.

    `waiting` are those that waited for others in a collective when the stop began, by their stacks; `paused` those that
    a signal or a debugger had stopped.
    """

    nodes: Mapping[int, str]
    succeeded: Collection[int] = ()
    waiting: Collection[int] = ()
    paused: Collection[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCause:
    """The failure that the cause is about, whose signature and role count, and the record of the cause."""

    failure: FailureRecord
    cause: RootCause


def has_waited(failure: FailureRecord) -> bool:
    """Return whether a rank waited in vain for others: in a collective, or to make a process group."""
    if failure.failure_class == FailureClass.RENDEZVOUS.value:
        return bool(_WAITED_AT_STORE.search(failure.message))
    return failure.failure_class == FailureClass.COLLECTIVE_TIMEOUT.value


def find_root_cause(attempt: int, observed: Sequence[ObservedFailure], stopped: StoppedRanks) -> FoundCause | None:
    """Find the cause of an attempt's end; None if no worker failed.

    Args:
        attempt: the attempt that ended.
        observed: the failures of its workers, in the order in which the head heard of them.
        stopped: the ranks that were stopped.
    """
    if not observed:
        return None
    culprits = _culprits(observed)
    if culprits:
        return _by_culprits(attempt, observed, culprits, stopped)
    return _by_victims(attempt, observed, stopped)


def name_unfinished(cause: RootCause, stopped: StoppedRanks) -> RootCause:
    """Return the cause of a run that ended because ranks still ran after others had exited 0, with these ranks."""
    silent = sorted(set(stopped.nodes) - set(stopped.succeeded))
    if not silent:
        return cause
    only = silent[0] if len(silent) == 1 else None
    nodes = tuple(dict.fromkeys(stopped.nodes[rank] for rank in silent))
    return replace(
        cause,
        line=f"{cause.line}: {name_ranks(silent)}",
        rank=only,
        node=nodes[0] if len(nodes) == 1 else "",
        nodes=nodes if len(nodes) > 1 else (),
        candidates=format_ranks(silent) if only is None else "",
        silent=format_ranks(silent),
    )


def _by_culprits(
    attempt: int, observed: Sequence[ObservedFailure], culprits: Sequence[ObservedFailure], stopped: StoppedRanks
) -> FoundCause:
    not_started = [each for each in culprits if each.failure.failure_class == FailureClass.START_FAILED.value]
    before = not_started or [each for each in culprits if not each.failure.is_after_stop] or list(culprits)
    chosen = _earliest(before)
    alike = failure_signature(chosen.failure)
    same = [each for each in before if failure_signature(each.failure) == alike]
    is_same = {each.failure.rank for each in same}
    near = [each for each in before if abs(each.at - chosen.at) <= SIMULTANEOUS_S]
    other = [each.failure for each in near if each.failure.rank not in is_same]
    line = describe_failure(chosen.failure)
    if len(same) > 1:
        line += f"; {name_ranks(is_same - {chosen.failure.rank})} failed in the same way"
        if 0 < 2 * len(others := _unfailed(observed, stopped)) <= len(same):  # the few that many may have waited for
            line += f", {name_ranks(others)} had not failed"
    if other:
        line += f"; at about the same time {_others(other)}, which may be the cause as well"
    return _found(attempt, chosen, line, observed, stopped, candidates=[each.failure.rank for each in near])


def _culprits(observed: Sequence[ObservedFailure]) -> list[ObservedFailure]:
    """Return the failures of ranks that failed by themselves, as far as that is known."""
    culprits = [each for each in observed if each.blame is Blame.CULPRIT]
    return [each for each in culprits if not _is_told_of_another(each.failure)] or culprits


def _unfailed(observed: Sequence[ObservedFailure], stopped: StoppedRanks) -> list[int]:
    """Return the ranks that were stopped at work."""
    return sorted(set(stopped.nodes) - {each.failure.rank for each in observed} - set(stopped.succeeded))


def _is_told_of_another(failure: FailureRecord) -> bool:
    """Return whether a rank failed only because a distributed checkpoint told it of another rank's failure."""
    found = _FAILED_AT_CHECKPOINT.match(failure.message)
    return found is not None and f", {failure.rank}," not in f", {found[1]},"


def _by_victims(attempt: int, observed: Sequence[ObservedFailure], stopped: StoppedRanks) -> FoundCause:
    """Name what is known if every failure is a consequence: ranks that stood still, ended early or took no part."""
    chosen = _earliest(observed)
    failed = {each.failure.rank for each in observed}
    early = sorted(set(stopped.succeeded) - failed)
    waited = [each for each in observed if has_waited(each.failure)]
    if paused := sorted((set(stopped.paused) & set(stopped.nodes)) - failed - set(stopped.succeeded)):
        who = (
            f"rank {paused[0]} on {stopped.nodes[paused[0]]} was" if len(paused) == 1 else f"{name_ranks(paused)} were"
        )
        what = f"{who} stopped by a signal such as SIGSTOP, or by a debugger, while others waited"
        return _silent(attempt, chosen, f"{what}; {describe_failure(chosen.failure)}", observed, stopped, paused)
    if early:
        what = f"{name_ranks(early)} had ended with exit code 0 while others still worked"
        return _silent(attempt, chosen, f"{what}; {describe_failure(chosen.failure)}", observed, stopped, early)
    missing = _missing(observed, waited, stopped)
    if missing and waited and not has_waited(chosen.failure) and not stopped.waiting:
        # The stop was for a lost connection, so nobody was asked where it was: who did not fail may have waited too.
        chosen = _earliest(waited)
        line = f"{_consequence(chosen, observed)}; {name_ranks(missing)} had not failed"
        return _found(attempt, chosen, line, observed, stopped, candidates=[chosen.failure.rank, *missing])
    description = describe_failure(chosen.failure)
    if missing and waited:
        is_rendezvous = all(each.failure.failure_class == FailureClass.RENDEZVOUS.value for each in waited)
        where = "join the process group for which others waited" if is_rendezvous else "take part in a collective"
        what = f"{name_ranks(missing)} did not {where}{'' if is_rendezvous else ' in which others timed out'}"
        return _silent(attempt, chosen, f"{what}; {description}", observed, stopped, missing)
    is_alone = [each.failure.rank for each in waited] == [chosen.failure.rank] and len(observed) > 1
    if is_alone and not any(_are_at_one_place(each, chosen) for each in observed if each is not chosen):
        line = f"{description}; no other rank waited there, and the others failed when it had ended"
        return _found(attempt, chosen, line, observed, stopped, candidates=())
    chosen = _earliest(waited or observed)
    return _found(attempt, chosen, _consequence(chosen, observed), observed, stopped, candidates=())


def _missing(
    observed: Sequence[ObservedFailure], waited: Sequence[ObservedFailure], stopped: StoppedRanks
) -> list[int]:
    """Return the ranks that did not take part, where all that failed are victims and some waited in vain."""
    if not waited:
        return []
    first = min(each.at for each in waited)
    # A rank that failed after the stop, of connections that the stop broke, had not timed out with the others; one that
    # itself says that it timed out had, and the stop came before its end was seen. So may one have whose connections
    # broke when the first ones left.
    took_part = {each.failure.rank for each in observed if not each.failure.is_after_stop or has_waited(each.failure)}
    took_part |= {each.failure.rank for each in observed if each.at - first <= SIMULTANEOUS_S}
    absent = set(stopped.nodes) - took_part - set(stopped.succeeded)
    return sorted((absent - set(stopped.waiting)) or absent)


def _are_at_one_place(one: ObservedFailure, other: ObservedFailure) -> bool:
    return one.failure.frame == other.failure.frame != ""


def _consequence(chosen: ObservedFailure, observed: Sequence[ObservedFailure]) -> str:
    """Return the line about failures of which none is the cause, and where the ranks waited if that tells something."""
    line = f"{describe_failure(chosen.failure)}; it is a consequence, and no rank is known to have failed by itself"
    return line + (_apart([each.failure for each in observed]) if has_waited(chosen.failure) else "")


def _apart(victims: Sequence[FailureRecord]) -> str:
    """Return at which lines ranks waited, until the end of their time or of a peer, if not at the same one; else ""."""
    by_frame: dict[str, list[int]] = {}
    for failure in victims:
        by_frame.setdefault(failure.frame, []).append(failure.rank)
    if len(by_frame) < 2 or "" in by_frame:
        return ""
    places = sorted(by_frame.items(), key=lambda each: (-len(each[1]), min(each[1])))
    told = [f"{name_ranks(ranks)} at {frame}" for frame, ranks in places[:MOST_NAMED]]
    left = [rank for _, ranks in places[MOST_NAMED:] for rank in ranks]
    told += [f"{name_ranks(left)} elsewhere"] if left else []
    return f"; they waited at different lines: {', '.join(told)}"


def _silent(
    attempt: int,
    chosen: ObservedFailure,
    line: str,
    observed: Sequence[ObservedFailure],
    stopped: StoppedRanks,
    ranks: Sequence[int],
) -> FoundCause:
    found = _found(attempt, chosen, line, observed, stopped, candidates=ranks if len(ranks) > 1 else ())
    is_one = len(ranks) == 1
    cause = RootCause(
        attempt=attempt,
        failure_class=FailureClass.SILENT.value,
        line=line,
        rank=ranks[0] if is_one else None,
        node=stopped.nodes.get(ranks[0], "") if is_one else "",
        timestamp=chosen.failure.timestamp,
        candidates=found.cause.candidates,
        failed="",
        victims=found.cause.victims,
        silent=found.cause.silent,
        observed_first=found.cause.observed_first,
    )
    return FoundCause(failure=chosen.failure, cause=cause)


def _earliest(observed: Sequence[ObservedFailure]) -> ObservedFailure:
    """Return the one that the head heard of first, or one that happened before it on the same node."""
    first = min(observed, key=lambda each: each.at)
    same_node = [each for each in observed if each.failure.node == first.failure.node]
    return min(same_node, key=lambda each: (each.failure.timestamp, each.at))


def _found(
    attempt: int,
    chosen: ObservedFailure,
    line: str,
    observed: Sequence[ObservedFailure],
    stopped: StoppedRanks,
    *,
    candidates: Collection[int],
) -> FoundCause:
    failure = chosen.failure
    failed = {each.failure.rank for each in _culprits(observed)}
    victims = {each.failure.rank for each in observed} - failed
    cause = RootCause(
        attempt=attempt,
        failure_class=failure.failure_class,
        line=line,
        rank=failure.rank,
        node=failure.node,
        frame=failure.frame,
        timestamp=failure.timestamp,
        candidates=format_ranks(candidates) if len(candidates) > 1 else "",
        failed=format_ranks(failed),
        victims=format_ranks(victims),
        silent=format_ranks(set(stopped.nodes) - failed - victims - set(stopped.succeeded)),
        observed_first=observed[0].failure.rank,
    )
    return FoundCause(failure=failure, cause=cause)


def _others(failures: Sequence[FailureRecord]) -> str:
    described = "; ".join(describe_failure(failure) for failure in failures[:MOST_NAMED])
    left = failures[MOST_NAMED:]
    return f"{described}; and {name_ranks([failure.rank for failure in left])}" if left else described
