"""All durations on which the safety of membership rests, as functions of the lease, with the reasons why they suffice.

Theory of operation. All processes of an agent read one clock of their machine; the clocks of two machines may run apart
by `DRIFT`, and what they show is never compared. L is the lease. A machine that is paused does nothing meanwhile, so
each deadline stands in the guard's memory before it matters; the guard holds it, or the worker itself at its start.

The clock is `hpc_elastic.clock`, which goes on while the machine is suspended: that is a pause like any other, and a
lease that has run out meanwhile has run out. The guard is woken at its deadline by that clock. Two things are not
covered. The agent's own timers come late after a sleep, by what was left of the wait: then the guard fences, not the
agent. And from the moment the machine wakes up until the guard has killed them the workers run, as after any pause of a
whole machine; so they do where a hypervisor pauses a machine and its clocks with it, there for what was left of the
lease.

    patience   a member fences when its head has been silent for this long, counted from when the member sent the
               newest beat that the head has answered
    contact    when a member heard its head last, by the member's clock
    acked      when the head sent the newest echo that the member says it got, by the head's clock: contact is later
    heard      when the newest beat came, by the head's clock: that beat was sent before
    guard      the guard kills the workers this long after the agent should have killed them
    kill       a guard has killed all workers this long after it began, even with ten thousand processes on the node:
               it finds those below a living agent without a search of the node; to find the others it reads one file
               of each process, 0.1 s for all

1. A lost member has no workers when its head opens an attempt without it, at `heard + gone_after_heard`:
   patience + guard + kill, and what the clocks may differ in that time.
2. A lost head has no workers when a member that succeeds it opens an attempt, at `contact + succeeds_after_contact`. It
   keeps its own workers until `acked + L` for each member of its world; then the agent has `fences_within` to kill
   them, then the guard does: L + fences_within + guard + kill, and the clocks' difference.
3. The members of the lost head that have not come to its successor have no workers at `contact + closes_after_contact`.
   A head that lives tells them at `acked + L` at the latest, and one that does not live answers no beat after that: L +
   patience + guard + kill. This is a lower bound; the time used is 2 L and the margin of 2, so that late members still
   find a place.

`tests/membership/test_timing.py` checks these with clocks that drift, for every profile and lease that there may be.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpc_elastic.plan.leases import SHORTEST_LEASE_S

MANY = float("inf")  # nodes, as long as nobody knows how many
MANY_MEMBERS = 1024  # with more of them each beats half as often
DRIFT = 1e-3  # of two clocks, each half of that too fast or too slow; a quartz does a tenth of that
KILL_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The speed of an agent's own fence; `name` for messages.

    `guard_s`: the guard's delay. `hurries_s`: a member fences this much earlier, since its guard is later than others'.
    `shortest_lease_s`: with a shorter lease a member's patience would be too short for a machine's usual pauses.
    """

    name: str
    guard_s: float
    hurries_s: float = 0.0
    shortest_lease_s: float = SHORTEST_LEASE_S


