"""Who may join, and what an agent that joins is told."""

from __future__ import annotations

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import Action, Note, Say, Send
from hpc_elastic.membership.messages import Join, Refused, Welcome
from hpc_elastic.membership.roster import Roster


def why_not(roster: Roster, join: Join) -> Refused | None:
    """The answer to an agent that cannot join, None if it can."""
    reason = roster.why_not(join)
    return None if reason is None else Refused(reason=reason, exit_code=int(ExitCode.SETUP))


def admit(roster: Roster, join: Join, now: float, *, allocation: int, attempt: int, is_late: bool) -> list[Action]:
    """Takes an agent in that is not refused; a late one that is unfit has to go, the others do without it already."""
    roster.add(join, now)
    if join.problem is not None and is_late:
        roster.remove(join.node)
        refused = Refused(reason=join.problem, exit_code=int(ExitCode.SETUP))
        return [Say(text=f"{join.node} came late, unfit: {join.problem}"), Send(node=join.node, message=refused)]
    actions: list[Action] = [
        Send(node=join.node, message=Welcome(allocation=allocation, is_late=is_late)),
        Note(name="node.joined", message=f"{join.node} joined", attempt=attempt, metadata=join.versions),
    ]
    if is_late:
        actions.append(Say(text=f"{join.node} joined late and waits for the next attempt"))
    return actions
