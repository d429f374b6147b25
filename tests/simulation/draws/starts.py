"""Draws scenarios in which the scheduler starts the job again while agents of the first start may live."""

from __future__ import annotations

import random

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

# What is known of progress where starts end without a word, by files and by steps; in turn, so that few seeds have all.
SILENT_PROGRESS = (("stuck", "none"), ("unknown", "none"), ("stuck", "stuck"), ("moves", "none"), ("unknown", "moves"))


def draw_second_start(seed: int) -> Scenario:
    """The scenario of a seed.

    Left out: a run directory that hangs for the old head as long as the new one waits, and a frozen agent of an old
    head that is alone in its world; those do not hear of the new start.
    """
    if seed % 8 == 3:
        return _draw_silent_ends(random.Random(f"starts/silent/{seed}"), seed)
    dice = random.Random(seed)
    nodes, at = dice.choice([2, 3, 4]), dice.uniform(3, 20)
    survivors = tuple(number for number in range(nodes) if dice.random() < 0.5) or (0,)
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.choice([1, 1, 2]),
        nodes_max=nodes,
        workers=(2,),
        work_s=dice.choice([20.0, 60.0]),
        patience_s=dice.choice([0.0, 0.0, 30.0]),
    )
    lease_s = dice.choice([3.0, 10.0])
    faults = [Fault(what="requeue", side=survivors, at=at)]
    if dice.random() < 0.5:
        what = dice.choice(["partition", "one_way", "kill_agent", "pause", "stall_disk", "kill_worker"])
        lasts_s = dice.choice([3.0, 8.0, 15.0, 60.0])
        if what in ("pause", "stall_disk"):
            lasts_s = min(lasts_s, 0.6 * lease_s)
        faults.append(
            Fault(
                what=what,
                node=dice.choice([HEAD, 0, 1]),
                side=survivors,
                way=dice.choice(["in", "out"]),
                at=at + dice.uniform(-3, 5),
                lasts_s=lasts_s,
            )
        )
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=lease_s,
        delays_s=dice.choice([(0.001,), (0.001, 0.02)]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05), (0.01, 0.3)]),
        faults=tuple(faults),
    )


def draw_silent_ends(seed: int) -> Scenario:
    """The scenario of a seed: of these alone, with other dice."""
    return _draw_silent_ends(random.Random(f"silent ends/{seed}"), 8 * seed + 3)


def _draw_silent_ends(dice: random.Random, seed: int) -> Scenario:
    """The job starts again and again, and nobody says why; some starts end before they have opened an attempt."""
    nodes, lease_s, limit = dice.choice([1, 1, 2]), dice.choice([3.0, 10.0]), dice.choice([2, 2, 3])
    progress, steps = SILENT_PROGRESS[seed // 8 % len(SILENT_PROGRESS)]
    at, faults = dice.uniform(3, 8), list[Fault]()
    for _ in range(dice.choice([1, limit - 1, limit, limit])):
        faults.append(Fault(what="requeue", at=round(at, 3)))
        at += dice.choice([2.5, lease_s + 12.0, lease_s + 12.0, lease_s + 12.0])
    role = Role(
        name="trainer", restart="restart_all", nodes_min=nodes, nodes_max=nodes, workers=(1,), work_s=2 * at + 10
    )
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        no_progress_limit=limit,
        requeue_max=dice.choice([0, 0, 3]),
        progress=progress,
        steps=steps,
        lease_s=lease_s,
        faults=tuple(faults),
    )
