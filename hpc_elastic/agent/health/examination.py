"""Examines a node before workers run on it: all checks at the same time, each with a time limit of its own.

Theory of operation. Each check runs in a daemon thread, and what it asks of a file system or a driver in a process
of its own. One that gives no answer in time is a problem like any other. It is left behind, whatever it waits for in
the kernel: it holds up neither the other checks, nor the event loop, nor the end of the agent, and it is not asked
again until it has answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping

from hpc_elastic.agent.health import probe
from hpc_elastic.agent.health.gpus import find_gpu_problem, list_holders
from hpc_elastic.agent.health.leftovers import find_leftovers
from hpc_elastic.agent.health.node import find_cpu_problem, find_interface_problem, find_memory_problem
from hpc_elastic.agent.system.child_programs import ChildPrograms, NoAnswerError
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.references import BadReferenceError, expand_references
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.stage_variables import PROBLEM_VARIABLE
from hpc_elastic.whole_lines import write_line

Check = Callable[[float], str | None]  # takes its time limit in seconds; returns what is wrong, None if nothing is
ANSWERS_BEFORE_S = 0.5  # what a check runs must end so long before its own time limit
LEAST_FREE = 16 * 2**20  # bytes, in the run directory and in local scratch
STAGE_LIMIT_S = 5.0  # it is only told again
# A file server may fail over meanwhile; a full local disk does not pass.
PATIENCE_PART = 0.5


class Examination:
    """The health checks of one node, which can be run again.

    Args:
        checks: what to check, by name.
        limits_s: the time limit of each check, in seconds; one that is left out does not run.
        children: the programs that the checks run.
    """

    def __init__(self, checks: Mapping[str, Check], limits_s: Mapping[str, float], children: ChildPrograms) -> None:
        self._checks = {name: check for name, check in checks.items() if name in limits_s}
        self._limits_s = limits_s
        self._children = children
        self._running: dict[str, threading.Thread] = {}
        self._one_at_a_time = asyncio.Lock()

    def pids(self) -> list[int]:
        """Return the process ids of what the checks run: they are no workers, and no stop waits for them."""
        return self._children.pids()

    async def examine(self) -> str | None:
        """Run all checks; return what they found, in the words of one line, None if nothing."""
        async with self._one_at_a_time:
            found = await asyncio.gather(*(self._run(name, check) for name, check in self._checks.items()))
        return "; ".join(filter(None, found)) or None

    async def _run(self, name: str, check: Check) -> str | None:
        loop, limit_s = asyncio.get_running_loop(), self._limits_s[name]
        late = f"{name}: no answer within {limit_s:g} s"
        if name in self._running and self._running[name].is_alive():
            return late
        answer: asyncio.Future[str | None] = loop.create_future()

        def run() -> None:
            problem = _answer(check, limit_s)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for the answer
                loop.call_soon_threadsafe(lambda: None if answer.done() else answer.set_result(problem))

        thread = self._running[name] = threading.Thread(target=run, name=f"health {name}", daemon=True)
        thread.start()
        try:
            problem = await asyncio.wait_for(answer, limit_s)
        except (asyncio.TimeoutError, NoAnswerError):
            return late
        return late if problem == "" else problem and f"{name}: {problem}"


def _answer(check: Check, limit_s: float) -> str | None:
    """Return a check's answer, "" if what it asked does not answer; a check that cannot be made finds no problem."""
    try:
        return check(max(limit_s - ANSWERS_BEFORE_S, limit_s / 2))
    except NoAnswerError:
        return ""
    except Exception as error:  # a check that is wrong itself must not keep a node from its work
        write_line(sys.stderr, f"hpc-elastic agent: a health check failed: {error!r}")
        return None


def examination_of(plan: LaunchPlan, place: Allocation, environ: Mapping[str, str]) -> Examination:
    """Return the examination of a node that the plan asks for."""
    children = ChildPrograms()
    checks: dict[str, Check] = {
        "run_directory": lambda limit_s: _probe(children, *_in_run_directory(plan, place), limit_s, is_shared=True),
        "scratch": lambda limit_s: _probe_scratch(children, plan, place, environ, limit_s),
        "gpus": lambda limit_s: find_gpu_problem(children, plan, environ, limit_s),
        "interface": lambda _: None if place.is_local else find_interface_problem(plan.network),
        "cpus": lambda _: None if place.is_local else find_cpu_problem(plan),
        "memory": lambda _: None if place.is_local else find_memory_problem(plan.resources, _read_meminfo()),
        "leftovers": lambda limit_s: _find_leftovers(children, plan, environ, limit_s),
    }
    limits = dict(plan.health)
    if problem := environ.get(PROBLEM_VARIABLE):  # of before the agent's start, which nothing here can mend
        checks["stage"], limits["stage"] = lambda _: problem, STAGE_LIMIT_S
    return Examination(checks, limits, children)


def _in_run_directory(plan: LaunchPlan, place: Allocation) -> tuple[str, str]:
    return os.path.split(RunLayout(plan.run_dir).health_probe(place.node))


def _probe_scratch(
    children: ChildPrograms, plan: LaunchPlan, place: Allocation, environ: Mapping[str, str], limit_s: float
) -> str | None:
    given = environ.get("TMPDIR", "")
    try:
        directory = expand_references(plan.scratch, environ) if plan.scratch else given or "/tmp"
    except BadReferenceError as error:
        return str(error)
    problem = _probe(children, directory, f".hpc-elastic-{plan.run}-{place.node}", limit_s, is_shared=False)
    return f"TMPDIR: {problem}" if problem and given and not plan.scratch else problem


def _probe(children: ChildPrograms, directory: str, name: str, limit_s: float, *, is_shared: bool) -> str | None:
    patience_s = PATIENCE_PART * limit_s if is_shared else 0.0
    program = [sys.executable, "-I", "-S", probe.__file__]
    # A full run directory is full for every node: whoever has to write a claim or a result says so.
    least = 0 if is_shared else LEAST_FREE
    returncode, said = children.run([*program, directory, name, str(least), str(patience_s)], limit_s)
    return said or None if returncode > 0 else None


def _find_leftovers(
    children: ChildPrograms, plan: LaunchPlan, environ: Mapping[str, str], limit_s: float
) -> str | None:
    if not plan.resources.gpus_per_node:
        return None
    return find_leftovers(list_holders(children, environ, limit_s), agent=os.getpid())


def _read_meminfo() -> str:
    with open("/proc/meminfo", encoding="ascii") as file:
        return file.read()
