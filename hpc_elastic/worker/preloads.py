"""What is imported once a node, for all its workers: torch, what a first training step imports, what the job asks."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass

# `import torch` is not the whole import: a first DistributedDataParallel and a first optimizer bring 800 more modules.
# A torch that has not one of these goes without it.
TORCH_MODULES = (
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "torch.utils.data.distributed",
    "torch.distributed.tensor",
    "torch._dynamo",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preloaded:
    """How the imports went. `torch` is its version; `no_torch` says why there is none."""

    torch: str | None = None
    no_torch: str | None = None
    failed: tuple[tuple[str, str], ...] = ()


def import_preloads(modules: Iterable[str]) -> Preloaded:
    """Imports torch, what goes with it, and `modules`."""
    version, no_torch = None, None
    try:
        import torch

        version = str(torch.__version__)
    except (Exception, SystemExit) as error:
        no_torch = _describe(error)
    else:
        for name in TORCH_MODULES:
            _import(name)
    failed = [(name, why) for name in modules if (why := _import(name)) is not None]
    return Preloaded(torch=version, no_torch=no_torch, failed=tuple(failed))


def _import(name: str) -> str | None:
    """Why a module cannot be imported; whatever is wrong with it, the worker that needs it will say."""
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        return _describe(error)
    return None


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
