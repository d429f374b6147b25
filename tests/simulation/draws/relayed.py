"""Draws scenarios in which an allocation ends just after a node is lost: others write the state that it had copied.

In some nobody copies, and what the others hold is no use.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.draws.copies import draw_copies
from tests.simulation.scenario import Fault, Scenario

NOBODY_COPIES = 5  # of eight seeds
LOST = ("kill_agent", "power_off", "power_off", "partition")


def draw_relayed(seed: int) -> Scenario:
    """The scenario of a seed: the job starts again, and the run goes on with what was written."""
    scenario, dice = draw_copies(seed), random.Random(f"relayed/{seed}")
    (role,) = scenario.roles
    members, at = role.nodes_max, dice.uniform(8.0, 15.0)
    lost = Fault(what=dice.choice(LOST), node=dice.randrange(members), at=round(at, 3))
    if lost.what == "partition":
        lost = replace(lost, side=(dice.randrange(members),), lasts_s=round(6 * scenario.lease_s, 3))
    after_s = dice.choice([0.05, 0.3, dice.uniform(0.0, 1.5 * scenario.lease_s)])
    ends = Fault(what="term_all", at=round(at + after_s, 3))
    again = Fault(what="requeue", side=(), at=round(ends.at + dice.choice([8.0, 30.0]), 3))
    return replace(
        scenario,
        nodes=members,
        roles=(replace(role, nodes_min=max(1, members - 1), workers=(2,), failure_chance=0.0),),
        damage_chance=0.0,
        copy_s=None if seed % 8 == NOBODY_COPIES else 0.02,
        is_requeued=True,
        faults=(lost, ends, again),
    )
