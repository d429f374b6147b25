"""Decides where each of a worker's two streams goes: to its file, the agent's log, both or nowhere."""

from __future__ import annotations

from dataclasses import dataclass

from hpc_elastic.plan.launch_plan import LogsPlan
from hpc_elastic.plan.std_streams import Std


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDestinations:
    """The destinations of one worker's streams, as torch's LogsDest has them.

    Attributes:
        redirected: the streams that go to the rank's files. Any other stream is the agent's own,
            which the worker inherits.
        teed: the redirected streams whose lines the agent's log repeats.
        dropped: the streams that go nowhere: neither redirected, nor to be shown.
    """

    redirected: Std = Std.ALL
    teed: Std = Std.NONE
    dropped: Std = Std.NONE


def choose_destinations(logs: LogsPlan, *, rank: int, local_rank: int) -> LogDestinations:
    """Return the destinations of one worker's streams, by the rules of torch's `DefaultLogsSpecs.reify`.

    A tee follows a file, so a teed stream is redirected too. The filter hides a worker
    from the agent's log and leaves its files as they are.
    """
    teed = Std.ALL if rank in logs.tee_ranks else logs.tee.of(local_rank)
    redirected = logs.redirects.of(local_rank) | teed
    if logs.local_ranks_filter is None or local_rank in logs.local_ranks_filter:
        return LogDestinations(redirected=redirected, teed=teed)
    return LogDestinations(redirected=redirected, dropped=Std.ALL & ~redirected)
