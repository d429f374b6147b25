"""Draws scenarios in which the scheduler ends the job: by its time limit, for another job, at somebody's word."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import GRACE_S, HEAD, Fault, Role, Scenario

FAR_S = 1400.0  # before the notice: then the scheduler is asked rarely at first
BY_PLAN = 13  # of sixteen seeds: nobody but the plan says when the job ends
ENDS = (
    *("limit", "limit", "limit", "limit_moves", "limit_moves", "preempt", "preempt_warned", "preempt_warned"),
    *("scancel", "scheduler_requeues", "too_few_nodes", "operator"),
)


def draw_limits(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"limits/{seed}")
    nodes, lead_s = dice.choice([1, 2, 2, 3]), dice.choice([GRACE_S, 25.0, 40.0, 60.0])
    end = dice.choice(ENDS[:-2] if nodes == 1 else ENDS)
    left_s = lead_s + dice.choice([10.0, 40.0, 90.0])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=nodes if end == "too_few_nodes" else dice.randint(1, nodes),
        nodes_max=nodes,
        workers=dice.choice([(1,), (2,)]),
        work_s=2000.0,
        patience_s=dice.choice([0.0, 0.0, 5.0]),
    )
    is_silent = dice.random() < 0.25
    scenario = Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0]),
        join_timeout_s=60.0,
        lead_s=lead_s,
        time_left_s=left_s if end in ("limit", "limit_moves") else 10_000.0,
        knows_time=dice.random() < 0.6,
        plans_time=is_silent and random.Random(f"limits/plan/{seed}").random() < 0.5,
        is_scheduler_silent=is_silent,
        heeds_notice=end in ("limit", "operator", "preempt_warned") and dice.random() < 0.5,
        requeue_max=dice.choice([0, 1, 3]),
        requeue_on=dice.choice([("time_limit", "preempted", "node_loss"), ("time_limit",), ("preempted", "node_loss")]),
    )
    if seed % 16 == 5:
        return _far(scenario)
    if seed % 16 == BY_PLAN:
        scenario = replace(scenario, knows_time=False, plans_time=True, is_scheduler_silent=True)
    return replace(scenario, faults=tuple(_faults(dice, scenario, end)))


def _far(scenario: Scenario) -> Scenario:
    """The same of one node and a job that has half an hour, by its time limit."""
    role = replace(scenario.roles[0], workers=(1,), nodes_min=1, nodes_max=1)
    left_s = scenario.lead_s + FAR_S
    return replace(scenario, roles=(role,), nodes=1, time_left_s=left_s, lease_s=30.0, heeds_notice=False)


def _faults(dice: random.Random, scenario: Scenario, end: str) -> list[Fault]:
    at = round(dice.uniform(6, 20), 3)
    if end == "limit":
        if dice.random() < 0.5:
            return [Fault(what="scheduler_silent", at=at, lasts_s=dice.choice([1.0, 5.0]))]
        return [Fault(what="kill_worker", node=HEAD, at=5.0)] if dice.random() < 0.4 else []
    if end == "limit_moves":
        assert scenario.time_left_s is not None
        at = min(at, scenario.time_left_s - scenario.lead_s - 2)
        return [Fault(what=end, at=at, lasts_s=scenario.time_left_s + dice.choice([35.0, 100.0]))]
    if end == "preempt_warned":
        return [Fault(what=end, at=at, lasts_s=scenario.lead_s)]
    if end == "operator":
        return [Fault(what="notice", at=at)]
    if end == "too_few_nodes":
        return [Fault(what="kill_agent", node=scenario.nodes - 1, at=at)]
    faults = [Fault(what=end, at=at, lasts_s=60.0)]
    if dice.random() < 0.3:  # a controller that is just being restarted
        faults.insert(0, Fault(what="scheduler_silent", at=at - 1, lasts_s=dice.choice([2.0, 6.0])))
    return faults
