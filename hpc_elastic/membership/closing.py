"""The end of a run in an allocation: the head tells all members to leave, and waits for them within a bound."""

from __future__ import annotations

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import Action, Drop, HeadOver, KeepStates, Log, SendToMember
from hpc_elastic.membership.judge import Judge
from hpc_elastic.membership.members import Members
from hpc_elastic.membership.messages import End
from hpc_elastic.membership.rounds import HeadSettings

NEVER = float("inf")


class Closing:
    """The agents that still have to leave.

    Whoever was told to end the Slurm job, and the batch script itself, may be gone by then: their machine has lost its
    power just as the run ended, or stands still. The head, which waits for all to leave, is the one that sees that, so
    its own agent ends the job then, as nobody else would before its time limit. An agent that is dead closes its
    connection as one that leaves does. So a few others stand by, the head's own agent among them: they end the job if
    it is there for longer than one that is being ended.

    Args:
        settings: the head's node and the run's times.
        members: the agents that are here, those that were lost before, and who of them ends the Slurm job.
        judge: the decision that stands, and the training states that members hold.
    """

    __slots__ = (
        "_ender",
        "_have_left",
        "_is_script_unsure",
        "_is_settled",
        "_job_end",
        "_judge",
        "_members",
        "_roster",
        "_settings",
        "exit_code",
        "has_begun",
        "next_tick",
    )

    def __init__(self, settings: HeadSettings, members: Members, judge: Judge) -> None:
        self._settings = settings
        self._members = members
        self._roster = members.roster
        self._job_end = members.job_end
        self._judge = judge
        self._have_left: bool
        self._is_settled: bool
        self._ender: str | None = None  # who was told to end the job, and is not known to be gone
        self._is_script_unsure = False  # its node's agent was gone when the run ended
        self.has_begun = False  # it is decided, and on disk
        self.next_tick = NEVER  # when `tick` must be called at the latest, in monotonic seconds
        self.exit_code = int(ExitCode.SUCCESS)

    def begin(
        self, exit_code: int, cause: str, now: float, *, is_settled: bool = True, flushes_within_s: float | None = None
    ) -> list[Action]:
        """Tell all members to leave; `left` has to be asked next, for there may be none.

        Args:
            exit_code: the exit code with which they leave.
            cause: why the run ends.
            now: monotonic seconds.
            is_settled: no other agent can go on with the run.
            flushes_within_s: how long they may write training states; None: nothing has to follow before the job's end.
        """
        self.exit_code, self.has_begun = exit_code, True
        # A lost head, and members of its that have not joined this one, may be at work.
        self._have_left = self._members.gathering.succession is None
        self._is_settled = is_settled
        nodes = max((member.lease.nodes for member in self._roster), default=0)  # as one of which the rarest beats come
        self.next_tick = now + self._settings.timing.closes_within_s(nodes)
        flushes = self._judge.flushes(exit_code, within_s=flushes_within_s) if is_settled else {}
        actions = self._about_states(are_flushed=bool(flushes))
        # With REQUEUE that agent has the job started again, if that was decided, and does nothing else.
        is_ours = self._job_end.is_ours(is_settled=is_settled)
        self._is_script_unsure = is_settled and self._job_end.is_agent_away(self._roster)
        enders = self._job_end.who(self._roster, self._settings.node) if is_ours else ()
        self._ender = enders[0] if enders else None
        for member in self._roster:
            end = End(
                exit_code=exit_code,
                cause=cause,
                ends_job=member.node == self._ender,
                stands_by=enders.index(member.node) if member.node in enders else 0,
                is_settled=is_settled,
                flush=flushes.get(member.node),
            )
            actions.append(SendToMember(node=member.node, message=end))
        return actions

    def _about_states(self, *, are_flushed: bool) -> list[Action]:
        """Return what is said of the training states, and what keeps those for the next allocation that none writes."""
        states, attempt = self._judge.states, self._judge.history.attempts
        told: list[Action] = [Log(text=line, level="warning") for line in states.lines_at_end]
        if not self._is_settled or are_flushed or self.exit_code == ExitCode.SUCCESS:
            return told
        ended = states.unused(attempt)
        return told if ended is None else [*told, KeepStates(ended=ended, latest=attempt)]

    def lost(self, node: str) -> None:
        """Take note of a member that is gone and, by its silence or its goodbye, has not left: it ends no job."""
        if node == self._ender:
            self._ender = None

    def left(self) -> list[Action]:
        """Return the end of this head, once, if the last member has left."""
        if self.next_tick == NEVER or len(self._roster) > 0:
            return []
        self.next_tick = NEVER
        is_ours = self._job_end.is_ours(is_settled=self._is_settled)
        over = HeadOver(
            have_all_left=self._have_left and not self._members.losses.may_live,
            ends_job=is_ours and self._ender is None,
            looks_for_script=self._is_script_unsure and not is_ours,
        )
        return [over]

    def tick(self, now: float) -> list[Action]:
        """Drop the members that have not left by the bound; `left` has to be asked next."""
        if now < self.next_tick:
            return []
        self._have_left = False
        drops: list[Action] = [Drop(node=member.node) for member in self._roster]
        for member in self._roster:  # the others use their grace, and do then what they were told
            if now - member.lease.heard >= self._settings.timing.silent_before_restart_s(member.lease.nodes):
                self._job_end.lost(member.node, is_agent_alone=False)
                self.lost(member.node)
            self._roster.remove(member.node)
        return drops
