"""The entry point of torchrun's rendezvous backend; torch loads it with its elastic package, so it imports late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def get_handler() -> Callable[[Any], Any]:
    """Of the entry point group `torchrun.handlers`: what makes a RendezvousHandler of RendezvousParameters."""
    return create_handler


def create_handler(parameters: Any) -> Any:
    """The handler of one torchrun, which is one node; nothing is connected before its first rendezvous.

    Args:
        parameters: torch's RendezvousParameters.

    Raises:
        ValueError: the options do not fit each other, or the Slurm step.
        RuntimeError: this torch is too old.
    """
    try:
        from torch.distributed.elastic.rendezvous.api import RendezvousInfo  # noqa: F401
    except ImportError as error:
        from torch import __version__

        message = f"the rendezvous backend hpc-elastic needs a torch that has RendezvousInfo, this one is {__version__}"
        raise RuntimeError(message) from error
    from hpc_elastic.integrations.torchrun.handler import make_handler

    return make_handler(parameters)
