"""The admission of agents to a head: which may join, and what each is answered."""

from __future__ import annotations

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import Action, Log, Note, SendToMember
from hpc_elastic.membership.messages import Join, Refused, Welcome
from hpc_elastic.membership.node_news import LATE, Arrivals
from hpc_elastic.membership.roster import Roster

CLOCKS_DIFFER_S = 2.0  # a Join may be under way, or wait for the head's loop, for a second


def why_not(roster: Roster, join: Join) -> Refused | None:
    """Return the answer to an agent that cannot join, None if it can."""
    reason = roster.why_not(join)
    return None if reason is None else Refused(reason=reason, exit_code=int(ExitCode.SETUP))


def admit(
    roster: Roster, join: Join, now: float, *, welcome: Welcome, attempt: int, arrivals: Arrivals
) -> list[Action]:
    """Add an agent that is not refused to the roster.

    An agent that comes late and cannot take part is sent away: the others go on without it already.
    """
    if join.problem is not None and welcome.is_late:
        return dismiss(join, f"{join.node} came late, unfit: {join.problem}", attempt)
    roster.add(join, now)
    actions: list[Action] = [SendToMember(node=join.node, message=welcome)]
    if join.problem is None:
        metadata = {"node": join.node, **join.versions}
        actions.append(Note(name="node.joined", message=f"{join.node} joined", attempt=attempt, metadata=metadata))
    if join.unhealthy is not None:
        actions += health_news(join.node, join.unhealthy, attempt)
    if welcome.is_late:
        text = f"{join.node} {LATE.of_one}"
        note = Note(name="node.parked", message=text, attempt=attempt, metadata={"node": join.node})
        actions += [*arrivals.one(join.node, LATE, now), note]
    return actions


def health_news(node: str, problem: str | None, attempt: int) -> list[Action]:
    """Return the log line and the event of a node whose health checks have found a problem, or none any more."""
    metadata = {"node": node, "reason": problem or ""}
    if problem is None:
        text = f"{node} is healthy again; it is a spare that is asked last"
        return [Log(text=text), Note(name="node.healthy", message=text, attempt=attempt, metadata=metadata)]
    text = f"{node} is unhealthy: {problem}; no attempt starts workers on it"
    return [
        Log(text=text, level="warning"),
        Note(name="node.unhealthy", message=text, attempt=attempt, metadata=metadata),
    ]


def clock_news(join: Join, now_ns: int, attempt: int) -> list[Action]:
    """Return the log line and the event of a node whose clock differs from the head's; none if it hardly does.

    Args:
        join: what the node sent, with its clock.
        now_ns: the head's clock as that arrived, in nanoseconds since 1970.
        attempt: the latest attempt.
    """
    if not join.clock_ns:
        return []
    offset_s = (join.clock_ns - now_ns) / 1e9
    if abs(offset_s) < CLOCKS_DIFFER_S:
        return []
    how = "ahead of" if offset_s > 0 else "behind"
    text = (
        f"the clock of {join.node} is {abs(offset_s):.0f} s {how} that of the head; "
        "times in its logs and records are by its own clock"
    )
    metadata = {"node": join.node, "offset_s": round(offset_s, 1)}
    return [
        Log(text=text, level="warning"),
        Note(name="node.clock_differs", message=text, attempt=attempt, metadata=metadata),
    ]


def dismiss(join: Join, text: str, attempt: int) -> list[Action]:
    """Refuse an unfit node, without which the others go on."""
    refused = Refused(reason=join.problem or text, exit_code=int(ExitCode.SETUP))
    return [Log(text=text, level="warning"), unfit_note(join, attempt), SendToMember(node=join.node, message=refused)]


def unfit_note(join: Join, attempt: int) -> Note:
    """Return the event of a node that cannot take part."""
    return left_out_note(join.node, f"cannot take part: {join.problem}", attempt)


def left_out_note(node: str, reason: str, attempt: int) -> Note:
    """Return the event of a node that has no part in what comes; the reason continues a sentence with its name."""
    return Note(
        name="node.left_out", message=f"{node} {reason}", attempt=attempt, metadata={"node": node, "reason": reason}
    )
