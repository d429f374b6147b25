"""What a simulated run is like, as one value: its roles, its machines, and what goes wrong when."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpc_elastic.plan.roles import EntrypointPlan, NodesPlan, RestartPolicy, RolePlan, place_roles

GRACE_S, RESTART_GRACE_S = 20.0, 5.0
PHASES = ("gathering", "claiming", "running", "stopping", "pausing", "closing")
RESTARTING = ("claiming", "stopping", "pausing")  # where a restart of one role meets failures of others

# What can go wrong, by theme. `join` faults are there from the start, the others come at their moments.
FAULTS = {
    "workers": ("kill_worker", "exit_worker", "term_worker", "fail_together", "break_store", "unkillable"),
    "ends": ("stop", "term", "term_all"),
    "joins": ("never_starts", "starts_late", "unfit", "other_version"),
    "losses": ("power_off", "kill_agent", "cut"),
    "delays": ("pause", "stall_link", "stall_disk"),
    "disk": ("stall_disk", "stall_disks", "disk_fails"),
}
THEMES = ("quiet", "workers", "workers", "workers", "ends", "joins", "losses", "delays", "delays", "disk", "any", "any")


@dataclass(frozen=True, kw_only=True)
class Role:
    """Workers of one kind. Chances are a worker's, or for `start_failure_chance` a node's, in each attempt."""

    name: str
    restart: RestartPolicy
    nodes_min: int
    nodes_max: int
    workers: tuple[int, ...]
    work_s: float
    failure_chance: float = 0.0
    hang_chance: float = 0.0
    start_failure_chance: float = 0.0
    patience_s: float = 0.0  # how long a worker goes on after a TERM, at most

    def plan(self) -> RolePlan:
        """As the launch plan says it."""
        return RolePlan(
            name=self.name,
            entrypoint=EntrypointPlan(kind="script", target="train.py"),
            nodes=NodesPlan(min=self.nodes_min, max=self.nodes_max),
            workers_per_node=self.workers,
            restart=self.restart,
        )


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something goes wrong at second `at`; with a `phase`, that long after the head entered it for the nth time."""

    what: str
    node: int = 0
    at: float = 0.0
    phase: str = ""
    nth: int = 1
    lasts_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One schedule: nothing else decides what happens in a run, but for bugs."""

    seed: int
    roles: tuple[Role, ...]
    nodes: int
    max_restarts: int = 3
    no_progress_limit: int = 3
    progress: str = "unknown"  # unknown, moves, stuck
    backoff_first_s: float = 0.0
    exit_timeout_s: float | None = None
    lease_s: float = 10.0
    join_timeout_s: float = 60.0
    delays_s: tuple[float, ...] = (0.001,)  # of a message
    disk_s: tuple[float, ...] = (0.01,)  # of an operation on the run directory
    spawn_s: tuple[float, ...] = (0.02,)  # of starting a node's workers
    collateral_chance: float = 0.0  # that a worker fails because one of its role did
    is_requeued: bool = False  # the scheduler starts the job again after a TERM
    faults: tuple[Fault, ...] = ()

    @property
    def min_nodes(self) -> int:
        return sum(role.nodes_min for role in self.roles)

    @property
    def max_nodes(self) -> int:
        return sum(role.nodes_max for role in self.roles)

    def role(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)

    def placed(self) -> list[tuple[str, int]]:
        """Role and number of workers of each node."""
        plans = place_roles([role.plan() for role in self.roles], self.nodes)
        return [(plan.name, plan.workers_at(number - plans.index(plan))) for number, plan in enumerate(plans)]

    def without(self, fault: Fault) -> Scenario:
        faults = list(self.faults)
        faults.remove(fault)
        return replace(self, faults=tuple(faults))

    def describe(self) -> str:
        """For people, a line for each part."""
        lines = [f"seed {self.seed}: {self.nodes} nodes, {self.min_nodes} to {self.max_nodes} in the world"]
        lines += [f"  {role}" for role in self.roles]
        names = [name for name in self.__dataclass_fields__ if name not in ("seed", "roles", "nodes", "faults")]
        lines.append("  " + ", ".join(f"{name}={getattr(self, name)!r}" for name in names))
        lines += [f"  {fault}" for fault in self.faults]
        return "\n".join(lines)

    @staticmethod
    def draw(seed: int) -> Scenario:
        """A scenario for each seed."""
        dice = random.Random(seed)
        theme = dice.choice(THEMES)
        exit_timeout_s = dice.choice([None, None, dice.uniform(1, 60)])
        roles = _draw_roles(dice, theme, exit_timeout_s is not None)
        nodes = sum(dice.randint(role.nodes_min, role.nodes_max) for role in roles) + dice.choice([0, 0, 0, 0, 1, 2])
        scenario = Scenario(
            seed=seed,
            roles=roles,
            nodes=nodes,
            max_restarts=dice.choice([0, 1, 2, 3, 4]),
            no_progress_limit=dice.choice([2, 3]),
            progress=dice.choice(["unknown", "moves", "stuck"]),
            backoff_first_s=dice.choice([0, 0, 0.5, 5]),
            exit_timeout_s=exit_timeout_s,
            lease_s=dice.choice([3, 10, 10, 30]),
            join_timeout_s=dice.choice([5, 30, 60]),
            delays_s=dice.choice([(0.0,), (0.001,), (0.0, 0.001, 0.02), (0.001, 0.2)]),
            disk_s=dice.choice([(0.001,), (0.01, 0.05), (0.001, 0.01, 0.5), (0.01, 2.0)]),
            spawn_s=dice.choice([(0.02,), (0.01, 0.1), (0.02, 3.0)]),
            collateral_chance=dice.choice([0, 0, 0.5, 1]),
            is_requeued=dice.random() < 0.1,
        )
        if theme == "quiet":
            return scenario
        return replace(scenario, faults=_draw_faults(dice, theme, scenario))


def _draw_roles(dice: random.Random, theme: str, may_hang: bool) -> tuple[Role, ...]:
    policies: list[RestartPolicy] = ["restart_all", "restart_role", "restart_role", "ignore"]
    roles = []
    is_frail = theme in ("workers", "any") and dice.random() < 0.6
    for name in ("trainer", "reader", "watcher")[: dice.choice([1, 2, 2, 3])]:
        nodes_min = dice.choice([1, 1, 2])
        roles.append(
            Role(
                name=name,
                restart=dice.choice(policies),
                nodes_min=nodes_min,
                nodes_max=nodes_min + dice.choice([0, 0, 0, 1]),
                workers=dice.choice([(1,), (2,), (2, 1), (1, 3), (3, 1, 2)]),
                work_s=10 ** dice.uniform(-1, 1.7),
                failure_chance=dice.choice([0.05, 0.2, 0.6]) if is_frail else 0.0,
                hang_chance=dice.choice([0, 0, 0.3]) if may_hang else 0.0,
                start_failure_chance=0.1 if is_frail and dice.random() < 0.1 else 0.0,
                patience_s=dice.choice([0, 0, 2, 30]),
            )
        )
    return tuple(roles)


def _draw_faults(dice: random.Random, theme: str, scenario: Scenario) -> tuple[Fault, ...]:
    kinds: Sequence[str] = FAULTS.get(theme, ())
    if theme == "any":
        kinds = [what for whats in FAULTS.values() for what in whats]
    elif theme not in ("workers", "joins"):
        kinds = (*kinds, "kill_worker", "exit_worker")
    horizon = 3 + 2 * max(role.work_s for role in scenario.roles)
    return tuple(_draw_fault(dice, dice.choice(kinds), scenario, horizon) for _ in range(dice.choice([1, 1, 2, 3, 5])))


def _draw_fault(dice: random.Random, what: str, scenario: Scenario, horizon: float) -> Fault:
    node, lasts_s = dice.randrange(scenario.nodes), 0.0
    if what in ("pause", "stall_link", "stall_disk", "stall_disks"):
        lasts_s = round(scenario.lease_s * dice.choice([0.05, 0.15, 0.3, 0.5, 0.7, 1.1, 2.5]), 3)
    elif what == "starts_late":
        lasts_s = round(dice.uniform(0, 1.5 * scenario.join_timeout_s), 3)
    elif what == "disk_fails":
        lasts_s = round(dice.uniform(0, 5), 3)
    if what in FAULTS["joins"]:
        return Fault(what=what, node=node, lasts_s=lasts_s)
    if dice.random() < 0.5:
        phases = RESTARTING if what in FAULTS["workers"] and dice.random() < 0.6 else PHASES
        at = dice.choice([0.0, 0.0, round(dice.uniform(0, 1), 3), round(dice.uniform(0, 6), 3)])
        return Fault(
            what=what, node=node, lasts_s=lasts_s, phase=dice.choice(phases), nth=dice.choice([1, 1, 2]), at=at
        )
    return Fault(what=what, node=node, lasts_s=lasts_s, at=round(dice.uniform(0, horizon), 3))
