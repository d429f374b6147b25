"""Draws scenarios of small worlds with spares, which lose all of their members, or most, or only seem to."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import HEAD, SECOND, Fault, Role, Scenario

KINDS = ("kill_agent", "kill_agent", "power_off", "pause", "partition", "one_way", "stall_disk", "freeze")
CUT_OFF, HOST_OFF, ALL_OFF = 17, 18, 19  # of twenty seeds


def draw_spares(seed: int) -> Scenario:
    """The scenario of a seed: in every third one all faults are deaths that a kernel tells."""
    if seed % 20 == ALL_OFF:
        return _draw_all_off(seed)
    if seed % 20 == HOST_OFF:
        return draw_host_off(seed)
    if seed % 20 == CUT_OFF:
        return _draw_cut_off(seed)
    dice = random.Random(f"spares/{seed}")
    members, spares = dice.choice([1, 1, 2, 2, 3]), dice.choice([1, 1, 2, 3])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, members),
        nodes_max=members,
        workers=dice.choice([(1,), (2,), (1, 3)]),
        work_s=dice.choice([20.0, 60.0]),
        patience_s=dice.choice([0.0, 0.0, 30.0]),
    )
    scenario = Scenario(
        seed=seed,
        roles=(role,),
        nodes=members + spares,
        lease_s=dice.choice([3.0, 10.0]),
        join_timeout_s=dice.choice([30.0, 60.0]),
        delays_s=dice.choice([(0.0,), (0.001,), (0.0, 0.001, 0.02), (0.001, 0.2)]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05), (0.001, 0.01, 0.5)]),
        spawn_s=dice.choice([(0.02,), (0.02, 3.0)]),
        rejoin=dice.choice(["at_restart", "immediately"]),
    )
    only_deaths = dice.random() < 0.34
    at = dice.uniform(2, 3 + 1.1 * role.work_s)
    faults = []
    for number in range(members):  # the world ends, one member after the other, or seems to
        what = "kill_agent" if only_deaths else dice.choice(KINDS)
        faults.append(draw_fault(dice, scenario, what, HEAD if number == 0 and not only_deaths else number, at))
        at += dice.choice([0.0, 0.0, 0.001, 0.3, dice.uniform(0, 2.5 * scenario.lease_s)])
    if dice.random() < 0.6:  # and something happens to those who might go on
        what = "kill_agent" if only_deaths else dice.choice(KINDS)
        node = dice.choice([HEAD, dice.randrange(scenario.nodes)] + ([] if only_deaths else [SECOND]))
        faults.append(draw_fault(dice, scenario, what, node, at + dice.uniform(0, 4 * scenario.lease_s)))
    return replace(scenario, faults=tuple(faults))


def _draw_all_off(seed: int) -> Scenario:
    """The machines of all members lose their power together, and spares, which cannot know it, search for a while."""
    dice = random.Random(f"spares/all off/{seed}")
    members, at = dice.choice([3, 4, 5]), round(dice.uniform(4, 8), 3)
    role = Role(name="trainer", restart="restart_all", nodes_min=1, nodes_max=members, workers=(1,), work_s=30.0)
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=members + dice.choice([2, 3]),
        lease_s=3.0,
        join_timeout_s=30.0,
        faults=tuple(Fault(what="power_off", node=number, at=at) for number in range(members)),
    )


def _draw_cut_off(seed: int) -> Scenario:
    """A spare's connection is reset, as a dead head's would be, and then the spare reaches nobody for a while."""
    dice = random.Random(f"spares/cut off/{seed}")
    members, at, lease_s = dice.choice([2, 3, 4]), round(dice.uniform(4, 8), 3), dice.choice([3.0, 10.0])
    role = Role(name="trainer", restart="restart_all", nodes_min=1, nodes_max=members, workers=(1,), work_s=30.0)
    lasts_s = round(dice.uniform(2.0, 6.0), 3)
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=members + dice.choice([1, 2]),
        lease_s=lease_s,
        join_timeout_s=30.0,
        faults=(
            Fault(what="reset", node=members, at=at),
            Fault(what="partition", side=(members,), at=round(at + dice.choice([0.0, 0.003]), 3), lasts_s=lasts_s),
        ),
    )


def draw_host_off(seed: int) -> Scenario:
    """The batch script's machine is head no more when it loses its power, and often the next head loses it, too."""
    dice = random.Random(f"spares/host off/{seed}")
    members, spares, lease_s = dice.choice([3, 4]), dice.choice([0, 1, 2]), 3.0
    role = Role(name="trainer", restart="restart_all", nodes_min=1, nodes_max=members, workers=(1,), work_s=60.0)
    at = round(dice.uniform(24, 30), 3)
    faults = [Fault(what="pause", node=0, at=6.0, lasts_s=2.2 * lease_s), Fault(what="power_off", node=0, at=at)]
    if dice.random() < 0.7:
        later_s = dice.choice([0.0, 0.5, 2.0, 4.0]) * lease_s
        faults.append(Fault(what=dice.choice(["power_off", "kill_agent"]), node=HEAD, at=round(at + later_s, 3)))
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=members + spares,
        lease_s=lease_s,
        join_timeout_s=30.0,
        rejoin=dice.choice(["at_restart", "immediately"]),
        faults=tuple(faults),
    )


def draw_fault(dice: random.Random, scenario: Scenario, what: str, node: int, at: float) -> Fault:
    fault = Fault(what=what, node=node, at=round(at, 3))
    if what in ("kill_agent", "power_off"):
        return fault
    lasts_s = round(scenario.lease_s * dice.choice([0.3, 0.7, 1.0, 1.3, 2.2, 3.5, 6.0]), 3)
    if what in ("partition", "one_way"):
        side = tuple(number for number in range(scenario.nodes) if dice.random() < 0.4) or (0,)
        return replace(
            fault, side=side, lasts_s=lasts_s, way=dice.choice(["in", "out"]) if what == "one_way" else "both"
        )
    return replace(fault, lasts_s=lasts_s, point=dice.randrange(60))
