"""What becomes of each stream of each worker: files, the agent's log, both or nothing."""

from __future__ import annotations

import pytest

from hpc_elastic.agent.workers.log_destinations import LogDestinations, choose_destinations
from hpc_elastic.plan.launch_plan import LogsPlan
from hpc_elastic.plan.std_streams import NO_STREAMS, LocalStreams, Std

FIRST_TEED = LogsPlan(per="rank", redirects=NO_STREAMS, tee=LocalStreams.from_str("0:out"))


@pytest.mark.parametrize(
    ("logs", "rank", "local_rank", "expected"),
    [
        (LogsPlan(per="rank"), 4, 0, LogDestinations()),
        (LogsPlan(per="rank", tee_ranks=(4,)), 4, 0, LogDestinations(teed=Std.ALL)),
        (LogsPlan(per="rank", tee_ranks=(4,)), 5, 1, LogDestinations()),
        (FIRST_TEED, 4, 0, LogDestinations(redirected=Std.OUT, teed=Std.OUT)),
        (FIRST_TEED, 5, 1, LogDestinations(redirected=Std.NONE)),
    ],
)
def test_what_is_teed_is_redirected_too(logs: LogsPlan, rank: int, local_rank: int, expected: LogDestinations) -> None:
    assert choose_destinations(logs, rank=rank, local_rank=local_rank) == expected


def test_a_worker_that_the_filter_hides_keeps_its_files_and_loses_the_rest() -> None:
    logs = LogsPlan(per="rank", redirects=NO_STREAMS, tee=LocalStreams.from_str("err"), local_ranks_filter=(0, 2))
    shown = LogDestinations(redirected=Std.ERR, teed=Std.ERR)
    hidden = LogDestinations(redirected=Std.ERR, dropped=Std.OUT)
    assert [choose_destinations(logs, rank=9, local_rank=rank) for rank in range(3)] == [shown, hidden, shown]
