"""What the records say of failures, held against what the workers did: the cause, its ranks, and repeated failures.

All is of runs in which nothing but workers went wrong; what each worker did is known then, and so is what the head must
make of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_elastic.rank_set import parse_ranks
from hpc_elastic.rundir.records import AttemptClaim, RootCause, RunResultRecord, World
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from hpc_elastic.membership.actions import Note
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun


BLAMED = "blamed: "
MOST_BLAMED = 16  # nodes that a claim carries on
_LOST = re.compile(r"(node\d+(?:, node\d+)*) (?:was|were) lost: ")


def ranks_in(text: str) -> set[int]:
    return {*parse_ranks(text)} if text else set()


class Causes:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._set_aside: dict[
            str, dict[str, int]
        ] = {}  # by head, the nodes that it has blamed, and after which attempt
        self._stuck: dict[int, bool] = {}  # by attempt, whether its failure came without progress

    @property
    def _is_usual(self) -> bool:
        """Whether only workers may have failed, of one role, whose failures count."""
        run = self._run
        is_one = len(run.scenario.roles) == 1 and run.scenario.roles[0].restart != "ignore"
        return is_one and not (run.witness.kinds or run.witness.unkillable or run.is_disturbed)

    def notes(self, agent: Agent, note: Note) -> None:
        """A head notes that it sets a node aside: for a failure, or because a person drains it."""
        if note.name == "node.set_aside" and str(note.metadata["reason"]).startswith(BLAMED):
            blamed = self._set_aside.setdefault(agent.name, {})
            blamed.pop(str(note.metadata["node"]), None)  # the latest is the last
            blamed[str(note.metadata["node"])] = note.attempt

    @property
    def blamed(self) -> set[str]:
        """The nodes that heads have blamed."""
        return {node for nodes in self._set_aside.values() for node in nodes}

    def is_widened(self, attempt: int) -> bool:
        """Whether a node was set aside after an attempt: then the restart of some roles becomes one of all."""
        return any(attempt in nodes.values() for nodes in self._set_aside.values())

    def _check_set_aside(self, claim: AttemptClaim, world: World) -> None:
        """Who is set aside gets no workers while enough others are there, and the next head knows of the blame.

        Of very many the latest.
        """
        aside = {*[*self._set_aside.get(claim.head, ())][-MOST_BLAMED:]}
        told = {each.node for each in claim.set_aside}
        require(len(told) <= MOST_BLAMED, f"attempt {claim.attempt} carries {len(told)} blamed nodes on")
        what = f"attempt {claim.attempt} of {claim.head}, which has set {sorted(aside)} aside,"
        require(aside <= told or bool(self._run.earlier), f"{what} blames {sorted(told)}")
        starting = {node.node for node in world.nodes if node.role in claim.roles}
        require(not aside & starting or bool(self._run.witness.kinds), f"{what} starts on {sorted(aside & starting)}")

    def claimed(self, claim: AttemptClaim, world: World, before: AttemptClaim | None) -> None:
        """A claim is on disk, after another one."""
        self._check_set_aside(claim, world)
        self._check_reason(claim, before)
        self._check_blame(claim, before)
        if before is not None and claim.allocation == before.allocation:
            self._check_roles(claim, before)
        if before is None or claim.allocation != before.allocation or not self._is_usual:
            return
        if claim.spend.restarts == before.spend.restarts:
            return
        what = f"attempt {claim.attempt}"
        earlier = self._run.disk.worlds[before.attempt]
        require(claim.root_cause is not None, f"{what} follows a failure, and names no cause")
        assert claim.root_cause is not None
        self._check_ranks(what, claim.root_cause, before.attempt, earlier)
        self._check_repeats(what, claim, before)

    def _check_reason(self, claim: AttemptClaim, before: AttemptClaim | None) -> None:
        """Why an attempt comes, as people read it: what has happened, and to whom."""
        kinds, reason = self._run.witness.kinds, claim.reason
        what = f"attempt {claim.attempt} comes because of {reason!r}"
        if before is None or before.allocation != claim.allocation:
            start = "first start" if before is None else "the run goes on in a new allocation"
            is_said = reason.startswith(start) or "loss" in kinds  # an allocation may be claimed again in a start
            require(is_said, f"{what}, and it is the first of an allocation")
            return
        if reason.endswith(" joined"):
            new = reason.removesuffix(" joined").split(", ")
            is_so = "joined" in kinds and not set(new) & set(before.members)
            require(is_so, f"{what}, and {before.members} were there")
        elif reason.endswith("asked for a restart") or " drained " in reason:
            require("asked" in kinds, f"{what}, and nobody has asked")
        elif " lost: " in reason or reason == "enough nodes are back":
            require(bool(kinds & {"loss", "term", "disk"}), f"{what}, and nobody is lost")
            self._check_lost(what, reason, before)
        elif claim.spend.restarts > before.spend.restarts and not kinds:
            nodes = {each.node for each in self._run.witness.incidents if each.attempt <= before.attempt}
            require(any(node in reason for node in nodes), f"{what}, and workers on {nodes} have failed")
        elif claim.spend.restarts == before.spend.restarts:
            is_charged = claim.spend != before.spend or bool(claim.states or before.states)
            require(is_charged or bool(kinds), f"{what}, which costs nothing")

    def _check_lost(self, what: str, reason: str, before: AttemptClaim) -> None:
        """Who is said to be lost was there: in the attempt before, or among those that waited beside it."""
        found = _LOST.match(reason)
        if found is None:
            return
        beside = {each.node for each in self._run.disk.worlds[before.attempt].spares}
        others = set(found[1].split(", ")) - {*before.members, *beside}
        require(not others, f"{what}, and {sorted(others)} were not in attempt {before.attempt}")

    def _check_roles(self, claim: AttemptClaim, before: AttemptClaim) -> None:
        """The cause is a failure that counts, of a role that starts again, in the attempt that its workers were in."""
        run, cause = self._run, claim.root_cause
        is_usual = not (run.witness.kinds or run.witness.unkillable or run.is_disturbed)
        if not is_usual:
            return
        self._check_restarted(claim, before)
        if cause is None or claim.spend.restarts == before.spend.restarts:
            return
        attempts = {
            role.role: role.attempt for role in run.disk.worlds[before.attempt].roles if role.role in claim.roles
        }
        incidents = [each for each in run.witness.incidents if attempts.get(each.role) == each.attempt]
        if any(each.rank is None for each in incidents):  # a store host ended, which speaks for its node
            return
        failed = {each.rank for each in incidents}
        told = ranks_in(cause.failed) | ranks_in(cause.victims)
        what = f"attempt {claim.attempt}, of {' and '.join(claim.roles)},"
        require(told <= failed, f"{what} says that {sorted(told)} have failed, of {sorted(failed)}")  # type: ignore[type-var]
        require(cause.rank is None or cause.rank in failed, f"{what} names rank {cause.rank}, of {sorted(failed)}")  # type: ignore[type-var]

    def _check_restarted(self, claim: AttemptClaim, before: AttemptClaim) -> None:
        """The roles start again that have failed, all of them where one restarts all, and each is paid for once."""
        run, what = self._run, f"attempt {claim.attempt}"
        attempts = {role.role: role.attempt for role in run.disk.worlds[before.attempt].roles}
        current = [each for each in run.witness.incidents if attempts.get(each.role) == each.attempt]
        alone = {each.role for each in current if run.witness.group(each.role) != "*"}
        together = [each.moment for each in current if run.witness.group(each.role) == "*"]
        again = set(claim.roles)
        started = {(run.agent(node).role, attempt) for node, attempt in run.witness.started_in}
        # A failure while the attempt before was being claimed is acted on before anybody starts in that.
        waiting = {role for role, number in attempts.items() if (role, number) not in started}
        # Who is set aside loses its place, and only a restart of all moves places.
        is_wide = self.is_widened(before.attempt)
        is_so = bool(together) or is_wide or again <= alone | waiting
        require(is_so, f"{what} starts {again}, and only {alone} have failed")
        is_old = bool(together) and min(together) < run.disk.asked_at[claim.attempt] - run.progress.slack_s
        is_all = again == attempts.keys()
        require(not is_old or is_all, f"{what} starts {again}, and a role has failed whose failures restart all")
        spent = claim.spend.restarts - before.spend.restarts
        groups = len(alone) + bool(together)  # one may fail while another one's restart waits
        # An attempt in vain for a damaged state is followed by one without, which costs nothing.
        least = 0 if before.states and claim.states != before.states else 1
        require(least <= spent <= max(1, groups), f"{what} costs {spent} restarts, of {groups} groups of roles")

    def _check_blame(self, claim: AttemptClaim, before: AttemptClaim | None) -> None:
        """Who is blamed has had a failure, or was lost again and again."""
        known = {each.node for each in before.set_aside} if before is not None else set()
        failed = {each.node for each in self._run.witness.incidents}
        lost = {each.node for each in claim.lost_nodes if each.times > 1}
        new = {each.node for each in claim.set_aside} - known
        require(new <= failed | lost, f"attempt {claim.attempt} blames {new - failed - lost}, where nothing has failed")

    def _check_ranks(self, what: str, cause: RootCause, attempt: int, world: World) -> None:
        role = self._run.scenario.roles[0].name
        incidents = [each for each in self._run.witness.incidents if each.attempt == attempt]
        failed = {each.rank for each in incidents if each.rank is not None}
        require(cause.attempt == attempt, f"{what} names a cause in attempt {cause.attempt}, not {attempt}")
        if not failed or len(failed) < len(incidents):  # a store host ended, which speaks for its node
            return
        told = ranks_in(cause.failed) | ranks_in(cause.victims)
        require(told == failed, f"{what} says that {sorted(told)} have failed, not {sorted(failed)}")
        nodes = {rank.rank: rank.node for rank in world.ranks}
        if cause.rank is not None:
            is_so = cause.rank in failed and cause.node == nodes[cause.rank]
            require(is_so, f"{what} names rank {cause.rank} on {cause.node}, and {sorted(failed)} have failed")
            first = min(incidents, key=lambda each: each.moment)
            is_on_one_node = len({each.node for each in incidents}) == 1
            is_first = cause.rank == first.rank or not is_on_one_node or ranks_in(cause.victims)
            require(bool(is_first), f"{what} names rank {cause.rank}, and rank {first.rank} of that node failed before")
        well = self._run.witness.ended_well.get((role, attempt), set())
        silent = set(nodes) - failed - well
        said = ranks_in(cause.silent)
        moment = min(each.moment for each in incidents)  # who exits while the stop is under way is stopped
        late = {rank for rank in well if self._run.witness.ended_at[attempt, rank] >= moment}
        require(silent <= said <= silent | late, f"{what} says that {sorted(said)} were stopped, not {sorted(silent)}")

    def _check_repeats(self, what: str, claim: AttemptClaim, before: AttemptClaim) -> None:
        """The same failure again, without progress in between, is counted, and any other one begins anew."""
        scenario = self._run.scenario
        is_same = claim.failure_signature == before.failure_signature
        is_stuck = self._is_stuck(claim, before)
        expected = before.same_failures + 1 if is_same and is_stuck else 1
        require(claim.same_failures == expected, f"{what} counts {claim.same_failures} same failures, not {expected}")
        least = scenario.no_progress_limit
        require(claim.same_failures < least, f"{what} comes after {claim.same_failures} same failures of {least}")

    def _is_stuck(self, claim: AttemptClaim, before: AttemptClaim) -> bool:
        """Whether something shows progress, and nothing that does has moved."""
        kind, steps = self._run.scenario.progress, self._run.scenario.steps
        files = {"unknown": None, "moves": True, "stuck": claim.progress != before.progress}[kind]
        further = None if steps == "none" else steps == "moves" or before.step is None
        ahead = self._run.workers_step(before.attempt)
        if steps == "gaps":  # an attempt that names a step goes further, and one that names none does not
            further = None if before.step is None and ahead is None else ahead is not None
            ahead = before.step if ahead is None else ahead
        if steps != "none":
            require(claim.step == ahead, f"attempt {claim.attempt} says step {claim.step}, and {ahead} was done")
        return False in (files, further) and True not in (files, further)

    def ended(self, result: RunResultRecord) -> None:
        """The result is on disk."""
        world, claim = self._run.disk.latest, self._run.disk.latest_claim
        if world is None or claim is None or not self._is_usual:
            return
        if result.reason in ("restarts_used_up", "no_progress"):
            require(result.root_cause is not None, "the run has ended for a failure, and its result names no cause")
            assert result.root_cause is not None
            self._check_ranks("the result", result.root_cause, claim.attempt, world)
            failed = {each.rank for each in self._run.witness.incidents if each.attempt == claim.attempt}
            named = {int(rank) for rank in result.failures}
            require(named == failed - {None}, f"the result has failures of {named}, and {failed} have failed")
        if result.reason == "restarts_used_up":
            spent, most = claim.spend.restarts, self._run.scenario.max_restarts
            require(spent == most, f"the run has ended after {spent} restarts, and may have {most}")
        if result.reason == "no_progress":
            count, least = claim.same_failures + 1, self._run.scenario.no_progress_limit
            require(count == least, f"the run has ended after {count} same failures, not {least}")
