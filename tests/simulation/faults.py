"""What the faults of a scenario do to a simulated run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.scenario import Fault

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun


def strike(run: SimulatedRun, fault: Fault) -> None:
    """The fault happens now, if there is something for it to happen to."""
    agent = run.agents[fault.node]
    run.trace("fault", fault)
    if fault.what in _ENDS:
        _end_worker(run, agent, _ENDS[fault.what])
    elif fault.what == "fail_together":
        for worker in list(agent.workers.alive.values()):
            agent.workers.end(worker, 1)
    elif fault.what == "break_store":
        if agent.is_running:
            agent.break_store()
    elif fault.what == "unkillable":
        agent.workers.has_next_unkillable = True
    elif fault.what in ("stop", "term", "term_all"):
        _ask_to_end(run, agent, fault.what)
    elif fault.what in ("power_off", "kill_agent", "cut"):
        _lose(run, agent, fault.what)
    else:
        _delay(run, agent, fault)


_ENDS = {"kill_worker": -9, "exit_worker": 1, "term_worker": -15}


def _end_worker(run: SimulatedRun, agent: Agent, exitcode: int) -> None:
    alive = list(agent.workers.alive.values())
    if alive:
        agent.workers.end(run.dice.choice(alive), exitcode)


def _ask_to_end(run: SimulatedRun, agent: Agent, what: str) -> None:
    run.witness.see("stop" if what == "stop" else "term")
    if what == "stop":
        run.is_stop_requested = True
        if run.head_agent is not None and run.head_agent.headquarters is not None:
            run.head_agent.headquarters.look_for_requests()
        return
    for each in run.agents if what == "term_all" else [agent]:
        if each.is_running:
            run.witness.terminated.add(each.name)
            run.clock.after(run.dice.uniform(0, 0.02), each.terminate)


def _lose(run: SimulatedRun, agent: Agent, what: str) -> None:
    run.witness.see("loss")
    if what == "cut":
        if agent.link is not None:
            agent.link.cut()
    else:
        agent.die(is_power_off=what == "power_off")
        run.is_dirty = True


def _delay(run: SimulatedRun, agent: Agent, fault: Fault) -> None:
    until = run.clock.now + fault.lasts_s
    if not run.disk.claims and fault.lasts_s > 0.3 * run.scenario.join_timeout_s:
        run.witness.see("missing")  # who is held up so long may come too late
    if fault.what == "pause":
        run.witness.delayed(agent.name, fault.lasts_s)
        agent.pause(fault.lasts_s)
    elif fault.what == "stall_link":
        run.witness.delayed(agent.name, fault.lasts_s)
        agent.link_stalled_until = max(agent.link_stalled_until, until)
    elif fault.what == "disk_fails":
        agent.disk.fails_until = until
    else:  # a stalled file system costs time, and no lease
        for each in run.agents if fault.what == "stall_disks" else [agent]:
            each.disk.stalled_until = max(each.disk.stalled_until, until)
