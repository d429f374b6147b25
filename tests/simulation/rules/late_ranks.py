"""What becomes of a run whose time for the last ranks is over: it fails or succeeds, in time, and says who ran on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.membership.actions import StopWorkers
from hpc_elastic.membership.timing import DRIFT
from hpc_elastic.rank_set import parse_ranks
from hpc_elastic.rundir.records import RunResultRecord, RunState, World, WorldRank
from tests.simulation.clock import NEVER
from tests.simulation.rules.invariants import require
from tests.simulation.scenario import GRACE_S

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

ON_TIME_S = 1.0  # for the records, and all that is said, at the end of a run


class LateRanks:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._stops_at: dict[tuple[str, int], float] = {}  # by node and attempt: when its first stop began

    def stops(self, agent: Agent, action: StopWorkers) -> None:
        """A node begins to stop its workers: which one of them exits 0 from now on, is stopped."""
        self._stops_at.setdefault((agent.name, action.attempt), self._run.clock.now)

    def ended(self, result: RunResultRecord) -> None:
        """The time for the last ranks is over: the run has failed, or has succeeded, as the plan says."""
        world = self._run.disk.latest
        if result.reason != "exit_timeout" or world is None or self._run.is_disturbed:
            return
        succeeds = self._run.scenario.after_exit_timeout == "succeed"
        require((result.state is RunState.SUCCEEDED) == succeeds, f"the run is {result.state.value} without the rest")
        self._is_in_time(world, is_for_last=succeeds)
        if not succeeds:
            self._names_who_ran_on(result, world)
            return
        roles, well = {role.role: role.attempt for role in world.roles}, self._run.witness.ended_well
        late = [rank for rank in world.ranks if rank.rank not in well.get((rank.role, roles[rank.role]), set())]
        counts = {rank.node for rank in late if self._run.scenario.role(rank.role).restart != "ignore"}
        told = {node for node in counts if node in result.cause}
        require(bool(counts) and told == counts, f"{sorted(counts)} ran on, and the result says: {result.cause}")

    def _is_in_time(self, world: World, *, is_for_last: bool) -> None:
        """The time of a role is over so long after the first end, or after its attempt was opened, if that came later.

        How long a node takes to start its workers gives them no more time, as `docs/reference/job-yaml.md` says. A run
        that fails then ends with the first role whose time is over; one that succeeds waits for the last, if that has
        not ended before. A role that waits to start again is let start first.
        """
        run, witness, attempts = self._run, self._run.witness, {role.role: role.attempt for role in world.roles}
        if any(part not in witness.began_at for part in attempts.items()) or not self._is_played_for_time():
            return
        counts = [each for each in world.ranks if run.scenario.role(each.role).restart != "ignore"]
        late = {each.role for each in counts if not self._has_ended(each, attempts[each.role])}
        require(bool(late), "the run ends without the rest, and every rank had exited 0 before it was stopped")
        first_end = min(witness.first_end[part] for part in attempts.items() if part in witness.first_end)
        ends_by = [max(first_end, run.disk.asked_at[attempts[role]]) for role in late]
        due = (max if is_for_last else min)(ends_by) + (run.scenario.exit_timeout_s or 0.0)
        stops_s = max(min(role.patience_s, GRACE_S) for role in run.scenario.roles)
        stops_s += 3 * max(run.scenario.disk_s)  # the node's result, that of the run, and what was under way before
        stops_s += max(run.scenario.spawn_s)  # of a worker that a node was about to start
        latest = max(due, *(at for part, at in witness.began_at.items() if part in attempts.items()))
        if is_for_last:
            latest = max(latest, *(witness.ended_at.get((attempts[each.role], each.rank), 0.0) for each in counts))
        is_in_time = due * (1 - DRIFT) - ON_TIME_S <= run.clock.now <= latest * (1 + DRIFT) + stops_s + ON_TIME_S
        what = f"the run ends at {run.clock.now:.2f} s without the rest"
        require(is_in_time, f"{what}, and their time is over at {due:.2f} s")

    def _has_ended(self, rank: WorldRank, attempt: int) -> bool:
        """Whether it had exited 0 before its node began to stop it, so that its node could say so."""
        ended_at = self._run.witness.ended_at.get((attempt, rank.rank), NEVER)
        return ended_at < self._stops_at.get((rank.node, attempt), NEVER)

    def _is_played_for_time(self) -> bool:
        """Whether nothing happens but that one worker fails: failures in a row make others wait."""
        scenario = self._run.scenario
        fail_anyhow = any(role.failure_chance for role in scenario.roles)
        return not fail_anyhow and [fault.what for fault in scenario.faults] == ["exit_worker"]

    def _names_who_ran_on(self, result: RunResultRecord, world: World) -> None:
        """A run that ends because some ranks have not exited says which: at least all that count, and are late.

        A role that started again after the first end has its time from then on.
        """
        roles = {role.role: role.attempt for role in world.roles}
        counts = [rank for rank in world.ranks if self._run.scenario.role(rank.role).restart != "ignore"]
        well = self._run.witness.ended_well
        late = {rank.rank for rank in counts if rank.rank not in well.get((rank.role, roles[rank.role]), set())}
        cause = result.root_cause
        named = set() if cause is None or not cause.silent else {*parse_ranks(cause.silent)}
        told = set() if cause is None else {cause.node, *cause.nodes}
        has_run_on = {role for role, attempt in roles.items() if attempt == min(roles.values())}
        over = {each.rank for each in counts if each.rank in late and (each.role in has_run_on or each.node in told)}
        require(over <= named, f"the result names {sorted(named)} as those that ran on, not {sorted(over)}")
        if cause is not None and named:
            on = {rank.node for rank in world.ranks if rank.rank in named}
            require(told - {""} == on, f"the result names {sorted(told)} as where ranks ran on, not {sorted(on)}")
