"""Asks the running agents of a run to write its newest training state, and waits until it is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from hpc_elastic.api.requests import make_request, send
from hpc_elastic.observe.saves import SaveAnswer, SaveAnswers
from hpc_elastic.rundir.layout import RunLayout

LOOK_EVERY_S = 0.2
OVER_EVERY_S = 3.0
ANSWERS_LATE_S = 5.0  # after the time of the request, for what the head says then: its last look and a slow file system


def ask_for_save(
    layout: RunLayout, nodes: Collection[str], *, within_s: float, is_over: Callable[[], bool] = lambda: False
) -> SaveAnswer | None:
    """Have the newest state that all ranks hold written, and return what came of it; None if nobody has answered.

    Args:
        layout: the run's.
        nodes: the nodes of the latest attempt.
        within_s: how long it may take.
        is_over: returns whether the run has ended meanwhile; asked now and then.

    Raises:
        RunDirectoryError: the run directory cannot be written.
    """
    request = make_request("save", seconds_left=within_s)
    answers = SaveAnswers(layout, nodes)
    send(layout, request)
    began = time.monotonic()
    asked_at = began
    while time.monotonic() < began + within_s + ANSWERS_LATE_S:
        if (answer := answers.look(str(request.id))) is not None:
            return answer
        if time.monotonic() > asked_at + OVER_EVERY_S:
            if is_over():
                return answers.look(str(request.id))
            asked_at = time.monotonic()
        time.sleep(LOOK_EVERY_S)
    return None
