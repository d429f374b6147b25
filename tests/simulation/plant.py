"""Where the machines of a simulated run come from: the package's own here, with a bug in `planted`."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_elastic.agent.policy import Policy
from hpc_elastic.membership.decisions import Decide, History
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import Join
from hpc_elastic.membership.rounds import HeadSettings
from hpc_elastic.membership.seeker import Seeker, SeekerSettings
from hpc_elastic.membership.succession import LostHead, Succession
from hpc_elastic.membership.timing import Timing
from hpc_elastic.plan.launch_plan import RestartPlan


class Plant:
    """Makes them. `asks_for_claims`: who writes a result looks first whether another head has claimed more."""

    asks_for_claims = True

    def make_head(
        self, settings: HeadSettings, *, history: History, decide: Decide, now: float, succession: Succession | None
    ) -> Head:
        return Head(settings, history=history, decide=decide, now=now, succession=succession)

    def make_member(self, join: Join, *, run: str, timing: Timing) -> Member:
        return Member(join, run=run, timing=timing)

    def make_seeker(self, settings: SeekerSettings, lost: LostHead, now: float) -> Seeker:
        return Seeker(settings, lost, now)

    def make_decide(self, restart: RestartPlan, roles: Mapping[str, str]) -> Decide:
        return Policy(restart=restart, roles=roles).decide
