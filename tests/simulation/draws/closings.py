"""Draws scenarios in which the batch script's machine is lost, and then, as the run ends, who is to end the job."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.draws.spares import draw_host_off
from tests.simulation.scenario import HEAD, SECOND, Fault, Scenario

# An agent that is killed before it has left looks to the head as if it had left: its kernel closes the connection.
WHATS = ("power_off", "power_off", "power_off", "pause", "partition")
HOST_STAYS = 4  # of so many seeds one
LAST_GOES = 8  # of so many seeds one
LONG_LEASE_S = 10.0  # longer than a head waits for the last to leave


def draw_closings(seed: int) -> Scenario:
    """The scenario of a seed: messages are slow, so that there is a moment between the end and the last to leave."""
    scenario, dice = draw_host_off(seed), random.Random(f"closings/{seed}")
    pause, off = scenario.faults[:2]
    role = replace(scenario.roles[0], work_s=off.at + dice.uniform(10.0, 30.0))
    ender = 1 if seed % 2 == 0 else 2  # of those that could end the job, see `Agent.can_end_job`
    node = dice.choice([ender, ender, ender, HEAD, SECOND])
    if seed % LAST_GOES == 3:  # which ends no job; whoever does has left by the bound
        node = scenario.nodes - 1
    what, lasts_s = dice.choice(WHATS), scenario.lease_s * dice.choice([1.3, 3.0, 6.0])
    lost = Fault(
        what=what,
        node=node,
        side=(node,),
        phase="closing",
        at=round(dice.uniform(0.0, 0.6), 3),
        lasts_s=lasts_s if what in ("pause", "partition") else 0.0,
    )
    ends = Fault(what="stop", at=round(off.at + dice.uniform(6.0, 20.0), 3))
    if seed % HOST_STAYS == 0:  # it is lost as the run ends, and not before
        host = replace(lost, node=0, side=(0,), what=dice.choice(["power_off", "pause"]), lasts_s=lasts_s)
        if seed % (2 * HOST_STAYS):
            return replace(scenario, roles=(role,), delays_s=(0.2,), faults=(pause, ends, host))
        before_it_hears = round(lost.at / 4, 3)
        lost = replace(host, node=dice.choice([0, 0, 2]), at=before_it_hears, lasts_s=2 * LONG_LEASE_S)
        if seed % (4 * HOST_STAYS):
            lost = replace(lost, node=0, what="power_off", lasts_s=0.0)
        pause = replace(pause, lasts_s=2.2 * LONG_LEASE_S)
        ends = replace(ends, at=round(pause.at + 4 * LONG_LEASE_S, 3))
        role = replace(role, work_s=ends.at + 10.0)
        return replace(scenario, roles=(role,), delays_s=(0.2,), lease_s=LONG_LEASE_S, faults=(pause, ends, lost))
    return replace(scenario, roles=(role,), delays_s=(0.2,), faults=(pause, off, ends, lost))
