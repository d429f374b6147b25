"""Has the kernel say that a limit of CPU time has ended a process."""

from __future__ import annotations

import resource

WARNS_BEFORE_S = 1  # the kernel counts whole seconds


def warn_before_cpu_limit() -> None:
    """Lower this process's soft limit of CPU time below the hard one, if they are equal; workers inherit both.

    At the soft limit the kernel sends XCPU, at the hard one KILL. Bash's `ulimit -t` and many `limits.conf` set them
    equal: then the KILL comes first, and looks like any other from outside (setrlimit(2)).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard != resource.RLIM_INFINITY and soft == hard > WARNS_BEFORE_S:
        resource.setrlimit(resource.RLIMIT_CPU, (hard - WARNS_BEFORE_S, hard))
