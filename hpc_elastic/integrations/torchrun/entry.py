"""The entry point of torchrun's rendezvous backend; it imports late, as torch loads it with its elastic package."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

OLDEST_TORCH = (2, 5)


def get_handler() -> Callable[[Any], Any]:
    """Return `create_handler`, as the entry point group `torchrun.handlers` requires."""
    return create_handler


def create_handler(parameters: Any) -> Any:
    """Create the RendezvousHandler of one torchrun, on one node; it connects to nothing before its first rendezvous.

    Args:
        parameters: torch's RendezvousParameters.

    Raises:
        ValueError: the options do not fit each other, or the Slurm step.
        RuntimeError: this torch is too old.
    """
    from torch import __version__

    check_version(str(__version__))
    from hpc_elastic.integrations.torchrun.handler import make_handler

    return make_handler(parameters)


def check_version(torch: str) -> None:
    """Refuse a torch whose elastic agent does not ask what the handler answers.

    torch 2.4 brought RendezvousInfo (pytorch/pytorch#125743), 2.5 the entry point by which torchrun finds this
    package (#132633) and an exit barrier that waits with `Store.wait` (#130148).

    Raises:
        RuntimeError: this torch is too old.
    """
    numbers = re.match(r"(\d+)\.(\d+)", torch)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise RuntimeError(
            f"rendezvous backend hpc-elastic needs torch {oldest} or newer, and this one is {torch}: upgrade torch, "
            "or start the training with `hpc-elastic run` or `hpc-elastic submit`, which need torch 2.2"
        )
