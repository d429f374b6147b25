"""The budgets over all starts of a run: heads die at any point between a decision and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.membership.actions import Action, ClaimAttempt, WriteResult
from hpc_elastic.membership.decisions import History
from hpc_elastic.membership.messages import Assign
from hpc_elastic.membership.rounds import history_after
from hpc_elastic.rundir.records import AttemptClaim, Charged
from tests.membership.script import HeadScript, a_failure, a_restart_plan, of_kind, sent

NODES = 3


class Crash(Enum):
    """Where the allocation ends, all agents at once, so that only what is on disk is left."""

    NEVER = "never"
    IN_PAUSE = "the workers are gone, and the head can still say why the allocation ends"
    BEFORE_STOP = "the decision is made, and the workers still run"
    BEFORE_CLAIM = "the claim is to be written"
    AFTER_CLAIM = "the claim is on disk, and nobody has acted on it"
    AFTER_START = "the workers of the next attempt run"


@dataclass(frozen=True)
class Event:
    """What happens to the attempt that is at work; `message` of a worker's failure, None for a lost node."""

    message: str | None
    step: int | None
    crash: Crash


@dataclass
class Ledger:
    """A run's disk, and what really happened."""

    max_restarts: int
    max_node_losses: int
    no_progress_limit: int
    claims: list[AttemptClaim] = field(default_factory=list)
    starts: int = 0
    paid: int = 0  # restarts, as the head of this start knows
    answered: int = 0  # failures after which workers were started again
    has_result: bool = False
    charged: Charged | None = None  # by the head of the latest allocation that could say why it ends

    def begin(self) -> HeadScript:
        """Another start of the job, in which all nodes join a head that knows what is on disk."""
        self.starts += 1
        plan = a_restart_plan(
            self.max_restarts, no_progress_limit=self.no_progress_limit, max_node_losses=self.max_node_losses
        )
        past = history_after(self.claims[-1], self.charged) if self.claims else History()
        self.paid = past.spend.restarts
        return HeadScript(NODES, min_nodes=1, restart=plan, history=past, allocation=self.starts)

    def write(self, claim: AttemptClaim, *, is_paid: bool) -> None:
        """A claim reaches the disk."""
        before = self.claims[-1].spend if self.claims else History().spend
        assert claim.attempt == len(self.claims) + 1
        self.paid += is_paid
        assert claim.spend.restarts == self.paid >= before.restarts
        assert before.node_losses <= claim.spend.node_losses <= self.max_node_losses
        assert claim.spend.restarts <= self.max_restarts
        assert not is_paid or history_after(claim).same_failures < self.no_progress_limit
        self.claims.append(claim)


def act(ledger: Ledger, script: HeadScript, actions: list[Action], crash: Crash, *, is_failure: bool) -> bool:
    """Carry out a claim or a result up to the crash; return whether the workers run now."""
    ledger.has_result |= bool(of_kind(actions, WriteResult))
    asked = of_kind(actions, ClaimAttempt)
    if asked and crash is Crash.IN_PAUSE:
        ledger.charged = script.head.charged
        assert ledger.charged.spend.restarts == ledger.paid + is_failure
    if not asked or crash in (Crash.BEFORE_CLAIM, Crash.IN_PAUSE):
        return False
    ledger.write(asked[0].claim, is_paid=is_failure)
    if crash is Crash.AFTER_CLAIM:
        return False
    assert sent(script.claimed(), Assign)
    ledger.answered += is_failure
    return crash is Crash.NEVER


def play(ledger: Ledger, events: list[Event]) -> None:
    """Play a run; where a start of the job ends, the next one begins."""
    script, is_at_work = ledger.begin(), False
    for event in events:
        if not is_at_work:
            script = ledger.begin()
            is_at_work = act(ledger, script, script.join(*range(NODES)), Crash.NEVER, is_failure=False)
            assert is_at_work
        # Without those that are set aside, because earlier allocations have lost them.
        here = [node for node in sorted(script.beating) if script.attempts.get(node) == script.head.attempt]
        if event.message is None:
            script.lose(here.pop())
        else:
            script.report(here[0], a_failure(attempt=script.head.attempt, message=event.message, node=f"node{here[0]}"))
        if event.crash is Crash.BEFORE_STOP:
            is_at_work = False
            continue
        actions = [action for node in here for action in script.stopped(node, step=event.step)]
        is_at_work = act(ledger, script, actions, event.crash, is_failure=event.message is not None)
        if ledger.has_result:
            return


EVENTS = st.builds(
    Event,
    message=st.sampled_from(["ValueError: a", "KeyError: b", None]),
    step=st.one_of(st.none(), st.integers(0, 5)),
    crash=st.sampled_from([*Crash, Crash.NEVER, Crash.NEVER]),
)


@given(st.integers(0, 4), st.integers(0, 4), st.integers(1, 4), st.lists(EVENTS, max_size=25))
def test_no_history_overspends_wherever_its_allocations_end(
    restarts: int, losses: int, no_progress: int, events: list[Event]
) -> None:
    ledger = Ledger(restarts, losses, no_progress)
    play(ledger, events)
    assert ledger.answered <= restarts
    assert not ledger.claims or ledger.answered <= ledger.claims[-1].spend.restarts


@given(st.integers(1, 4), st.integers(1, 5), st.sampled_from([Crash.AFTER_START, Crash.IN_PAUSE, Crash.AFTER_CLAIM]))
def test_the_same_failure_without_progress_ends_the_run_over_any_number_of_allocations(
    limit: int, crash: int, where: Crash
) -> None:
    """A crash loop that is preempted, or runs into its time limit, again and again does not begin anew each time."""
    ledger = Ledger(99, 99, limit)
    events = [Event("ValueError: a", 3, where if number % crash == 0 else Crash.NEVER) for number in range(limit + 1)]
    play(ledger, events)
    assert ledger.has_result
    assert ledger.answered <= limit
