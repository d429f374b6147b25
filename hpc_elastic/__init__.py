"""Run PyTorch jobs on Slurm so that they survive failures of nodes and of the network."""

from __future__ import annotations

__version__ = "0.1.0"

# The Python API, by name and module. Each module is imported at first use: agents and workers import this package too.
_PUBLIC_NAMES = {
    "submit": "hpc_elastic.api.submit",
    "Run": "hpc_elastic.api.run",
    "Job": "hpc_elastic.api.job",
    "RunResult": "hpc_elastic.api.result",
    "RunFailed": "hpc_elastic.api.result",
    "ReturnValuesError": "hpc_elastic.api.result",
    "HpcElasticError": "hpc_elastic.errors",
    "RendezvousTimeoutError": "hpc_elastic.errors",
}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC_NAMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC_NAMES]
