"""Draws scenarios of which `foretold` can say all that comes: one thing after the other, each when the last is over."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import HEAD, SECOND, Fault, Role, Scenario

THINGS = (
    *("kill_worker", "exit_worker", "term_worker", "kill_agent", "kill_agent", "power_off", "power_off"),
    *("partition", "partition", "pause", "ask_restart", "ask_drain", "nothing"),
)
DRAINS = 7  # of sixteen seeds
LATE_DEATHS = 11  # likewise: then whoever is awaited in vain holds the next attempt up
SHORTEST_WORK = 0.8  # of what a role works, on some node
ENDS = ("none", "none", "stop", "ask_stop", "too_many_failures", "too_few_nodes")


def draw_foretold(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"foretold/{seed}")
    are_late = seed % 16 == LATE_DEATHS
    members, spares = (4, 0) if are_late else (dice.choice([2, 2, 3, 4]), dice.choice([0, 0, 1, 2]))
    lease_s = dice.choice([3.0, 3.0, 10.0])
    gap_s, end = 4 * lease_s + 14, dice.choice(ENDS)
    things = _draw_things(dice, seed)
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, 1 if are_late else members),
        nodes_max=members,
        workers=dice.choice([(1,), (2,)]),
        work_s=3.2 * gap_s,
    )
    failures = sum(thing.endswith("_worker") for thing in things)
    scenario = Scenario(
        seed=seed,
        roles=(role,),
        nodes=members + spares,
        max_restarts=failures + (0 if end == "too_many_failures" else dice.choice([0, 1, 3])),
        no_progress_limit=9,
        backoff_first_s=dice.choice([0.0, 0.0, 2.0]),
        lease_s=lease_s,
        join_timeout_s=dice.choice([30.0, 60.0]),
        rejoin=dice.choice(["at_restart", "immediately"]),
        is_foretold=True,
    )
    at, faults = 6.0 + lease_s + dice.uniform(0, 2), list[Fault]()
    for thing in things:
        node = dice.choice([HEAD] * (thing != "ask_drain") + [*range(scenario.nodes)])
        if thing == "ask_drain" and any(fault.what != thing for fault in faults):  # who is away may be needed
            thing = "ask_restart"
        if thing in ("partition", "pause") and any(fault.what == thing for fault in faults):
            thing = "kill_worker" if end != "too_many_failures" else "nothing"
        fault = Fault(what=thing, node=node, at=round(at, 3))
        if thing == "partition":
            fault = replace(fault, side=(node,), lasts_s=dice.choice([1.5, 2.2]) * lease_s)
        if thing == "pause":
            fault = replace(fault, node=HEAD, lasts_s=dice.choice([0.3, 0.85, 2.2]) * lease_s)
        faults += [] if thing == "nothing" else [fault]
        if thing == "power_off" and fault.node == HEAD and members > 2 and dice.random() < 0.5:
            faults.append(replace(fault, node=SECOND))
        at += gap_s
    if end == "ask_stop":
        faults.append(Fault(what=end, at=round(at, 3), lasts_s=dice.choice([0.0, 5.0])))
    elif end == "too_many_failures":
        faults.append(Fault(what="exit_worker", node=HEAD, at=round(at, 3)))
    elif end == "too_few_nodes":
        what = dice.choice(["kill_agent", "power_off"])
        order = dice.sample(range(scenario.nodes), scenario.nodes - 1)
        faults += [Fault(what=what, node=node, at=round(at + number * gap_s, 3)) for number, node in enumerate(order)]
    elif end != "none":
        faults.append(Fault(what=end, at=round(at, 3)))
    if dice.random() < 0.15 and scenario.nodes > role.nodes_min and end != "too_few_nodes":
        what, last = dice.choice(["other_version", "unfit"]), scenario.nodes - 1
        faults = [fault for fault in faults if fault.node != last and fault.what != "ask_drain"]
        faults.append(Fault(what=what, node=last))
    # Nothing comes when some workers have ended and others have not.
    work_s = max([role.work_s, *((fault.at + gap_s) / SHORTEST_WORK for fault in faults)])
    return replace(scenario, faults=tuple(faults), roles=(replace(role, work_s=work_s),))


def _draw_things(dice: random.Random, seed: int) -> list[str]:
    things = [dice.choice(THINGS) for _ in range(dice.choice([0, 1, 2, 2, 3]))]
    if seed % 16 == LATE_DEATHS:
        return ["kill_before_beat"] * dice.choice([1, 2])
    # Drains alone go on until too few others would be left.
    return ["ask_drain"] * dice.choice([2, 3]) if seed % 16 == DRAINS else things
