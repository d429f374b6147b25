"""Draws the scenarios of survival: losses of nodes and heads, partitions, frozen heads, and two at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.simulation.draws.short_work import with_short_work
from tests.simulation.scenario import HEAD, SECOND, Fault, Role, Scenario

SURVIVAL = (
    *("loss", "head_loss", "head_loss", "partition", "partition", "one_way", "head_pause"),
    *("double", "double", "double", "claims", "spares", "growth", "mixed"),
)
SUCCESSION = ("gathering", "claiming", "stopping", "pausing", "awaiting_quorum")


def draw_survival(seed: int, dice: random.Random) -> Scenario:
    """A world that loses some of its nodes and may go on with the others."""
    theme = dice.choice(SURVIVAL)
    nodes = dice.choice([2, 3, 3, 4, 4, 5])
    roles = _draw_roles(dice, nodes, is_spare=theme in ("spares", "growth") or dice.random() < 0.2)
    scenario = Scenario(
        seed=seed,
        roles=roles,
        nodes=nodes,
        max_restarts=dice.choice([0, 1, 3]),
        backoff_first_s=dice.choice([0, 0, 0, 1]),
        lease_s=dice.choice([3, 10]),
        join_timeout_s=dice.choice([5, 15, 30]),
        delays_s=dice.choice([(0.0,), (0.001,), (0.0, 0.001, 0.02), (0.001, 0.2)]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05), (0.001, 0.01, 0.5)]),
        spawn_s=dice.choice([(0.02,), (0.02,), (0.02, 3.0)]),
        collateral_chance=dice.choice([0, 0, 1]),
        rejoin=dice.choice(["at_restart", "immediately"]),
        max_node_losses=dice.choice([64, 64, 64, 1]),
        is_requeued=dice.random() < 0.05,
    )
    scenario = with_short_work(scenario)
    return replace(scenario, faults=tuple(_draw_faults(dice, theme, scenario)))


def _draw_roles(dice: random.Random, nodes: int, *, is_spare: bool) -> tuple[Role, ...]:
    least, most = dice.randint(1, nodes), nodes - (1 if is_spare and nodes > 2 else 0)
    work_s, patience_s = dice.choice([5.0, 10.0, 20.0, 40.0]), dice.choice([0, 0, 2, 30])
    trainer = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=min(least, most),
        nodes_max=most,
        workers=dice.choice([(1,), (2,), (1, 3)]),
        work_s=work_s,
        patience_s=patience_s,
    )
    if nodes < 3 or dice.random() < 0.75:
        return (trainer,)
    reader = Role(
        name="reader",
        restart=dice.choice(["restart_all", "restart_role", "ignore"]),
        nodes_min=1,
        nodes_max=dice.choice([1, 1, 2]),
        workers=(1,),
        work_s=work_s,
    )
    most = max(1, nodes - reader.nodes_max)
    return (replace(trainer, nodes_min=min(least, most), nodes_max=most), reader)


def _draw_faults(dice: random.Random, theme: str, scenario: Scenario) -> list[Fault]:
    node = dice.randrange(scenario.nodes)
    when = _when(dice, scenario)
    later = replace(when, at=when.at + dice.choice([0.0, 0.01, 0.3, 1.0, dice.uniform(0, 3 * scenario.lease_s)]))
    lose = dice.choice(["power_off", "power_off", "kill_agent"])
    faults: dict[str, Callable[[], list[Fault]]] = {
        "loss": lambda: [_as(when, what=lose, node=node)],
        "head_loss": lambda: [_as(when, what=lose, node=HEAD)],
        "partition": lambda: [_partition(dice, scenario, when)],
        "one_way": lambda: [_one_way(dice, scenario, when)],
        "head_pause": lambda: [_pause(dice, scenario, when, HEAD)],
        "double": lambda: _draw_double(dice, scenario, when, later),
        "claims": lambda: _draw_claims(dice, scenario, when, later, lose),
        "spares": lambda: [_as(when, what=lose, node=dice.choice([HEAD, node]))],
        "growth": lambda: [
            Fault(what="starts_late", node=dice.randrange(1, scenario.nodes), lasts_s=_late(dice, scenario)),
            *([_as(later, what=lose, node=dice.choice([HEAD, node]))] if dice.random() < 0.5 else []),
        ],
        "mixed": lambda: [_any(dice, scenario) for _ in range(dice.choice([2, 3, 4]))],
    }
    drawn = list(faults[theme]())
    if dice.random() < 0.2:
        drawn.append(_as(_when(dice, scenario), what=dice.choice(["kill_worker", "exit_worker"]), node=node))
    return drawn


def _draw_double(dice: random.Random, scenario: Scenario, when: Fault, later: Fault) -> list[Fault]:
    """Two that meet, which is where systems of this kind have broken."""
    lose, first = dice.choice(["power_off", "kill_agent"]), dice.choice(["power_off", "kill_agent"])
    during = Fault(what="", phase=dice.choice(SUCCESSION), nth=dice.choice([1, 2, 2, 3]), at=dice.choice([0.0, 0.1, 1]))
    pairs: list[Callable[[], list[Fault]]] = [
        lambda: [_partition(dice, scenario, when), _pause(dice, scenario, later, HEAD)],
        lambda: [_pause(dice, scenario, when, HEAD), _as(later, what=lose, node=SECOND)],
        lambda: [_as(when, what=first, node=HEAD), _as(during, what=lose, node=SECOND)],
        lambda: [_as(when, what=first, node=HEAD), _as(later, what=lose, node=SECOND)],
        lambda: [_as(when, what=first, node=HEAD), _partition(dice, scenario, later)],
        lambda: [_partition(dice, scenario, when), _as(later, what=lose, node=dice.choice([HEAD, SECOND]))],
        lambda: [_partition(dice, scenario, when), _partition(dice, scenario, later)],
        lambda: [_one_way(dice, scenario, when), _pause(dice, scenario, later, dice.choice([HEAD, SECOND]))],
        lambda: [_pause(dice, scenario, when, HEAD), _pause(dice, scenario, later, SECOND)],
        lambda: _draw_half_deaf(dice, scenario, when),
        lambda: _draw_chain(dice, scenario, when),
    ]
    return dice.choice(pairs)()


def _draw_half_deaf(dice: random.Random, scenario: Scenario, when: Fault) -> list[Fault]:
    """Nothing of the head's gets to the others, and soon nothing of theirs to it."""
    later = replace(when, at=when.at + scenario.lease_s * dice.uniform(0.1, 0.7))
    lasts_s = 6 * scenario.lease_s
    first = replace(when, what="one_way", side=(HEAD,), way=dice.choice(["out", "out", "in"]), lasts_s=lasts_s)
    return [first, replace(later, what="partition", side=first.side, lasts_s=lasts_s)]


