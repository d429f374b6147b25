"""The program that looks whether an agent of this start of the job lives, for a script whose own agent is dead.

    PYTHON launch.py hpc_elastic.agent.survivors RUN_DIR

Theory of operation. Slurm ends a step with its last process, unless a node of the step was lost: the step is shown on
(22.05, also when that node is DOWN), and so does not tell the script whether anybody works. The agents do. Each listens
on one of a few ports that follow from run and job, on every interface of its machine, and writes a sample of its node
every ten seconds. So nobody lives if each machine of the allocation refuses all of these ports, or Slurm has taken it
from the job, and no sample comes. A machine that says nothing and is still the job's may only have been cut off.

One look proves little. So the program writes a line if it finds nobody, which changes with every sample and claim; the
script waits until it has got the same line several times, minutes apart. Whatever goes wrong, there is no line.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from hpc_elastic.agent.net.reach import Answer, probe
from hpc_elastic.agent.node.network import resolve_node
from hpc_elastic.codec import from_json
from hpc_elastic.errors import ExitCode
from hpc_elastic.job_ids import is_local
from hpc_elastic.membership.ports import port_sequence
from hpc_elastic.plan.launch_plan import LaunchPlan, parse_plan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import AllocationClaim
from hpc_elastic.rundir.store import list_numbers, read_json
from hpc_elastic.scheduler.protocol import NodeQuestions
from hpc_elastic.scheduler.questions import JobQuestions
from hpc_elastic.scheduler.registry import derive_start

# So many connections are tried at once: a process may have 1024 descriptors.
MOST_PROBES = 256


def main(arguments: Sequence[str]) -> int:
    """Write a line if no agent of this start of the job is found; return an exit code."""
    if len(arguments) != 1:
        print("usage: launch.py hpc_elastic.agent.survivors RUN_DIR", file=sys.stderr)
        return int(ExitCode.USAGE)
    layout = RunLayout(arguments[0])
    with open(layout.plan, encoding="utf-8") as file:
        plan = parse_plan(file.read())
    start = derive_start(os.environ)
    nobody = find_nobody(
        layout, plan, start, JobQuestions(), resolve=lambda node: resolve_node(node, plan.network).addresses
    )
    if nobody is not None:
        print(nobody, flush=True)
    return int(ExitCode.SUCCESS)


def find_nobody(
    layout: RunLayout,
    plan: LaunchPlan,
    start: tuple[str, int],
    questions: NodeQuestions,
    *,
    resolve: Callable[[str], Sequence[str]],
) -> str | None:
    """Return a text that stays the same as long as nobody lives; None if an agent may live.

    Args:
        layout: the layout of the run directory.
        plan: the launch plan.
        start: the job's id, and how often it was started again.
        questions: asks the scheduler, which is believed where it says that a node was lost.
        resolve: returns the addresses of a node.
    """
    numbers = list_numbers(layout.allocations)
    data = read_json(layout.allocation(numbers[-1])) if numbers else None
    claim = None if data is None else from_json(AllocationClaim, data)
    if claim is None or (claim.job_id, claim.restart_count) != start or is_local(claim.job_id):
        return None
    ports = port_sequence(plan.run, claim.job_id, plan.network.port_range)
    addresses = {node: resolve(node) for node in claim.nodes}
    found = asyncio.run(_look_at(addresses, ports))
    if Answer.ACCEPTED in found.values():
        return None
    silent = [node for node, answer in found.items() if answer is not Answer.REFUSED]
    if set(silent) - questions.dead_nodes(claim.job_id, silent):
        return None
    return _traces(layout, claim.nodes)


async def _look_at(addresses: Mapping[str, Sequence[str]], ports: Sequence[int]) -> dict[str, Answer]:
    """Return how each node answers on the agents' ports.

    ACCEPTED: somebody listens there. REFUSED: one of its addresses refuses all of the ports. NOTHING: anything else.
    """
    free = asyncio.Semaphore(MOST_PROBES)

    async def ask(address: str, port: int) -> Answer:
        async with free:
            return await probe(address, port)

    async def look_at(address: str) -> Answer:
        answers = set(await asyncio.gather(*(ask(address, port) for port in ports)))
        if Answer.ACCEPTED in answers:
            return Answer.ACCEPTED
        return Answer.REFUSED if answers == {Answer.REFUSED} else Answer.NOTHING

    async def look_at_all(known: Sequence[str]) -> Answer:
        answers = set(await asyncio.gather(*map(look_at, known)))
        return next((one for one in (Answer.ACCEPTED, Answer.REFUSED) if one in answers), Answer.NOTHING)

    answers = await asyncio.gather(*map(look_at_all, addresses.values()))
    return dict(zip(addresses, answers, strict=True))


def _traces(layout: RunLayout, nodes: Sequence[str]) -> str:
    """Return a digest of what agents that live make longer: the claims, and the samples of each node."""
    sizes = [str(list_numbers(layout.allocations)), str(list_numbers(layout.attempts))]
    for node in nodes:
        with contextlib.suppress(FileNotFoundError):
            sizes.append(f"{node} {os.path.getsize(layout.samples(node))}")
    return hashlib.sha256("\n".join(sizes).encode()).hexdigest()
