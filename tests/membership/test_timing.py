"""Whoever may start workers starts them when nobody else has any, by clocks that run apart; for each lease and profile.

Time here is the real one, which no machine has. A machine's clock shows `rate` seconds in one of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpc_elastic.membership.lease import Lease, MemberLease
from hpc_elastic.membership.messages import Beat
from hpc_elastic.membership.timing import AGENT, DRIFT, KILL_S, MOST_LATE_S, TORCHRUN, Profile, Timing
from hpc_elastic.plan.leases import LONGEST_LEASE_S
from tests.membership.script import HeadScript

PROFILES = [AGENT, TORCHRUN]
RATES = st.floats(1 - DRIFT / 2, 1 + DRIFT / 2)
DELAYS = st.floats(0, 600)  # of a message, while nobody's lease minds


@dataclass(frozen=True)
class Clock:
    rate: float

    def after(self, moment: float, seconds: float) -> float:
        """The real time at which this clock shows so many seconds more than at a moment."""
        return moment + seconds / self.rate


def timings() -> st.SearchStrategy[Timing]:
    def of(profile: Profile) -> st.SearchStrategy[Timing]:
        leases = st.floats(profile.shortest_lease_s, LONGEST_LEASE_S)
        return st.builds(Timing, lease_s=leases, profile=st.just(profile))

    return st.sampled_from(PROFILES).flatmap(of)


def clocks() -> st.SearchStrategy[Clock]:
    return st.builds(Clock, RATES)


@given(timings(), clocks(), clocks(), DELAYS)
def test_a_lost_member_has_no_workers_when_an_attempt_opens_without_it(
    timing: Timing, member: Clock, head: Clock, delay_s: float
) -> None:
    sent, heard = 0.0, delay_s
    guard_is_done = member.after(sent, timing.patience_s + timing.guard_s + KILL_S)
    assert guard_is_done <= head.after(heard, timing.gone_after_heard_s)


@given(timings(), clocks(), clocks(), DELAYS, st.floats(0, 600))
def test_a_lost_head_has_no_workers_when_a_member_succeeds_it(
    timing: Timing, member: Clock, head: Clock, delay_s: float, paused_s: float
) -> None:
    """However long it was paused when its lease of that member had run out, and whenever it wakes."""
    acked, contact = 0.0, delay_s
    lease_ended = head.after(acked, timing.lease_s)
    wakes = head.after(lease_ended, min(paused_s, timing.guard_s))
    fenced_by = min(head.after(lease_ended, timing.fences_within_s), head.after(wakes, timing.fences_within_s))
    guard_is_done = head.after(fenced_by, timing.guard_s + KILL_S)
    assert guard_is_done <= member.after(contact, timing.succeeds_after_contact_s)


@given(timings(), clocks(), clocks(), clocks(), DELAYS, st.floats(0, 1))
def test_the_members_of_a_lost_head_have_no_workers_when_its_successor_goes_on_without_them(
    timing: Timing, successor: Clock, head: Clock, other: Clock, delay_s: float, part: float
) -> None:
    """The other one has heard the head as late as that can be: until it misses the successor, or is paused."""
    acked, contact = 0.0, delay_s
    last_echo = head.after(acked, timing.lease_s * part)
    sent = last_echo  # the beat that it answers, as late as it can be
    guard_is_done = other.after(sent, timing.patience_s + timing.guard_s + KILL_S)
    assert guard_is_done <= successor.after(contact, timing.closes_after_contact_s)


@given(timings(), st.integers(1, 1024))
def test_two_lost_beats_cost_nothing(timing: Timing, nodes: int) -> None:
    assert 3 * timing.beats_every_s(nodes) < timing.patience_s


@pytest.mark.long
@given(timings(), st.integers(1025, 100_000) | st.just(float("inf")))
def test_a_late_beat_costs_nothing_in_a_world_of_any_size_or_before_there_is_one(timing: Timing, nodes: float) -> None:
    assert 1.5 * timing.beats_every_s(nodes) < timing.patience_s


def test_the_heads_times_are_those_of_its_profile() -> None:
    settings = HeadScript(2).settings
    assert settings.timing == Timing(lease_s=settings.lease_s, profile=AGENT)
    assert replace(settings, profile=TORCHRUN).timing == Timing(lease_s=settings.lease_s, profile=TORCHRUN)


@given(timings())
def test_a_head_looks_often_enough_to_see_a_silence_long_before_it_has_waited_for_it(timing: Timing) -> None:
    assert timing.looks_every_s * 2 < timing.patience_s < timing.lease_s


@given(timings(), clocks(), clocks(), DELAYS)
@example(Timing(lease_s=600), Clock(1 - DRIFT / 2), Clock(1 + DRIFT / 2), 0.0)
def test_the_head_ends_a_run_before_the_silent_ones_who_would_name_all_others(
    timing: Timing, head: Clock, silent: Clock, delay_s: float
) -> None:
    acked, contact = 0.0, delay_s
    lost = head.after(acked, timing.lease_s)
    assert head.after(lost, timing.awaits_return_s) < silent.after(contact, timing.awaits_rivals_s)


@given(timings())
def test_a_side_with_too_few_nodes_waits_until_the_others_must_have_gone_on(timing: Timing) -> None:
    assert timing.awaits_rivals_s > timing.closes_after_contact_s


@given(timings())
def test_a_successor_that_comes_late_waits_longer_for_the_others_but_not_for_ever(timing: Timing) -> None:
    in_time = timing.closes_after_contact_s
    assert timing.awaits_others_s(in_time - 1) == timing.awaits_others_s(in_time) == timing.lease_s
    assert timing.awaits_others_s(in_time + 5) == pytest.approx(timing.lease_s + 5)
    assert timing.awaits_others_s(in_time + 1000) == timing.lease_s + MOST_LATE_S


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_what_an_ordinary_lease_comes_to(profile: Profile) -> None:
    """So that a change of a formula is seen in seconds."""
    timing = Timing(lease_s=10, profile=profile)
    found = (timing.patience_s, timing.gone_after_heard_s, timing.succeeds_after_contact_s)
    expected = {"agent": (6.667, 7.074, 10.511), "torchrun": (5.667, 6.924, 11.361)}[profile.name]
    assert found == pytest.approx(expected, abs=0.001)


def test_no_lease_is_too_short_for_a_machine_that_stands_still_for_half_a_second() -> None:
    for profile in PROFILES:
        timing = Timing(lease_s=profile.shortest_lease_s, profile=profile)
        assert timing.patience_s - timing.beats_every_s(1024) >= 0.5


# What the machines do with these times.


def test_a_members_deadline_counts_from_when_it_sent_the_beat_that_was_answered() -> None:
    lease = Lease(Timing(lease_s=9))
    lease.start(0.0)
    lease.share(2)
    (beat,) = lease.beat(lease.next_beat)
    sent = lease.next_beat - Timing(lease_s=9).beats_every_s(2)
    lease.echoed(beat.number, lease.next_beat)
    assert lease.deadline == pytest.approx(sent + 6.0)


def test_a_member_knows_how_long_the_slowest_of_its_latest_echoes_took() -> None:
    lease = Lease(Timing(lease_s=9))
    lease.start(0.0)
    assert lease.round_trip_s == 0.0
    found = []
    for took_s in (0.01, 0.4, 0.02, 0.02, 0.02, 0.02):
        sent = lease.next_beat
        (beat,) = lease.beat(sent)
        lease.echoed(beat.number, sent + took_s)
        found.append(lease.round_trip_s)
    assert found == pytest.approx([0.01, 0.4, 0.4, 0.4, 0.4, 0.02])


def test_a_member_sends_its_first_beat_in_time_for_the_number_of_members_once_it_knows_that() -> None:
    """Its lease counts from its question to join until an echo comes, so a late first beat would leave little of it."""
    lease = Lease(Timing(lease_s=30))
    lease.start(100.0)
    assert lease.next_beat == 110.0
    lease.share(2)
    assert lease.next_beat == 105.0
    assert lease.beat(105.0) == [Beat(number=1)]
    lease.share(2)
    assert lease.next_beat == 110.0


def test_a_heads_lease_counts_from_when_it_sent_the_echo_that_has_arrived() -> None:
    lease = MemberLease(0.0)
    lease.beat(Beat(number=1, heard=0), 10.0)
    lease.beat(Beat(number=2, heard=0), 11.0)
    assert (lease.heard, lease.acked) == (11.0, 0.0)
    lease.beat(Beat(number=3, heard=1), 12.0)
    assert (lease.heard, lease.acked) == (12.0, 10.0)
