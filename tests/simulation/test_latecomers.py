"""Agents that come late, and whose head is gone or stands still by then, or lets them wait for its answer."""

from __future__ import annotations

import re

import pytest

from hpc_elastic.agent.rendezvous.search_times import SEARCH_TIMES
from hpc_elastic.errors import ExitCode
from tests.simulation.agent import Agent
from tests.simulation.scenario import Fault, Role, Scenario
from tests.simulation.world import SimulatedRun

MEMBERS, LATECOMER = 2, 2  # the number of the node


def a_run(*faults: Fault, **changes: object) -> tuple[SimulatedRun, Agent]:
    """A run of 60 s of work of two nodes, and a third one, which comes when it is under way."""
    role = Role(name="trainer", restart="restart_all", nodes_min=MEMBERS, nodes_max=MEMBERS, workers=(1,), work_s=60.0)
    late = Fault(what="starts_late", node=LATECOMER, lasts_s=10.0)
    scenario = Scenario(seed=1, roles=(role,), nodes=MEMBERS + 1, faults=(late, *faults), **changes)  # type: ignore[arg-type]
    run = SimulatedRun(scenario)
    return run, run.agents[LATECOMER]


def says(run: SimulatedRun, agent: Agent) -> str:
    """What an agent has told people."""
    return "\n".join(str(what) for _, who, what in run.events if who == agent.name)


def test_who_comes_when_the_whole_world_is_gone_gives_up_and_names_the_head_that_does_not_listen() -> None:
    """An attempt was opened, in which it has no part: to go on is for others."""
    run, late = a_run(*(Fault(what="kill_agent", node=node, at=9.0) for node in range(MEMBERS)))
    run.play()
    assert late.exit_code == ExitCode.NODES_MISSING
    assert re.search(r"no head was joined, after 2 tries in 6[01] s", says(run, late))
    assert "was refused by node0 (node0) on port 1: nobody listens there" in says(run, late)
    assert [allocation.node for allocation in run.disk.allocations] == ["node0"]
    assert not run.disk.results


def test_who_asks_a_head_whose_answer_never_comes_gives_up_after_join_timeout() -> None:
    """The question was sent, and the network has swallowed the answer; the head does not know, and goes on."""
    join_timeout_s = 6.0
    run, late = a_run(delays_s=(0.2,), lease_s=60.0, join_timeout_s=join_timeout_s, join_retries=0)
    run.clock.at(11.4, lambda: run.network.close(0, LATECOMER, 10_000.0))  # its proof of the secret has come
    run.play()
    assert (late.exit_code, [result.reason for result in run.disk.results]) == (ExitCode.NODES_MISSING, ["succeeded"])
    assert "no answer to the join" in says(run, late)
    waited_s = late.left_at - late.started_at
    assert join_timeout_s <= waited_s <= join_timeout_s + SEARCH_TIMES.silent_after_s + 0.1


def who_asks_a_head_that_stands_still(*, join_timeout_s: float, lasts_s: float, least: int) -> SimulatedRun:
    """A run of two nodes, the second one late: its join comes at 5.2 s, while the head stands still from 5.1 s on."""
    role = Role(name="trainer", restart="restart_all", nodes_min=least, nodes_max=2, workers=(1,), work_s=5.0)
    late, pause = Fault(what="starts_late", node=1, lasts_s=3.0), Fault(what="pause", node=0, at=5.1, lasts_s=lasts_s)
    faults, times = (late, pause), {"join_timeout_s": join_timeout_s, "delays_s": (0.2,)}
    run = SimulatedRun(Scenario(seed=1, roles=(role,), nodes=2, rejoin="immediately", faults=faults, **times))  # type: ignore[arg-type]
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    return run


@pytest.mark.parametrize("least", [1, 2])
def test_who_asks_a_head_that_stands_still_until_join_timeout_is_over_is_in_the_first_attempt(least: int) -> None:
    """The run ended for want of the node, or began without it, in the moment in which its request was heard."""
    run = who_asks_a_head_that_stands_still(join_timeout_s=6.0, lasts_s=3.0, least=least)
    assert [claim.members for claim in run.disk.claims.values()] == [("node0", "node1")]


def test_who_is_heard_just_after_a_round_has_closed_joins_the_next_attempt() -> None:
    """The head stands still for too short a time to know of it, and has asked for its claim before it looks."""
    run = who_asks_a_head_that_stands_still(join_timeout_s=5.4, lasts_s=0.5, least=1)
    first, second = run.disk.claims.values()
    assert (first.members, second.members, second.reason) == (("node0",), ("node0", "node1"), "node1 joined")
