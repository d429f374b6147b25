"""The times of a search for the head."""

from __future__ import annotations

from dataclasses import dataclass

from hpc_elastic.agent.rendezvous.trouble import REPORT_TIMES, ReportTimes
from hpc_elastic.membership.timing import HEAD_REACTS_WITHIN_S, RELIEVED_WITHIN_S


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTimes:
    """The times of a search for the head, in seconds.

    `others_after_s`: those that may be head instead are asked, too, once the known one has not answered for this long.
    `claim_after_s`, `claim_step_s`: node k claims the allocation when no head was found for the first plus k times the
    second. `read_claim_every_s`: between two looks for another agent's claim. `connect_bound_s`: for one connection
    attempt. `silent_after_s`: a head that has not answered for this long is reported. `dead_after_s`: the kernel gives
    the connection up when the other machine acknowledges nothing for this long.

    `first_pause_s`, `longest_pause_s`: between two rounds of dialling, growing. `head_answers_within_s`: a head listens
    before it claims, so one that has not answered for this long is gone. `persists_s`: an obstacle on the way to a head
    that has claimed is not transient if it lasts this long unchanged. `first_retry_s`, `longest_retry_s`: between two
    tries to join, growing. `scheduler_answers_within_s`: for the answer whether an earlier allocation is over.
    `asks_again_after_s`: before the scheduler is asked again. `head_reacts_within_s`, `relieved_within_s`: see
    `timing`. `counts_every_s`: between two counts of the nodes that cannot reach the head. `reports`: when an obstacle
    is reported.
    """

    claim_after_s: float = 20.0
    claim_step_s: float = 5.0
    read_claim_every_s: float = 2.0
    others_after_s: float = 4.0
    connect_bound_s: float = 2.0
    silent_after_s: float = 5.0
    dead_after_s: float = 20.0
    first_pause_s: float = 0.05
    longest_pause_s: float = 1.0
    head_answers_within_s: float = 30.0
    persists_s: float = 10.0
    first_retry_s: float = 5.0
    longest_retry_s: float = 60.0
    scheduler_answers_within_s: float = 60.0
    asks_again_after_s: float = 2.0
    head_reacts_within_s: float = HEAD_REACTS_WITHIN_S
    relieved_within_s: float = RELIEVED_WITHIN_S
    counts_every_s: float = 5.0
    reports: ReportTimes = REPORT_TIMES


SEARCH_TIMES = SearchTimes()
