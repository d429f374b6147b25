"""What the faults of a scenario do to a simulated run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hpc_elastic.membership.member import MemberPhase
from hpc_elastic.rundir.records import Request
from tests.simulation.network import RESENT_WITHIN
from tests.simulation.rules.asked_saves import SAVES
from tests.simulation.rules.requested import REQUESTS
from tests.simulation.rules.stacks import STACKS
from tests.simulation.rules.unheard import WRITERS
from tests.simulation.scenario import HEAD, Fault
from tests.simulation.scheduler import ENDS

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

BEFORE_BEAT_S = 0.02
BROKEN_GPU = "terminate called\n  what():  CUDA error: uncorrectable ECC error encountered\n"


def strike(run: SimulatedRun, fault: Fault) -> None:
    """The fault happens now, if there is something for it to happen to."""
    agent = run.earlier[fault.node] if fault.is_old else _target(run, fault.node)
    run.trace("fault", fault)
    run.foretold.happens(fault, agent)
    run.trouble(agent, fault.lasts_s)
    if fault.what in _ENDS:
        _end_worker(run, agent, _ENDS[fault.what])
    elif fault.what == "fail_together":
        for worker in list(agent.workers.alive.values()):
            agent.workers.end(worker, 1)
    elif fault.what in ("break_store", "unkillable", "kill_guard"):
        _break(agent, fault.what)
    elif fault.what in ("stop", "term", "term_all", "notice"):
        _ask_to_end(run, agent, fault)
    elif fault.what in ("power_off", "kill_agent", "reset"):
        _lose(run, agent, fault.what)
    elif fault.what == "requeue":
        run.requeue(frozenset(_target(run, number).number for number in fault.side))
    elif fault.what in ("partition", "one_way", "unreachable"):
        _part(run, fault)
    elif fault.what in _OF_ALL:
        _OF_ALL[fault.what](run, fault)
    elif fault.what == "busy_disk":
        run.busy.happen(agent, fault)
    elif fault.what in DISK_MANNERS:
        _hold_disk(run, agent, fault)
    else:
        _delay(run, agent, fault)


def _target(run: SimulatedRun, number: int) -> Agent:
    """The node of this number, or who has that part just now."""
    if number >= 0:
        return run.agents[number if number < len(run.agents) else 0]  # nothing happens to a node that the job has not
    head = run.disk.head or "node0"
    if number == HEAD:
        return run.agent(head)
    world = run.disk.latest
    members = [node.node for node in world.nodes] if world is not None else list(run.scenario.names)
    others = [run.agent(name) for name in members if name != head]
    alive = [agent for agent in others if agent.is_running] or others
    return min(alive, key=lambda agent: agent.number, default=run.agent(head))


def _heal(run: SimulatedRun, _: Fault) -> None:
    run.network.heal()


def _postpone(run: SimulatedRun, fault: Fault) -> None:
    run.clock.postpone(fault.lasts_s)


def _ask(run: SimulatedRun, fault: Fault) -> None:
    run.requested.ask(fault)


def _ask_for_save(run: SimulatedRun, fault: Fault) -> None:
    run.asked_saves.ask(fault)


def _ask_for_stacks(run: SimulatedRun, fault: Fault) -> None:
    run.stacks.ask(fault)


def _tell_scheduler(run: SimulatedRun, fault: Fault) -> None:
    run.scheduler.happens(fault)


def _time_out(run: SimulatedRun, fault: Fault) -> None:
    run.timeouts.happen(fault)


def _interrupt(run: SimulatedRun, _: Fault) -> None:
    run.interrupts.happen()


def _fail_inside(run: SimulatedRun, fault: Fault) -> None:
    run.wrapped.happen(fault)


def _kill_before_beat(run: SimulatedRun, fault: Fault) -> None:
    """As late after the last beat as an agent can be killed that lives: just before its next one, which is long."""
    agent = _target(run, fault.node)
    killed = replace(fault, what="kill_agent", node=agent.number)
    lives_s = agent.member._lease.next_beat - agent.now - BEFORE_BEAT_S
    run.clock.after(max(0.0, lives_s) if lives_s < run.scenario.lease_s else 0.0, lambda: strike(run, killed))


def _fail_agent(run: SimulatedRun, fault: Fault) -> None:
    """An agent fails itself, as for want of open files; that of a head has written that down, as `agent.main` does."""
    agent = _target(run, fault.node)
    claim = run.disk.allocations[-1] if run.disk.allocations else None
    if agent.is_running and claim is not None and claim.node == agent.name:
        run.notices.append(Request(kind="failed", by=agent.name, time="", allocation=claim.allocation))
    strike(run, replace(fault, what="kill_agent", node=agent.number))


def _lose_writer(run: SimulatedRun, fault: Fault) -> None:
    run.unheard.arm(fault)


def _break_gpu(run: SimulatedRun, fault: Fault) -> None:
    """A worker fails, and has written why: whoever gets that GPU next will fail, too."""
    agent = _target(run, fault.node)
    if agent.workers.alive:
        worker = run.dice.choice(list(agent.workers.alive.values()))
        worker.written = BROKEN_GPU
        agent.workers.end(worker, -6)  # as torch ends a process with such an error outside of Python


_OF_ALL = {
    "break_gpu": _break_gpu,
    "fail_agent": _fail_agent,
    "fail_inside": _fail_inside,
    "heal": _heal,
    "interrupt": _interrupt,
    "kill_before_beat": _kill_before_beat,
    "late": _postpone,
    "time_out": _time_out,
    **dict.fromkeys(ENDS, _tell_scheduler),
    **dict.fromkeys(REQUESTS, _ask),
    **dict.fromkeys(SAVES, _ask_for_save),
    **dict.fromkeys(STACKS, _ask_for_stacks),
    **dict.fromkeys(WRITERS, _lose_writer),
}
_ENDS = {"kill_worker": -9, "exit_worker": 1, "term_worker": -15, "bus_worker": -7}


def _end_worker(run: SimulatedRun, agent: Agent, exitcode: int) -> None:
    alive = list(agent.workers.alive.values())
    if alive:
        agent.workers.end(run.dice.choice(alive), exitcode)


def _break(agent: Agent, what: str) -> None:
    if what == "unkillable":
        agent.workers.has_next_unkillable = True
    elif what == "break_store":
        if agent.is_running:
            agent.break_store()
    elif not agent.process.is_to_freeze:  # agent and guard at once is not promised
        agent.guard.die()


def _ask_to_end(run: SimulatedRun, agent: Agent, fault: Fault) -> None:
    what = fault.what
    if what == "notice":
        run.give_notice(fault)
        return
    run.witness.see("stop" if what == "stop" else "term")
    if what == "stop":
        run.is_stop_requested, run.stop_requested_at = True, run.clock.now
        return
    run.is_start_coming = run.scenario.is_requeued is True
    for each in run.agents if what == "term_all" else [agent]:
        if each.is_running:
            run.witness.terminated.add(each.name)
            run.clock.after(run.dice.uniform(0, 0.02), each.terminate)


def _lose(run: SimulatedRun, agent: Agent, what: str) -> None:
    run.witness.see("loss")
    if what == "reset":  # somebody between the two made it up
        link = agent.link if agent.is_running else None
        if link is not None:
            agent.reset_from = link.other.agent, run.clock.now
            link.reset_both()
    else:
        agent.die(is_power_off=what == "power_off")
        run.limits.dies(agent)
        run.changes()


def _part(run: SimulatedRun, fault: Fault) -> None:
    side = {_target(run, number).number for number in fault.side}
    others = [agent.number for agent in run.agents if agent.number not in side]
    until = run.clock.now + fault.lasts_s
    run.witness.see("loss")
    for here in sorted(side):
        for there in others:
            if fault.way in ("both", "out"):
                run.network.close(here, there, until)
            if fault.way in ("both", "in"):
                run.network.close(there, here, until)
            if fault.what == "unreachable":  # a router says so to the kernel of the side that sends next
                _tell_kernel(run.agents[run.dice.choice([here, there])], {here, there})


def _tell_kernel(agent: Agent, pair: set[int]) -> None:
    for socket in list(agent.sockets):
        if {socket.agent.number, socket.other.agent.number} == pair:
            socket.time_out("No route to host")


DISK_MANNERS = ("disk_refuses", "disk_loses_answers", "disk_holds", "disk_answers_late")


def _hold_disk(run: SimulatedRun, agent: Agent, fault: Fault) -> None:
    """As `disk_fails` and `stall_disk`, without dice: whether what was asked for is done is said by the fault."""
    disk, until = agent.disk, run.clock.now + fault.lasts_s
    disk.is_done_before_trouble = fault.what in ("disk_loses_answers", "disk_answers_late")
    if fault.what in ("disk_refuses", "disk_loses_answers"):
        disk.fails_until = until
    else:
        disk.stalled_until = max(disk.stalled_until, until)


def _delay(run: SimulatedRun, agent: Agent, fault: Fault) -> None:
    until = run.clock.now + fault.lasts_s
    if fault.lasts_s > 0.3 * run.scenario.join_timeout_s:
        if not run.disk.claims:
            run.witness.see("missing")  # who is held up so long may come too late
        asking = (each for each in run.agents if each.is_running and hasattr(each, "part"))  # the others are examined
        if any(each.member.phase is MemberPhase.JOINING for each in asking):
            run.witness.see("loss")  # who gets no answer to its join gives up, though the head has it by then
    if fault.what in ("pause", "freeze"):
        run.witness.delayed(agent.name, fault.lasts_s)
        if agent.is_running and agent.guard.is_alive:
            agent.pause(fault.lasts_s, point=fault.point if fault.what == "freeze" else -1)
    elif fault.what == "stall_link":
        run.witness.delayed(agent.name, (1 + RESENT_WITHIN) * fault.lasts_s)
        for other in run.agents:
            run.network.close(agent.number, other.number, until)
            run.network.close(other.number, agent.number, until)
    elif fault.what == "disk_fails":
        agent.disk.fails_until = until
    else:  # a stalled file system costs time, and no lease
        for each in run.agents if fault.what == "stall_disks" else [agent]:
            run.trouble(each, fault.lasts_s)
            each.disk.stalled_until = max(each.disk.stalled_until, until)
