"""The phases of a head, and how it gets from one to the next.

Theory of operation. The head goes through phases:

    GATHERING --all expected joined, or join_timeout and at least `min`--> CLAIMING
    CLAIMING  --the claim is ours--> RUNNING
    RUNNING   --an observation--> STOPPING (with a Restart or a Finish decided)
    STOPPING  --every member of the world stopped or is lost--> PAUSING, AWAITING_QUORUM or CLOSING
    PAUSING   --the back-off is over, whoever is lost has fenced--> GATHERING
    AWAITING_QUORUM  --enough are back--> GATHERING; --nobody else went on in time--> CLOSING
    CLOSING   --the result is written and everybody told and gone--> OVER
    any       --another head has claimed the next attempt--> OVER, with Superseded
"""

from __future__ import annotations

from enum import Enum


class Phase(str, Enum):
    """Where a head stands."""

    GATHERING = "gathering"
    CLAIMING = "claiming"
    RUNNING = "running"
    STOPPING = "stopping"
    PAUSING = "pausing"
    AWAITING_QUORUM = "awaiting_quorum"
    CLOSING = "closing"
    OVER = "over"
