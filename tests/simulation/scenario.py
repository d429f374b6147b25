"""What a simulated run is like: its size, its workers, and what goes wrong when."""

from __future__ import annotations

import random
from dataclasses import dataclass

GRACE_S, RESTART_GRACE_S, LEASE_S, JOIN_TIMEOUT_S = 20.0, 5.0, 10.0, 60.0


@dataclass(frozen=True)
class Scenario:
    """What this run is like; `faults` happen at their moments, to nodes that are there."""

    seed: int
    nodes: int
    min_nodes: int
    workers: int
    max_restarts: int
    work_s: float  # how long a worker needs
    failure_chance: float  # that a worker fails
    faults: tuple[tuple[float, str, int], ...]  # when, what, which node

    @staticmethod
    def draw(seed: int) -> Scenario:
        """A scenario for each seed."""
        dice = random.Random(seed)
        nodes = dice.randint(1, 6)
        kinds = ["stop", "term", "kill_worker", "term_worker", "term_all", "lose_node", "break_node", "never_starts"]
        faults = [
            (round(dice.uniform(0, 80), 3), dice.choice(kinds), dice.randrange(nodes))
            for _ in range(dice.choice([0, 0, 1, 1, 2, 3]))
        ]
        return Scenario(
            seed=seed,
            nodes=nodes,
            min_nodes=dice.randint(1, nodes),
            workers=dice.randint(1, 3),
            max_restarts=dice.randint(0, 4),
            work_s=dice.uniform(0.01, 60),
            failure_chance=dice.choice([0, 0, 0.1, 0.5]),
            faults=tuple(sorted(faults)),
        )