AGENT = Profile(name="agent", guard_s=0.15)  # the agent kills first: the guard is for an agent that cannot
# torch's agent looks every `--monitor-interval`, 0.1 s: it has `guard_s` to stop its workers before the guard does.
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
        """Return how long a head may be silent before a member fences."""
        return self.lease_s * 2 / 3 - self.profile.hurries_s

    @property
    def guard_s(self) -> float:
        """Return how long after the agent's own deadline the guard kills the workers."""
        return self.profile.guard_s

    @property
    def fences_within_s(self) -> float:
        """Return how long an agent that knows of a loss has to kill its workers, before the guard's delay begins."""
        return 0.1

    @property
    def gone_after_heard_s(self) -> float:
        """Return how long after `heard` a lost member surely has no workers."""
        return _slowly(self.patience_s + self.guard_s + KILL_S)

    @property
    def succeeds_after_contact_s(self) -> float:
        """Return how long after `contact` a lost head surely has no workers of its own."""
        return _slowly(self.lease_s + self.fences_within_s + self.guard_s + KILL_S)

    @property
    def closes_after_contact_s(self) -> float:
        """Return how long after `contact` no node of a lost head's world has workers; late ones may join until then."""
        return self.lease_s + self.succeeds_after_contact_s

    @property
    def is_found_within_s(self) -> float:
        """Return how long a successor waits for members that may still be dialling nodes with an earlier turn."""
        return self.lease_s / 2

    @property
    def starts_again_after_s(self) -> float:
        """Return how long after a new start's claim of an allocation no agent of an earlier start has workers.

        The earlier start's head reads the run directory once a second, and fences as soon as it sees the claim. If that
        head is frozen, its guard kills its workers, provided that it has members that send beats. A head whose run
        directory hangs all that time does not see the new start, and goes on.
        """
        return max(STARTS_AGAIN_AFTER_S, self.succeeds_after_contact_s)

    @property
    def awaits_rivals_s(self) -> float:
        """Return how long a side with too few nodes waits for the other nodes to go on without it."""
        return _slowly(3 * self.lease_s) + 1

    def awaits_others_s(self, since_contact_s: float) -> float:
        """Return how long a successor with too few nodes waits for the others from the end of its round on, at least.

        Where it comes later than a quick disk lets it, the others may come as late, each after its own readings, and
        ask those who are gone before they ask this one.

        Args:
            since_contact_s: how long after `contact` its round has ended.
        """
        late_s = max(0.0, since_contact_s - self.closes_after_contact_s)
        return self.lease_s + min(late_s, MOST_LATE_S)

    @property
    def awaits_return_s(self) -> float:
        """Return how long a head waits for silent members without which no side can go on.

        The head ends the run before a successor among those members would, which does so `awaits_rivals_s` after its
        contact, because that successor would name the wrong nodes as lost.
        """
        return 2 * self.lease_s

    @property
    def returns_within_s(self) -> float:
        """Return how long a member that has said goodbye, because the head was silent, has to find it again."""
        return self.lease_s / 2

    def asks_again_s(self, join_timeout_s: float) -> float:
        """Return how long an agent asks a head that fell silent before the first attempt, until it claims in its place.

        No longer than its tries are short: all claim in turns, and have to find the one that was first.
        """
        return min(self.returns_within_s, ASKS_AGAIN_S, join_timeout_s / 4)

    @property
    def silent_before_reset_s(self) -> float:
        """Return how long a member was silent whose reset may be that of a live agent that has given its head up.

        A member that lives is heard at each of its beats, four in its patience, or two with very many members.
        """
        return self.patience_s * 3 / 4

    def silent_before_restart_s(self, nodes: float) -> float:
        """Return how long a machine was silent whose reset may mean that it has started again.

        That is two beats, where the member, on one side or the other, beats as one of so many nodes; it is one and a
        half where it beats twice in its patience, which is over before the next. It only says who sees to the end of
        the job; a machine that answers by then is left to end it itself.
        """
        return min(2 * self.beats_every_s(nodes), self.silent_before_reset_s)

    def closes_within_s(self, nodes: float) -> float:
        """Return how long after the end of the run a head drops the members that have not left.

        By then it knows which of them are silent, if each beats as one of so many nodes or more often: they do not end
        the job. The last beat of one that is silent from then on may still be on its way.
        """
        return max(CLOSING_BOUND_S, self.silent_before_restart_s(nodes) + LAST_BEAT_LATE_S)

    @property
    def head_closes_within_s(self) -> float:
        """Return how long an agent whose own part has ended waits for the head on its node to be over."""
        return self.closes_within_s(MANY) + HEAD_CLOSES_LATE_S

    @property
    def looks_every_s(self) -> float:
        """Return the interval at which a head checks its members' leases; a check takes longer with more members."""
        return self.lease_s / 12

    def beats_every_s(self, nodes: float) -> float:
        """Return the interval of a member's beats; with more than `MANY_MEMBERS` it is double, to spare the head."""
        return self.patience_s / (4 if nodes <= MANY_MEMBERS else 2)

    @property
    def asks_scheduler(self) -> bool:
        """Return whether the scheduler is asked about silent nodes; a shorter lease ends before it knows anything."""
        return self.lease_s >= 30.0


