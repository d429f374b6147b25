"""Finds in a batch script's output where srun could not start the agents, and who ended them or the job; pure."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile

from hpc_elastic.hostlist import HostlistError, expand_hostlist, name_some
from hpc_elastic.printable import printable_line
from hpc_elastic.rank_set import RankSetError, parse_ranks

# srun 22.05 to 26.05, src/srun and src/api/step_launch.c. The first one counts: what follows is the end of the others.
_GAVE_UP = re.compile(r"srun: error: (Task launch for .* failed on node .*|Application launch failed: .*|Aborting, .*)")
# From one of these on the ends of tasks are what srun, or who cancels, makes of all of them.
_ABORTS = re.compile(
    rf"{_GAVE_UP.pattern}|srun: Job step aborted: .*|srun: forcing job termination"
    r"|srun: (?:\S+ _step_signal: )?Terminating .*"
    r"|.*\berror: \*\*\* (?:STEP|JOB) \S+ ON \S+ (?:CANCELLED AT|FAILED) .*"
)
# All have been killed (`scancel --signal=KILL` of the step); srun tells of the tasks before (22.05, 24.11 and 26.05).
_FORCED = re.compile(r"srun: Force Terminated .*")
_REFUSED = re.compile(r"srun: error: Task launch for \S+ failed on node (\S+): (.*)")
# A task that slurmd has taken and could not start, and tasks that have ended. There is one a node.
_NOT_STARTED = re.compile(r"srun: error: task ([0-9]{1,7}) (launch failed: .*)")
_ENDED = re.compile(r"srun: error: (\S+): tasks? ([0-9,-]+): (.+)")
_REBOOTED = re.compile(r"srun: error: Aborting, io error and missing step on node ([0-9]{1,7})")
_FAILED_NODE = re.compile(r"srun: error: Node failure on (\S+)")  # Slurm has set it DOWN, or somebody has
_WAITS = re.compile(r"srun: Job (\S+) step creation (?:temporarily|still) disabled, retrying \((.*)\)")
# The other two where the job was over before srun was called (src/srun/allocate.c of 22.05 to 26.05).
_NO_STEP = re.compile(
    r"srun: error: (?:Unable to (?:create step|confirm allocation) for job .*|S(?:lurm|LURM) job \S+ has expired)"
)
_WARNS = re.compile(r"srun: (?!error|Job |Step )")
# What slurmstepd writes to the script's output at a `scancel` (22.05, 24.11 and 26.05). Another cause stands after DUE
# TO (TIME LIMIT, PREEMPTION, NODE FAILURE, JOB REQUEUE ...); the signal of 26.05 is none.
_SCANCEL = re.compile(r".*\berror: \*\*\* JOB \S+ ON \S+ CANCELLED AT \S+(?: DUE to SIGNAL \w+)? \*\*\*")
_RUNS_ON = "hpc_elastic: the job runs on after a TERM to its script"  # which slurmstepd has told as a `scancel`
# What slurmstepd writes where Slurm follows the memory of steps (JobAcctGatherParams=OverMemoryKill), before it has the
# whole step killed: to the output of its node's task. That of 26.05 has the time in place of its name.
_OVER_MEMORY = re.compile(
    r"(?:\[\S+\] )?(?:slurmstepd\S* )?error: (?:StepId=|Step |JobId=|Job )([0-9]+)\S* "
    r"exceeded (?:virtual )?memory limit \(([0-9]{1,20}) > ([0-9]{1,20})\), being killed"
)
SCRIPT_BEGINS = "hpc_elastic: run directory"  # the first line of each start, which all write into one file
_SETUP_ENDED = "hpc_elastic: setup line "  # has failed, or has left the script
# What comes before is of setup, which may use srun as well, or of an earlier start: its end may be all of the file that
# the NFS client of another node than the script's shows so far.
_LAUNCHES = re.compile(r"hpc_elastic: starting an agent on each of [0-9]+ nodes \(start ([0-9]+)\)")


def find_launch_error(lines: Sequence[str]) -> str:
    """Return the first error for which srun gave up in the latest start of the job; empty if there is none."""
    found = map(_GAVE_UP.fullmatch, _since_latest_launch(lines))
    return next((match[1] for match in found if match), "")


def describe_step_wait(last_line: str) -> str:
    """Return for people why srun waits to start the agents, as the last line says; empty if it does not wait."""
    if not (match := _WAITS.fullmatch(last_line)):
        return ""
    job_id, reason = match[1], printable_line(match[2])
    return (
        f"srun waits to start the agents ({reason}): another step of job {job_id} may hold its CPUs or memory; "
        f"`squeue --steps --jobs={job_id}`"
    )


def describe_silent_wait(lines: Sequence[str], job_id: str) -> str:
    """Return for people that srun, which was called in somebody's allocation, may wait without a word.

    It asks the controller for a step and says that it waits when that has not answered for two minutes.

    Args:
        lines: of the script's output, to which nothing was added for long; empty is returned where they do not end
            with the launch, and with what srun warns of before it asks.
        job_id: the allocation's.
    """
    if _LAUNCHES.fullmatch(_last_word(lines)) is None:
        return ""
    return (
        f"srun has started no agent yet: another step of job {job_id} may hold its CPUs or memory; "
        f"`squeue --steps --jobs={job_id}`"
    )


def is_without_step(lines: Sequence[str]) -> bool:
    """Return whether srun was called to start the agents, and has got no step for them, as the last of its words say.

    It may still ask for one, with or without a word, or have given up.

    Args:
        lines: of the script's output.
    """
    last = _last_word(lines)
    return any(words.fullmatch(last) for words in (_LAUNCHES, _WAITS, _NO_STEP))


def _last_word(lines: Sequence[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip() and not _WARNS.match(line)), "")


def find_unstarted(lines: Sequence[str], nodes: Sequence[str] = ()) -> dict[str, str]:
    """Return the nodes on which srun could not start an agent in the latest start of the job, with the reasons.

    For them it ends the agents of all other nodes as well. A node that reboots meanwhile is one: its slurmd is there
    and does not know the step.

    Args:
        lines: of the script's output.
        nodes: the nodes of the step in its order, for srun tells of a node that has rebooted by its place; without
            them that node is left out.
    """
    found: dict[str, str] = {}
    for line in _since_latest_launch(lines):
        if match := _REFUSED.fullmatch(line):
            found.setdefault(match[1], printable_line(match[2]))
        elif match := _REBOOTED.fullmatch(line):
            for node in nodes[int(match[1]) : int(match[1]) + 1]:
                found.setdefault(node, "it has rebooted")
    return found


def find_ended_agents(lines: Sequence[str], nodes: Sequence[str], *, start: int) -> dict[str, str]:
    """Return the nodes whose agents have ended, or could not be started, in one start of the job, and how.

    Those of other nodes go on. An agent that has exited with 0 is not among them, nor one that has been ended with all
    others, because srun could not start the one of another node, say: where all have ended, none is named. The words
    are srun's; those of another srun of the script are left out, as far as its tasks are others. Where the lines do
    not show that this start has launched its agents, nothing is known.

    Args:
        lines: of the script's output.
        nodes: the nodes of the step in its order, for srun names a task that was not started by its place.
        start: how often the scheduler has started the job before (SLURM_RESTART_COUNT).
    """
    found: dict[str, str] = {}
    own = _since_launch(lines, start)
    if any(map(_FORCED.fullmatch, own)):
        return {}
    for line in takewhile(lambda line: not _ABORTS.fullmatch(line), own):
        if match := _NOT_STARTED.fullmatch(line):
            for node in nodes[int(match[1]) : int(match[1]) + 1]:
                found.setdefault(node, printable_line(match[2]))
        elif match := _ENDED.fullmatch(line):
            for node in _agents_of(match[1], match[2], nodes):
                found.setdefault(node, printable_line(match[3]))
    return {} if found.keys() >= set(nodes) else found


def _agents_of(hosts: str, tasks: str, nodes: Sequence[str]) -> Sequence[str]:
    """Return the nodes that srun names if the tasks are agents; none if they are of another step.

    Task k of the agents' step is on node k. A line of `setup` may have started an srun in the background, whose tasks
    have other numbers, unless they are one on each node as well.
    """
    with contextlib.suppress(HostlistError, RankSetError):
        named, numbers = expand_hostlist(hosts), parse_ranks(tasks)
        if set(named) == {nodes[number] if number < len(nodes) else "" for number in numbers}:
            return named
    return ()


def tells_of_scancel(lines: Sequence[str]) -> bool:
    """Return whether the latest start of the job was signalled with `scancel`, and its script knows no better."""
    own = _of_latest_start(lines)
    runs_on = max((number for number, line in enumerate(own) if line == _RUNS_ON), default=0)
    return any(map(_SCANCEL.fullmatch, own[runs_on:]))


def find_failed_nodes(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes that Slurm has taken from the job in its latest start, for they are DOWN, by srun's words."""
    found: list[str] = []
    for match in filter(None, map(_FAILED_NODE.fullmatch, _of_latest_start(lines))):
        with contextlib.suppress(HostlistError):
            found += expand_hostlist(match[1])
    return tuple(dict.fromkeys(found))


