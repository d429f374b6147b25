"""Every time on which the safety of membership rests, as a function of the lease, with the reasons why it is enough.

Theory of operation. All processes of an agent read one clock of their machine; the clocks of two machines may run apart
by `DRIFT`, and what they show is never compared. L is the lease. A machine that is paused does nothing meanwhile, so
each deadline stands in the guard's memory before it matters; the guard holds it, or the worker itself at its start.

The clock is `hpc_elastic.clock`, which goes on while the machine is suspended: that is a pause like any other, and a
lease that has run out meanwhile has run out. The guard is woken at its deadline by that clock. Two things are not
covered. The agent's own timers come late after a sleep, by what was left of the wait: then the guard fences, not the
agent. And from the moment the machine wakes up until the guard has killed them the workers run, as after any pause of a
whole machine; so they do where a hypervisor pauses a machine and its clocks with it, there for what was left of the
lease.

    patience   a member fences when its head has been silent for so long, counted from when it sent the newest beat
               that the head has answered
    contact    when a member heard its head last, by the member's clock
    acked      when the head sent the newest echo that the member says it got, by the head's clock: contact is later
    heard      when the newest beat came, by the head's clock: that beat was sent before
    guard      the guard kills so long after the agent should have
    kill       a guard has killed everything so long after it began, be there ten thousand processes on the node: what
               is below a living agent it finds without them; of the others it reads one file each, 0.1 s for all

1. A lost member has no workers when its head opens an attempt without it, at `heard + gone_after_heard`:
   patience + guard + kill, and what the clocks may differ in that time.
2. A lost head has no workers when a member that succeeds it opens an attempt, at `contact + succeeds_after_contact`. It
   keeps its own workers until `acked + L` for each member of its world; then the agent has `fences_within` to kill
   them, then the guard does: L + fences_within + guard + kill, and the clocks' difference.
3. The members of the lost head that have not come to its successor have no workers at `contact + closes_after_contact`.
   A head that lives tells them at `acked + L` at the latest, and one that does not live answers no beat after that: L +
   patience + guard + kill. This is a lower bound; it is 2 L and the margin of 2, since those who are late find a place.

`tests/membership/test_timing.py` holds these against clocks that drift, for every profile and lease that there may be.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpc_elastic.plan.leases import SHORTEST_LEASE_S

DRIFT = 1e-3  # of two clocks, each half of that too fast or too slow; a quartz does a tenth of that
KILL_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How fast an agent's own fence is; `name` for messages.

    `guard_s`: the guard's delay. `hurries_s`: a member fences so much earlier, since its guard is later than others'.
    `shortest_lease_s`: with a shorter one a member's patience is no time in which a machine may stand still.
    """

    name: str
    guard_s: float
    hurries_s: float = 0.0
    shortest_lease_s: float = SHORTEST_LEASE_S


AGENT = Profile(name="agent", guard_s=0.15)  # the agent comes first: the guard is for one that cannot
# torch's agent looks every `--monitor-interval`, 0.1 s: it has so long to stop its workers before the guard does.
TORCHRUN = Profile(name="torchrun", guard_s=1.0, hurries_s=1.0, shortest_lease_s=3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The times of one run, in seconds.

    Args:
        lease_s: the lease.
        profile: how fast the fences of all its agents are.
    """

    lease_s: float
    profile: Profile = AGENT

    @property
    def patience_s(self) -> float:
        """How long a head may be silent."""
        return self.lease_s * 2 / 3 - self.profile.hurries_s

    @property
    def guard_s(self) -> float:
        """How long after the agent's own deadline the guard kills."""
        return self.profile.guard_s

    @property
    def fences_within_s(self) -> float:
        """How long an agent that knows of a loss has to kill its workers, before its guard counts."""
        return 0.1

    @property
    def gone_after_heard_s(self) -> float:
        """When a lost member surely has no workers, from `heard` on."""
        return _slowly(self.patience_s + self.guard_s + KILL_S)

    @property
    def succeeds_after_contact_s(self) -> float:
        """When a lost head surely has no workers of its own, from `contact` on."""
        return _slowly(self.lease_s + self.fences_within_s + self.guard_s + KILL_S)

    @property
    def closes_after_contact_s(self) -> float:
        """When nobody of a lost head's world has workers, from `contact` on; whoever is late may come until then."""
        return self.lease_s + self.succeeds_after_contact_s

    @property
    def is_found_within_s(self) -> float:
        """How long a successor waits for those who may still be asking others, whose turn came before."""
        return self.lease_s / 2

    @property
    def starts_again_after_s(self) -> float:
        """When no agent of an earlier start of the job has workers, from its successor's claim of an allocation on.

        Its head looks once a second, and fences as soon as it knows. One that is frozen has its guard, if it has
        members that beat. One whose run directory hangs all that time does not hear of the new start, and goes on.
        """
        return max(STARTS_AGAIN_AFTER_S, self.succeeds_after_contact_s)

    @property
    def yields_s(self) -> float:
        """How long a side with too few nodes waits for the others to go on without it."""
        return _slowly(3 * self.lease_s) + 1

    @property
    def hopes_s(self) -> float:
        """How long a head waits for silent members without whom nobody can go on.

        It ends before a successor among them does (`yields_s` after its contact), which would name the wrong nodes.
        """
        return 2 * self.lease_s

    @property
    def returns_within_s(self) -> float:
        """How long a member that has said goodbye, because the head was silent, has to find it again."""
        return self.lease_s / 2

    @property
    def looks_every_s(self) -> float:
        """How often a head looks through its members, which takes the longer the more they are."""
        return self.lease_s / 12

    def beats_every_s(self, nodes: float) -> float:
        """How often a member of a world of so many nodes beats: half as often in a large one, for the head's sake."""
        return self.patience_s / (4 if nodes <= 1024 else 2)

    @property
    def asks_scheduler(self) -> bool:
        """Whether a scheduler is asked about silent nodes: a shorter lease has run out before it knows anything."""
        return self.lease_s >= 30.0


STARTS_AGAIN_AFTER_S = 3.0  # looks of an earlier start's head, each with some questions to a file server
ASKS_SCHEDULER_EVERY_S = 30.0
# A successor: how long spares have to come to it, for they lose the head when it does; and of those who may gather, how
# long each waits for every one before it.
SPARES_COME_WITHIN_S = 1.0
GATHERS_AFTER_S = 0.5
TURNS_AHEAD = (
    8  # whom an agent without a head asks beyond those whose turn has come: they may have begun to seek before it did
)
# How long a dialled agent has to answer, at first: twice that in the next round, and so on, for a slow machine.
ANSWERS_WITHIN_S = 0.5
LONGEST_ANSWER_S = 4.0
# The pauses between two rounds of dialling, and between two looks into the run directory.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5
READS_EVERY_S = 1.0
CLOSING_BOUND_S = 5.0  # who has not left so long after the end is dropped
TERM_SETTLES_S = 0.25  # Slurm's TERM reaches agent and workers within 10 ms, in any order


def _slowly(seconds: float) -> float:
    """So many seconds of the slowest clock, by the fastest one."""
    return seconds * (1 + DRIFT / 2) / (1 - DRIFT / 2)
