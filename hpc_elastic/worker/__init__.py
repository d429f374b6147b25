"""The programs inside and beside every rank: the only part of the package that may import torch.

A training script uses `from hpc_elastic.worker import heartbeat`.
"""

from __future__ import annotations


def __getattr__(name: str) -> object:
    """Import what scripts use at its first use: the fork server and the store host import this package too."""
    if name != "heartbeat":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hpc_elastic.worker.heartbeat_writer import heartbeat

    globals()[name] = heartbeat
    return heartbeat


def __dir__() -> list[str]:
    return [*globals(), "heartbeat"]
