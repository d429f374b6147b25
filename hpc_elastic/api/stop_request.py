"""Asks the running agents to stop, with grace: a line that the head sees within a second."""

from __future__ import annotations

import time

from hpc_elastic.api.identity import host_name, user_name
from hpc_elastic.codec import to_json
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Request, utc_text


def ask_to_stop(layout: RunLayout, reason: str) -> None:
    """Append the request to stop to the run's file of requests.

    Raises:
        RunDirectoryError: the run directory cannot be written.
    """
    request = Request(kind="stop", by=f"{user_name()}@{host_name()}", time=utc_text(time.time()), reason=reason)
    store.append_line(layout.requests, to_json(request))
