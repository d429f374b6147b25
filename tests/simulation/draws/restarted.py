"""Draws scenarios in which the job starts again as the start before is busy, fails, opens no attempt, or is over."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

LONG_S, SHORT_S = 60.0, 4.0
THEMES = ("busy", "busy", "fails", "fails", "opens none", "opens none", "unsure", "over")


def draw_restarted(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"restarted/{seed}")
    theme, nodes, at = THEMES[seed % len(THEMES)], dice.choice([1, 2, 3]), round(dice.uniform(4, 9), 3)
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, nodes),
        nodes_max=nodes,
        workers=dice.choice([(1,), (2,)]),
        work_s=SHORT_S if theme == "over" else LONG_S,
    )
    scenario = Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05)]),
        faults=tuple(_draw_faults(dice, theme, nodes, at)),
    )
    if theme == "fails":
        return replace(scenario, max_restarts=0)
    return replace(scenario, is_requeued=True) if theme == "opens none" else scenario


def _draw_faults(dice: random.Random, theme: str, nodes: int, at: float) -> list[Fault]:
    everybody = tuple(range(nodes))
    if theme == "over":  # the scheduler has taken the first node for lost just after the run had ended
        off = [Fault(what="power_off", node=0, at=round(at + 1.8 * SHORT_S, 3))] if nodes > 1 else []
        return [*off, Fault(what="requeue", at=round(at + 2 * SHORT_S, 3))]
    again = Fault(what="requeue", at=at, side=everybody)
    if theme == "busy":  # with what can wait: the old head has seen the new start before its turn comes
        return [Fault(what="busy_disk", node=HEAD, at=round(at - 0.2, 3), lasts_s=30.0), again]
    if theme == "fails":
        fails_at = round(at + dice.uniform(0.2, 1.6), 3)
        return [again, Fault(what="kill_worker", node=dice.randrange(nodes), at=fails_at, is_old=True)]
    if theme == "opens none":  # it waits for agents that may live, gets a TERM, and all its own agents leave
        term_at = round(at + dice.uniform(1.3, 2.8), 3)
        third = Fault(what="requeue", at=round(term_at + dice.uniform(2, 5), 3))
        return [replace(again, side=()), Fault(what="term_all", at=term_at), third]
    # The new start's claim is made, and its agent is told of an error.
    loses = Fault(what="disk_loses_answers", node=0, at=round(at + 0.1, 3), lasts_s=dice.choice([1.0, 2.0, 4.0]))
    return [again, loses]
