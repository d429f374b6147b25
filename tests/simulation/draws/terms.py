"""Draws scenarios in which a TERM ends the allocation, and the scheduler explains it at once, late, or not at all."""

from __future__ import annotations

import random

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

TERMS = ("preempt", "preempt", "scancel", "scancel", "scheduler_requeues", "term_job", "term_job", "term_job")
SILENCES = ("none", "none", "before", "before", "after", "after", "after", "slow", "stop")
FAR_S = 10_000.0
NEAR_S, AFAR_S = 14.4, 17.0  # before the end of the job's time, and by an agent's whole seconds


def draw_terms(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"terms/{seed}")
    nodes, at, grace_s = dice.choice([1, 1, 2, 3]), round(dice.uniform(8, 12), 3), dice.choice([5.0, 12.0])
    what, silence = dice.choice(TERMS), dice.choice(SILENCES)
    left_s = FAR_S
    if what in ("scancel", "term_job") and silence != "slow" and dice.random() < 0.8:
        stop_s = grace_s + 1.0
        near, afar = dice.uniform(stop_s + 1.1, NEAR_S), dice.uniform(AFAR_S, 26.0)
        left_s = at + dice.choice([near, afar])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=nodes,
        nodes_max=nodes,
        workers=(dice.choice([1, 2]),),
        work_s=2000.0,
        patience_s=dice.choice([0.0, 0.0, 9.0]),
    )
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0]),
        join_timeout_s=60.0,
        grace_s=grace_s,
        lead_s=grace_s,
        time_left_s=left_s,
        knows_time=dice.random() < 0.6,
        answers_s=(0.01, 1.5) if silence == "slow" else (0.01,),
        requeue_max=dice.choice([0, 1, 3]),
        requeue_on=dice.choice([("time_limit", "preempted", "node_loss"), ("time_limit",), ("preempted", "node_loss")]),
        is_term=True,
        faults=(*_silence(dice, silence, at), Fault(what=what, node=HEAD, at=at, lasts_s=60.0)),
    )


def _silence(dice: random.Random, silence: str, at: float) -> tuple[Fault, ...]:
    """When the scheduler does not answer; with `stop` a person asks for the end meanwhile."""
    long_s = dice.choice([3.0, 6.0, 40.0])
    if silence == "before":
        return (Fault(what="scheduler_silent", at=at - 1, lasts_s=1 + dice.choice([0.5, long_s])),)
    if silence == "after":
        return (Fault(what="scheduler_silent", at=at + 0.4, lasts_s=long_s),)
    if silence == "stop":
        before_s = dice.choice([-1.0, 0.4])
        asked = Fault(what="stop", at=round(at + dice.uniform(1.0, 5.0), 3))
        return (Fault(what="scheduler_silent", at=at + before_s, lasts_s=40.0), asked)
    return ()
