"""Draws scenarios in which the head that ends the run is lost before it has told anybody, or knows it itself."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

ENDS = ("success", "failure", "stop", "too few")
IGNORED = 3  # of five seeds: ranks of a role whose failures are ignored fail before


def draw_unheard(seed: int) -> Scenario:
    """The scenario of a seed: in half of them the batch script's machine is lost before."""
    dice = random.Random(f"unheard/{seed}")
    nodes, lease_s, end = dice.choice([3, 3, 4, 5]), dice.choice([3.0, 10.0]), dice.choice(ENDS)
    is_host_lost, at = seed % 2 == 0, round(dice.uniform(5, 9), 3)
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=nodes if end == "too few" else 1,
        nodes_max=dice.choice([nodes, nodes, nodes - 1]) if end != "too few" else nodes,
        workers=(1,),
        work_s=dice.uniform(4, 12) if end == "success" else 200.0,
    )
    faults = [Fault(what=dice.choice(["kill_writer", "kill_writer", "power_off_writer"]))]
    if is_host_lost:
        faults.append(Fault(what="power_off", node=0, at=at))
    elif end == "too few":
        faults.append(Fault(what=dice.choice(["power_off", "kill_agent"]), node=nodes - 1, at=at))
    later = round(at + lease_s + dice.uniform(6, 12), 3)
    if end in ("failure", "stop"):
        faults.append(Fault(what="exit_worker" if end == "failure" else "stop", node=HEAD, at=later))
    roles = [role]
    if seed % 5 == IGNORED:
        roles.append(replace(role, name="watcher", restart="ignore", nodes_min=1, nodes_max=1))
        faults.append(Fault(what="exit_worker", node=nodes, at=3.0))
        nodes += 1
    return Scenario(
        seed=seed,
        roles=tuple(roles),
        nodes=nodes,
        max_restarts=0,
        lease_s=lease_s,
        join_timeout_s=30.0,
        disk_s=dice.choice([(0.01,), (0.01, 0.05), (0.2,)]),
        faults=tuple(faults),
    )
