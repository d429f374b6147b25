"""The program that `doctor` starts once on each node: runs the checks at the same time and prints their answers.

Started by file path, `launch.py hpc_elastic.doctor.node.main REQUEST`, as agents are. The request is an argument, so
that a node whose run root hangs can still say so. An answer is printed as soon as it is there; a check that gives
none in time is left behind. Nothing is written but below the request's folder.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from hpc_elastic.codec import from_json
from hpc_elastic.doctor.node import checks
from hpc_elastic.doctor.node.peers import Neighbourhood
from hpc_elastic.doctor.node.torch_run import TorchRun
from hpc_elastic.doctor.probes.answers import ProbeAnswer, ProbeRequest, write_lines
from hpc_elastic.doctor.probes.bounded import LateError, answer_within
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.registry import derive_allocation

NODE_LIMIT_S = 100.0  # the longest checks, one after the other
NAMES_LIMIT_S = 20.0
PEERS_LIMIT_S = 50.0
TORCH_LIMIT_S = 60.0
ALL_REDUCE_LIMIT_S = 40.0


class Answers:
    """Prints answers, each as whole lines, whichever thread has it."""

    def __init__(self, place: Allocation) -> None:
        self._place = place
        self._changing = threading.Lock()
        self._number = 0

    def say(self, check: str, took_s: float, *, value: object = None, problem: str | None = None) -> None:
        """Print the answer of one check."""
        with self._changing:
            self._number += 1
            answer = ProbeAnswer(
                node=self._place.node,
                node_id=self._place.node_id,
                nodes=self._place.nodes,
                check=check,
                took_s=round(took_s, 3),
                answered=time.time(),
                problem=problem,
                value=value,
            )
            sys.stdout.write(write_lines(answer, self._number))
            sys.stdout.flush()

    def run(self, check: str, limit_s: float, examine: Callable[[], object]) -> object:
        """Run one check and print its answer; return its value, None if there is none."""
        began = time.monotonic()
        try:
            value = answer_within(examine, limit_s, name=check)
        except LateError as late:
            self.say(check, time.monotonic() - began, problem=str(late))
        except Exception as error:  # a check that is wrong itself must not hide the others
            known = error.message if isinstance(error, HpcElasticError) else f"{type(error).__name__}: {error}"
            self.say(check, time.monotonic() - began, problem=known)
        else:
            self.say(check, time.monotonic() - began, value=value)
            return value
        return None


def main(arguments: Sequence[str]) -> int:
    """Print all answers of this node; the exit code is 0 whatever they are."""
    request = from_json(ProbeRequest, json.loads(arguments[0]))
    place = derive_allocation(os.environ)
    answers = Answers(place)
    answers.say("start", 0.0)
    torch = TorchRun(place)
    whole = threading.Thread(target=_examine, args=(request, place, answers, torch), daemon=True)
    whole.start()
    whole.join(NODE_LIMIT_S)
    torch.close()
    answers.say("end", 0.0)
    os._exit(0)  # a thread may be left in the kernel, and the interpreter would wait for what it holds


def _examine(request: ProbeRequest, place: Allocation, answers: Answers, torch: TorchRun) -> None:
    neighbourhood = Neighbourhood(request, place)
    torch_there = threading.Event()

    def try_torch() -> None:
        answers.run("torch", TORCH_LIMIT_S, torch.imported)
        torch_there.set()

    def try_network() -> None:
        answers.run("peers", PEERS_LIMIT_S, neighbourhood.meet)
        torch_there.wait(TORCH_LIMIT_S)
        if torch.is_usable:
            answers.run("all-reduce", ALL_REDUCE_LIMIT_S, partial(torch.reduce, request, neighbourhood))

    tries: list[Callable[[], object]] = [
        lambda: answers.run("python", 5.0, checks.see_python),
        lambda: answers.run("run root", 20.0, lambda: checks.see_folder(os.path.dirname(request.folder), place.node)),
        lambda: answers.run("scratch", 10.0, lambda: checks.see_scratch(request, place.node, os.environ)),
        lambda: answers.run("interfaces", NAMES_LIMIT_S, neighbourhood.see_interfaces),
        lambda: answers.run("limits", 5.0, checks.see_limits),
        lambda: answers.run("gpus", 35.0, lambda: checks.see_gpus(os.environ)),
        lambda: answers.run("leftovers", 10.0, lambda: checks.see_leftovers(place.job_id)),
        try_torch,
        try_network,
    ]
    if not place.is_local:
        tries.append(lambda: answers.run("names", NAMES_LIMIT_S, neighbourhood.see_names))
    threads = [threading.Thread(target=each, daemon=True) for each in tries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
