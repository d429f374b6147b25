"""Draws scenarios in which a person asks for a restart, drains a node, or announces the end, and workers fail."""

from __future__ import annotations

import random
from dataclasses import replace

from hpc_elastic.plan.roles import RestartPolicy
from tests.simulation.rules.requested import REQUESTS
from tests.simulation.scenario import Fault, Role, Scenario

OTHER_ROLE = 6  # of eight seeds
IN_VAIN = 5  # likewise
HALF = 16  # in one of two of these a role starts again by itself when the node is drained
OTHERS = ("kill_worker", "exit_worker", "break_store", "kill_agent", "power_off", "partition")


def draw_requests(seed: int) -> Scenario:
    """The scenario of a seed: in two of three nothing else goes wrong but workers."""
    dice = random.Random(f"requests/{seed}")
    if seed % 8 == OTHER_ROLE:
        return _draw_other_role(seed)
    members, spares = dice.choice([2, 2, 3, 4]), dice.choice([0, 1, 1, 2])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, members - 1),
        nodes_max=members,
        workers=dice.choice([(1,), (2,)]),
        work_s=dice.choice([30.0, 90.0]),
        patience_s=dice.choice([0.0, 0.0, 30.0]),
    )
    scenario = Scenario(
        seed=seed,
        roles=(role,),
        nodes=members + spares,
        max_restarts=dice.choice([0, 3]),
        lease_s=dice.choice([3.0, 10.0]),
        delays_s=dice.choice([(0.0,), (0.001,), (0.0, 0.001, 0.02)]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05)]),
        rejoin=dice.choice(["at_restart", "immediately"]),
    )
    is_vain = seed % 8 == IN_VAIN
    at, faults, drained = dice.choice([0.0, dice.uniform(2, 20)]), list[Fault](), dice.randrange(scenario.nodes)
    for _ in range(dice.choice([1, 1, 2, 3])):
        what = dice.choice(REQUESTS[:3])
        lasts_s = dice.choice([0.0, 2.0, 10.0, 30.0]) if what == "ask_stop" else 0.0
        node = drained if what == "ask_drain" else 0  # one node at most, so that enough others are there
        if is_vain and what == "ask_stop":
            what = "ask_requeue"  # which cannot be
        faults.append(Fault(what=what, node=node, at=round(at, 3), lasts_s=lasts_s))
        at += dice.choice([0.001, 1.0, dice.uniform(0, 30)])
    kinds = OTHERS[:3] if dice.random() < 0.67 else OTHERS
    for _ in range(dice.choice([0, 0, 1, 2])):
        fault = Fault(what=dice.choice(kinds), node=dice.randrange(scenario.nodes), at=round(dice.uniform(2, 40), 3))
        if fault.what == "partition":
            fault = replace(fault, side=(fault.node,), lasts_s=2.2 * scenario.lease_s)
        faults.append(fault)
    return replace(scenario, faults=tuple(faults))


def _draw_other_role(seed: int) -> Scenario:
    """A node of one role is drained, and a spare of another role takes its place, if there is one.

    In half of them that is while the ranks of one role are stopped, for which those of the other go on.
    """
    dice = random.Random(f"requests/other role/{seed}")
    sizes, spares = (dice.choice([1, 2]), dice.choice([1, 2])), dice.choice([0, 1, 1, 2])
    mins = sizes[0], sizes[1] if spares else 1
    is_partial = seed % HALF == OTHER_ROLE
    restart: RestartPolicy = "restart_role" if is_partial else "restart_all"
    roles = tuple(
        Role(
            name=name,
            restart=restart,
            nodes_min=least,
            nodes_max=size,
            workers=(1,),
            work_s=30.0,
            patience_s=6.0 if is_partial else 0.0,
        )
        for name, least, size in zip(("trainer", "reader"), mins, sizes, strict=True)
    )
    at = round(dice.uniform(4, 12), 3)
    faults = [Fault(what="ask_drain", node=dice.randrange(sizes[0]), at=at)]
    if dice.random() < 0.5:
        faults.append(Fault(what="kill_worker", node=dice.randrange(sum(sizes)), at=round(at + dice.uniform(3, 8), 3)))
    if is_partial:
        faults.insert(
            0, Fault(what="exit_worker", node=dice.randrange(sum(sizes)), at=round(at - dice.uniform(0, 1.5), 3))
        )
    return Scenario(
        seed=seed,
        roles=roles,
        nodes=sum(sizes) + spares,
        lease_s=dice.choice([3.0, 10.0]),
        rejoin=dice.choice(["at_restart", "immediately"]),
        faults=tuple(faults),
    )
