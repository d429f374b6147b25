"""The environment variables by which a node's agent and its workers know of the copy that was staged."""

from __future__ import annotations

STAGE_VARIABLE = "HPC_ELASTIC_STAGE"  # the path of the copy; workers have it too
STAGED_VARIABLE = "HPC_ELASTIC_STAGE_DONE"  # a line for people: what was copied, and how long it took
PROBLEM_VARIABLE = "HPC_ELASTIC_STAGE_PROBLEM"  # why there is no copy
IN_STAGE = "${HPC_ELASTIC_STAGE}"  # how `python` begins where it is in the copy