def find_over_memory(lines: Sequence[str], job_id: str) -> str:
    """Return by how much a step of this job went over its memory on a node; empty if it did not.

    Slurm kills the whole step for it, on all nodes.

    Args:
        lines: of the output of the node's task.
        job_id: the job's number, for a file may have lines of earlier jobs of the run.
    """
    found = (match for match in map(_OVER_MEMORY.fullmatch, lines) if match and match[1] == job_id)
    used, limit = next(((int(match[2]), int(match[3])) for match in found), (0, 0))
    return f"{used / 2**20:.0f} of {limit / 2**20:.0f} MiB" if limit else ""


def describe_unstarted(unstarted: Mapping[str, str]) -> str:
    """Return for people on which nodes the agents could not be started, by reason; empty if they were on all."""
    by_reason: dict[str, list[str]] = {}
    for node, reason in unstarted.items():
        by_reason.setdefault(reason, []).append(node)
    told = "; ".join(f"{name_some(nodes)} ({reason})" for reason, nodes in by_reason.items())
    return f"srun could not start the agents on {told}" if told else ""


def _since_launch(lines: Sequence[str], start: int) -> Sequence[str]:
    """Return the lines between the launch of a start of the job and the next start; none if it is not there."""
    launches = ((number, _LAUNCHES.fullmatch(line)) for number, line in enumerate(lines, 1))
    begin = max((number for number, match in launches if match and int(match[1]) == start), default=len(lines))
    return list(takewhile(lambda line: not line.startswith(SCRIPT_BEGINS), lines[begin:]))


def _since_latest_launch(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines of the latest start without those of its setup, as far as its script tells where they end."""
    own = _of_latest_start(lines)
    if any(line.startswith(_SETUP_ENDED) for line in own):  # which ended the job
        return ()
    return own[max((number for number, line in enumerate(own) if _LAUNCHES.fullmatch(line)), default=0) :]


def _of_latest_start(lines: Sequence[str]) -> Sequence[str]:
    return lines[max((number for number, line in enumerate(lines) if line.startswith(SCRIPT_BEGINS)), default=0) :]
