"""Asks the running agents for the stacks of their workers, and waits for the answers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection

from hpc_elastic.api.identity import host_name, user_name
from hpc_elastic.codec import to_json
from hpc_elastic.observe.stacks import StackAnswers
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Request, utc_text

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
    request = uuid.uuid4().hex
    answers = StackAnswers(layout, nodes)
    by, now = f"{user_name()}@{host_name()}", utc_text(time.time())
    store.append_line(layout.requests, to_json(Request(kind="stacks", by=by, time=now, id=request)))
    deadline = time.monotonic() + within_s
    while answers.missing and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)
        answers.look(request)
    return request, answers
