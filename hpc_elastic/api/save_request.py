"""Asks the running agents of a run to write its newest training state, and waits until it is there."""

from __future__ import annotations

import time
from collections.abc import Callable

from hpc_elastic.api.requests import make_request, send
from hpc_elastic.observe.saves import SaveAnswer, SaveAnswers
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.rundir.layout import RunLayout

LOOK_EVERY_S = 0.2
SNAPSHOT_EVERY_S = 3.0
ANSWERS_LATE_S = 5.0  # after the time of the request, for what the head says then: its last look and a slow file system
GIVEN_UP_AFTER_S = 10.0  # without an answer in the attempt after the one in which it was asked for


def ask_for_save(
    layout: RunLayout, asked: Snapshot, *, within_s: float, look: Callable[[], Snapshot]
) -> SaveAnswer | None:
    """Have the newest state that all ranks hold written, and return what came of it; None if nobody has answered.

    Nobody does if the run ends first, or if the head is lost, whose successor knows nothing of the request.

    Args:
        layout: the run's.
        asked: the run as it is now.
        within_s: how long it may take.
        look: returns how the run is meanwhile; called now and then.

    Raises:
        RunDirectoryError: the run directory cannot be written.
    """
    request = make_request("save", seconds_left=within_s)
    heads = [attempt.head for attempt in asked.attempt_history[-1:]]  # one that was drained has no workers
    answers = SaveAnswers(layout, {*asked.nodes, *asked.spares, *heads})
    send(layout, request)
    ends_at = time.monotonic() + within_s + ANSWERS_LATE_S
    looks_at, changed_at = time.monotonic() + SNAPSHOT_EVERY_S, float("inf")
    while time.monotonic() < min(ends_at, changed_at + GIVEN_UP_AFTER_S):
        if (answer := answers.look(str(request.id))) is not None:
            return answer
        if time.monotonic() > looks_at:
            snapshot = look()
            if snapshot.is_over:
                return answers.look(str(request.id))
            if (snapshot.allocations, snapshot.attempts) != (asked.allocations, asked.attempts):
                changed_at = min(changed_at, time.monotonic())
            looks_at = time.monotonic() + SNAPSHOT_EVERY_S
        time.sleep(LOOK_EVERY_S)
    return None
