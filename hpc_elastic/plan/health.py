"""The health checks of a node: their names, as job.yaml, a site file and the plan spell them, and their time limits."""

from __future__ import annotations

from collections.abc import Mapping

# The default time limit of each check in seconds. A run directory on a file server that fails over may need half a
# minute; the GPUs of a node without a persistent driver take some seconds each to answer. A local disk that writes back
# what other programs have written (a container's image, say) lets fsync wait for more than 10 s, and is not broken.
HEALTH_CHECKS: Mapping[str, float] = {
    "run_directory": 30.0,
    "scratch": 30.0,
    "memory": 5.0,
    "gpus": 30.0,
    "interface": 5.0,
    "cpus": 5.0,
    "leftovers": 10.0,
}
