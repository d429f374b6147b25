"""Draws scenarios in which two nodes are lost one soon after the other, and nearly all nodes are needed."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario

FOR_EVER_S = 1e6
SILENT = {"pause", "stall_link", "partition", "one_way"}
LOST = ("partition", "partition", "deaf", "power_off", "kill_agent", "pause", "stall_link", "reset")


def draw_scarce(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"scarce/{seed}")
    nodes, lease_s = dice.choice([3, 4, 4, 5]), dice.choice([3.0, 10.0])
    least = max(2, nodes - dice.choice([0, 1, 1, 2]))
    faults, has_spare = [], dice.random() < 0.3
    if has_spare:
        what = dice.choice(["never_starts", "starts_late"])
        faults.append(Fault(what=what, node=nodes, lasts_s=round(dice.uniform(5, 40), 3)))
    at = dice.uniform(5, 20)
    has_pause = dice.random() < 0.25
    if has_pause:
        faults.append(Fault(what="kill_worker", node=dice.randrange(nodes), at=round(at - dice.uniform(0, 2), 3)))
    for node in dice.sample(range(nodes), 2):
        faults.append(_loss(dice, node, round(at, 3), lease_s))
        at += dice.uniform(0, 1.5) * lease_s
    kinds = {fault.what for fault in faults}
    if "reset" in kinds and kinds & SILENT:
        # A reset says that an agent is dead; one that somebody else sends while the agent is silent tells a lie.
        faults = [fault for fault in faults if fault.what != "reset"]
    role = Role(name="trainer", restart="restart_all", nodes_min=least, nodes_max=nodes, workers=(1,), work_s=40.0)
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes + has_spare,
        lease_s=lease_s,
        join_timeout_s=dice.choice([60.0, 60.0, 200.0]),
        backoff_first_s=round(lease_s * dice.uniform(1, 4), 3) if has_pause else 0.0,
        faults=tuple(faults),
    )


def _loss(dice: random.Random, node: int, at: float, lease_s: float) -> Fault:
    what = dice.choice(LOST)
    lasts_s = dice.choice([round(lease_s * dice.uniform(0.5, 3), 3), FOR_EVER_S])
    if what == "deaf":
        return Fault(what="one_way", side=(node,), way="in", at=at, lasts_s=lasts_s)
    if what == "partition":
        return Fault(what=what, side=(node,), at=at, lasts_s=lasts_s)
    return Fault(what=what, node=node, at=at, lasts_s=min(lasts_s, 3 * lease_s))
