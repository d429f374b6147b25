"""The programs inside and beside every rank: the only part of the package that may import torch.

A training script uses `from hpc_elastic.worker import heartbeat, notice_received, on_notice, saving`.
"""

from __future__ import annotations

from importlib import import_module

# What scripts use, and the module of each.
_FOR_SCRIPTS = {
    "heartbeat": "heartbeat_writer",
    "notice_received": "notices",
    "on_notice": "notices",
    "Notice": "notices",
    "saving": "saves",
}


def __getattr__(name: str) -> object:
    """Import what scripts use at its first use: the fork server and the store host import this package too."""
    if name not in _FOR_SCRIPTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"hpc_elastic.worker.{_FOR_SCRIPTS[name]}"), name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *_FOR_SCRIPTS]