def _draw_chain(dice: random.Random, scenario: Scenario, when: Fault) -> list[Fault]:
    """The successor is cut off, and when the head is about to notice that, somebody who still has it is, too."""
    later = replace(when, at=when.at + scenario.lease_s * dice.uniform(0.4, 1.05))
    kinds = [
        Fault(what="partition", side=(SECOND,), lasts_s=6 * scenario.lease_s),
        Fault(what="partition", side=(dice.randrange(scenario.nodes),), lasts_s=6 * scenario.lease_s),
    ]
    return [replace(kind, phase=at.phase, nth=at.nth, at=at.at) for kind, at in zip(kinds, (when, later), strict=True)]


def _draw_claims(dice: random.Random, scenario: Scenario, when: Fault, later: Fault, lose: str) -> list[Fault]:
    """A head is lost, and the run directory is slow just then; often for the one who claims."""
    lasts_s = scenario.lease_s * dice.choice([0.3, 1, 3, 6])
    what, node = dice.choice([("stall_disk", HEAD), ("stall_disk", SECOND), ("stall_disks", 0), ("disk_fails", SECOND)])
    if what == "disk_fails":
        lasts_s = dice.uniform(0, 3)
    slow = _as(dice.choice([when, later]), what=what, node=node, lasts_s=round(lasts_s, 3))
    heads: list[Callable[[], Fault]] = [
        lambda: _as(when, what=lose, node=HEAD),
        lambda: _pause(dice, scenario, when, HEAD),
        lambda: _partition(dice, scenario, when),
    ]
    return [dice.choice(heads)(), slow]


def _any(dice: random.Random, scenario: Scenario) -> Fault:
    when, node = _when(dice, scenario), dice.choice([HEAD, SECOND, dice.randrange(scenario.nodes)])
    what = dice.choice(["partition", "one_way", "pause", "power_off", "kill_agent", "stall_disk"])
    if what == "partition":
        return _partition(dice, scenario, when)
    if what == "one_way":
        return _one_way(dice, scenario, when)
    if what == "pause":
        return _pause(dice, scenario, when, node)
    lasts_s = round(scenario.lease_s * dice.choice([0.5, 2, 5]), 3) if what == "stall_disk" else 0.0
    return _as(when, what=what, node=node, lasts_s=lasts_s)


def _when(dice: random.Random, scenario: Scenario) -> Fault:
    """The moment of a fault: at work, most often, or around the opening of an attempt."""
    if dice.random() < 0.7:
        return Fault(what="", at=round(dice.uniform(2, 3 + 1.2 * max(role.work_s for role in scenario.roles)), 3))
    phase = dice.choice(["gathering", "claiming", "running", "running", "closing", "stopping"])
    at = dice.choice([0.0, 0.001, round(dice.uniform(0, 0.1), 3), round(dice.uniform(0, 3), 3)])
    return Fault(what="", phase=phase, nth=dice.choice([1, 1, 2]), at=at)


def _as(when: Fault, *, what: str, node: int, lasts_s: float = 0.0) -> Fault:
    return replace(when, what=what, node=node, lasts_s=lasts_s)


def _lasts(dice: random.Random, scenario: Scenario) -> float:
    return round(scenario.lease_s * dice.choice([0.3, 0.6, 0.8, 1.0, 1.2, 1.7, 2.2, 3.5, 6.0, 12.0]), 3)


def _late(dice: random.Random, scenario: Scenario) -> float:
    return round(dice.uniform(0, 1.5 * scenario.join_timeout_s), 3)


def _pause(dice: random.Random, scenario: Scenario, when: Fault, node: int) -> Fault:
    return _as(when, what="pause", node=node, lasts_s=_lasts(dice, scenario))


def _partition(dice: random.Random, scenario: Scenario, when: Fault) -> Fault:
    side = tuple(number for number in range(scenario.nodes) if dice.random() < 0.5) or (0,)
    lasts_s = dice.choice([_lasts(dice, scenario), _lasts(dice, scenario), 10_000.0])
    what = dice.choice(["partition", "partition", "partition", "unreachable"])
    return replace(when, what=what, side=side, lasts_s=lasts_s)


def _one_way(dice: random.Random, scenario: Scenario, when: Fault) -> Fault:
    fault = _partition(dice, scenario, when)
    side = fault.side if dice.random() < 0.4 else (dice.choice([HEAD, SECOND, dice.randrange(scenario.nodes)]),)
    return replace(fault, what="one_way", side=side, way=dice.choice(["in", "out"]))
