"""The phases of a head, and how it gets from one to the next.

Theory of operation. The head goes through phases:

    GATHERING --all expected nodes joined, or join_timeout passed and at least `min` joined--> CLAIMING
    CLAIMING  --this head has the claim--> RUNNING
    RUNNING   --an observation--> STOPPING (with RestartWorkers or Finish decided)
    STOPPING  --every member of the world stopped or is lost--> PAUSING, AWAITING_QUORUM or CLOSING
    PAUSING   --the back-off is over, every lost member has fenced--> GATHERING
    AWAITING_QUORUM  --enough nodes are back--> PAUSING; --no other head went on in time--> CLOSING
    CLOSING   --the result is written, every member was told and has left--> OVER
    any       --another head has claimed the next attempt--> OVER, with Superseded
"""

from __future__ import annotations

from enum import Enum


class HeadPhase(str, Enum):
    """The phase of a head; the module's docstring has the transitions."""

    GATHERING = "gathering"
    CLAIMING = "claiming"
    RUNNING = "running"
    STOPPING = "stopping"
    PAUSING = "pausing"
    AWAITING_QUORUM = "awaiting_quorum"
    CLOSING = "closing"
    OVER = "over"