STARTS_AGAIN_AFTER_S = 3.0  # covers some looks of an earlier start's head, each with some requests to a file server
ASKS_SCHEDULER_EVERY_S = 30.0
# How long spares have to join a successor, for they lose the head when the successor does; and how long a node that may
# gather waits for each node whose turn comes before its own.
SPARES_COME_WITHIN_S = 1.0
# A first head that too few nodes can reach: agents that have given it up allow it so long to open an attempt without
# them, or to end the run, before one of them takes its place; the others look so long for that one; and so long it
# waits itself for being relieved before it ends the run.
HEAD_REACTS_WITHIN_S = 20.0
RELIEVED_WITHIN_S = 35.0
AWAITS_RELIEF_S = 45.0
# A head that is relieved while nodes that make enough may still come steps down so long before their time is over.
YIELDS_BEFORE_S = 10.0
# How long the end of a run waits, whose first node has said that it cannot take part, for others to say so too.
UNFIT_SETTLES_S = 2.0
GATHERS_AFTER_S = 0.5
TURNS_AHEAD = 8  # nodes that an agent dials beyond those whose turn has come: they may have begun their search before
ASKS_AGAIN_S = 5.0  # an agent asks a head at most that was silent before the first attempt; its tries grow longer then
TURNS_TO_ASK = 6  # for so many turns an agent asks a head that it has not had yet, before it takes its place
EARLY_TURNS = 16  # whose own turn comes later begins with one: they are many in a large world
MOST_SPARES = 64  # how many spares a world's record names, and how many turns of members they wait for at most
MOST_TURNS = 64  # how many members a claim names in the order of their turns; the whole roster is read beyond that
# How long a dialled agent has to accept the connection at first; the time doubles every four rounds of dialling, for a
# slow machine, and once before the first where two round trips, to connect and to prove the secret, may take longer.
# An agent that has accepted it and keeps it open is the head, and has the longest time for its answer.
ANSWERS_WITHIN_S = 0.5
ROUND_TRIPS = 2
MOST_DOUBLINGS = 3
LONGEST_ANSWER_S = ANSWERS_WITHIN_S * 2**MOST_DOUBLINGS
# How long after one lost node the next one comes back, where a network was down for all of them: it may have just begun
# to ask an agent that was out of reach as well, and asks the next one, perhaps this head, when it has given that up.
OTHERS_RETURN_WITHIN_S: float = LONGEST_ANSWER_S + 0.5
MOST_LATE_S: float = 2 * LONGEST_ANSWER_S  # a round of dialling, in which two do not answer: the lost head, and another
# The pauses after the rounds of dialling, of which the last one stays, and between two looks into the run directory.
DIAL_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.5)
READS_EVERY_S = 1.0
CLOSING_BOUND_S = 5.0  # members that have not left this long after the end are dropped, or later with a long lease
LAST_BEAT_LATE_S = 0.5  # a beat comes so long after the end of the run at most that was sent before its news arrived
HEAD_CLOSES_LATE_S = 5.0  # the end of the run may come a little after this node's own part in it has ended
TERM_SETTLES_S = 0.25  # Slurm's TERM reaches agent and workers within 10 ms, in any order
TIMEOUTS_SETTLE_S = 2.0  # ranks that wait for the same one time out at about the same time; no lease rests on it


def _slowly(seconds: float) -> float:
    """Return how many seconds the fastest clock shows at most while the slowest one shows `seconds`."""
    return seconds / (1 - DRIFT)
