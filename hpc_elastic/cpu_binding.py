"""Binds a worker to the CPUs that its agent chose for it, before it runs the user's code."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from hpc_elastic.rank_set import RankSetError, parse_ranks

CPUS_VARIABLE = "HPC_ELASTIC_CPUS"  # of a worker: the CPUs that it is bound to, such as `0-15,64-79`
REAL_LOCAL_RANK = "HPC_ELASTIC_LOCAL_RANK"  # of a worker whose LOCAL_RANK is 0 by `virtual_local_rank`


def bind_this_process(environ: Mapping[str, str]) -> None:
    """Bind the calling thread, and all that it starts from now on, to the CPUs that the environment names, if any.

    A worker that cannot be bound runs on: the CPUs were there when the agent looked, and a slow run is worth more
    than none. It says so on standard error.
    """
    text = environ.get(CPUS_VARIABLE)
    if not text:
        return
    try:
        os.sched_setaffinity(0, parse_ranks(text))
    except (OSError, RankSetError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        print(f"hpc-elastic: this worker cannot be bound to the CPUs {text}: {why}", file=sys.stderr, flush=True)
