"""Tells a simulated run as a story: a sentence for each thing that happened, and for many nodes at once.

What every run has, such as heartbeats, welcomes and records, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hpc_elastic.membership import actions as do
from hpc_elastic.membership.messages import StopManner
from tests.simulation.scenario import HEAD, SECOND, Fault, Scenario

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedRun

TOGETHER_S = 0.5  # the same thing on several nodes within this time is one sentence
_TARGETS = {HEAD: "the head's node", SECOND: "the node that is first to succeed the head"}
FAULT_SENTENCES = {
    "kill_worker": "a worker on {node} is killed",
    "exit_worker": "a worker on {node} exits with 1",
    "term_worker": "a worker on {node} dies of a TERM",
    "fail_together": "all workers on {node} exit with 1",
    "break_store": "the store host on {node} ends",
    "unkillable": "the next worker to be killed on {node} survives",
    "stop": "somebody asks the run to stop",
    "notice": "somebody says that the workers will be stopped soon",
    "term": "the agent on {node} gets a TERM",
    "term_all": "every agent gets a TERM",
    "power_off": "{node} loses power",
    "kill_agent": "the agent on {node} is killed",
    "kill_writer": "the agent that has written the result is killed before it knows that",
    "power_off_writer": "the node that has written the result loses power before it knows that",
    "fail_agent": "the agent on {node} fails itself, and writes that down if it is head",
    "kill_before_beat": "the agent on {node} is killed just before its next beat",
    "kill_guard": "the guard on {node} is killed",
    "reset": "the connection of {node} to its head is reset",
    "requeue": "Slurm starts the job again; of the old start {side} live on",
    "time_out": "ranks time out within {lasts}{way}; where one is odd, it is on {node}",
    "partition": "{side} are cut off from the others for {lasts}{way}",
    "one_way": "{side} are cut off from the others for {lasts}{way}",
    "unreachable": "{side} are cut off from the others for {lasts}, and the kernel says so",
    "pause": "the agent on {node} stands still for {lasts}",
    "freeze": "the agent on {node} stands still for {lasts}, {point} steps from here in its code",
    "stall_link": "nothing reaches or leaves {node} for {lasts}",
    "stall_disk": "the file server does not answer {node} for {lasts}",
    "stall_disks": "the file server answers nobody for {lasts}",
    "disk_fails": "the file server refuses what {node} asks for {lasts}",
    "interrupt": "somebody presses Ctrl-C",
    "ask_requeue": "somebody asks for a stop after which the job starts again, which it cannot",
    "ask_stacks": "somebody asks where the ranks are",
    "disk_holds": "the file server does not answer {node} for {lasts}",
    "disk_refuses": "the file server refuses what {node} asks for {lasts}",
    "never_starts": "{node} never starts",
    "starts_late": "{node} starts {lasts} late",
    "unfit": "{node} cannot take part",
    "unhealthy": "{node} is unhealthy for {lasts}",
    "bus_worker": "a bus error ends a worker on {node}",
    "wrong_secret": "{node} has another secret than the run",
    "other_version": "{node} has another version of torch",
}


def tell(run: SimulatedRun) -> Iterator[str]:
    """The scenario in words, what happened, and the results."""
    yield from introduce(run.scenario)
    yield ""
    told: list[tuple[float, str, list[str]]] = []
    for moment, who, what in run.events:
        sentence = _sentence(who, what)
        if sentence is None:
            continue
        latest = next(
            (entry for entry in reversed(told) if moment - entry[0] > TOGETHER_S or entry[1] == sentence), None
        )
        if latest is not None and latest[1] == sentence and moment - latest[0] <= TOGETHER_S and who not in latest[2]:
            latest[2].append(who)
        else:
            told.append((moment, sentence, [who]))
    yield from (f"{moment:9.3f} s  {sentence.format(who=_list(sorted(who)))}" for moment, sentence, who in told)
    for result in run.disk.results:
        yield f"result: {result.state.value}, exit code {result.exit_code}: {result.cause}"


def introduce(scenario: Scenario) -> Iterator[str]:
    """What kind of run it is, and the faults that are there from the start."""
    size = f"{scenario.nodes} nodes, {scenario.min_nodes} to {scenario.max_nodes} in a world"
    yield f"{size}, a lease of {scenario.lease_s:g} s"
    slow = {
        "a message": scenario.delays_s,
        "an operation of the file server": scenario.disk_s,
        "a start of workers": scenario.spawn_s,
    }
    yield "; ".join(f"{what} takes {max(times):g} s at most" for what, times in slow.items())
    for node in sorted(scenario.known_to_be_without_agent):
        yield f"srun says that {node} starts no agent"
    for fault in scenario.faults:
        if fault.what in ("never_starts", "starts_late", "unfit", "other_version", "unhealthy"):
            yield _describe(fault)
        elif fault.phase:
            nth = "" if fault.nth == 1 else f" for the {fault.nth}th time"
            yield f"{fault.at:g} s after a head is {fault.phase}{nth}: {_describe(fault)}"


def _sentence(who: str, what: object) -> str | None:
    """What an event says, with {who} for the nodes it happened to; None if it is not worth a word."""
    if isinstance(what, Fault):
        return f"FAULT: {_escape(_describe(what))}"
    if isinstance(what, do.ClaimAttempt):
        claim = what.claim
        return f"{claim.head} is head and claims attempt {claim.attempt} with {_list(claim.members)}"
    if isinstance(what, do.WriteResult):
        return f"the head writes the result {what.result.state.value}: {_escape(what.result.cause)}"
    if isinstance(what, do.Superseded):
        return f"a head steps down: {_escape(what.reason)}"
    if isinstance(what, do.Log):
        return None if who != "head" else f"the head says: {_escape(what.text)}"
    if isinstance(what, do.StartWorkers):
        return f"{{who}} start workers of attempt {what.assign.attempt}"
    if isinstance(what, do.StopWorkers):
        verb = "kill" if what.manner is StopManner.FENCE else "stop"
        return f"{{who}} {verb} the workers of attempt {what.attempt}"
    if isinstance(what, do.Note):
        return f"{{who}} search for another head: {_escape(what.message)}" if what.name == "head.lost" else None
    if isinstance(what, str) and " gets " not in what and not what.startswith(("says: ", "SendTo")):
        return f"{{who}}: {_escape(what)}" if who != "head" else None
    return None


def _describe(fault: Fault) -> str:
    ways = {"both": "", "out": ": nothing of theirs gets away", "in": ": nothing gets to them"}
    way = ways.get(fault.way, f" ({fault.way})")
    return FAULT_SENTENCES.get(fault.what, f"{fault.what} on {{node}}").format(
        node=_TARGETS.get(fault.node, f"node{fault.node}"),
        side=_list([_TARGETS.get(number, f"node{number}") for number in fault.side]) or "no agents",
        lasts=f"{fault.lasts_s:.3g} s",
        way=way,
        point=fault.point,
    )


def _list(names: Sequence[str]) -> str:
    if len(names) > 6:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
