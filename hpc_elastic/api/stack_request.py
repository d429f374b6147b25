"""Asks the running agents for the stacks of their workers, and waits for the answers."""

from __future__ import annotations

import time
from collections.abc import Collection

from hpc_elastic.api.requests import make_request, send
from hpc_elastic.observe.stacks import StackAnswers
from hpc_elastic.rundir.layout import RunLayout

LOOK_EVERY_S = 0.3


def ask_for_stacks(layout: RunLayout, nodes: Collection[str], *, within_s: float) -> tuple[str, StackAnswers]:
    """Have the agents take the stacks of their workers, which go on; return the request's id and the answers.

    Args:
        layout: the run's.
        nodes: the nodes of the latest attempt.
        within_s: how long to wait for all of them.

    Raises:
        RunDirectoryError: the run directory cannot be written.
    """
    request = make_request("stacks")
    answers = StackAnswers(layout, nodes)
    send(layout, request)
    deadline = time.monotonic() + within_s
    while answers.missing and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)
        answers.look(str(request.id))
    return str(request.id), answers
