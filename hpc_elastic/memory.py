"""Keeps training state in memory that outlives the worker: `load`, `save` and the states of random generators.

    from hpc_elastic import memory

    state, step = memory.load()             # (None, None): load from disk, as ever
    memory.save(step, state)                # copies it, and waits for no other process and no disk

After a failure the workers of the next attempt find here what was saved last. The head of the run chooses one step for
all ranks, which every rank of the attempt holds complete and undamaged; if there is none, `load` says so on every rank.
Outside of a run, and in a process that a rank has forked, there is never a state, and `save` does nothing.

Importing this needs no torch, and imports none.
"""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Mapping
from typing import Any

from hpc_elastic.worker.rank_state import rank_state
from hpc_elastic.worker.state_encoding import StateError as StateError

__all__ = ["StateError", "load", "random_state", "save", "set_random_state"]

LARGEST_STEP = 2**62 - 1  # that a copy on another node and a file in the run directory can name


def load() -> tuple[Any, int] | tuple[None, None]:
    """Return the state with which this attempt goes on, and its step; (None, None) if there is none.

    All ranks get the state of the same step, or none of them gets one. Tensors are copies in the memory of the CPU.
    Call it before the first `save`.

    Raises:
        StateError: the state holds tensors of torch or arrays of numpy, and that is not imported.
    """
    found = rank_state()
    return (None, None) if found is None else found.load()


def save(step: int, state: object, replicated: bool = False) -> None:
    """Copy a training state into this rank's memory, from which `load` returns it after a failure.

    Call it on every rank, at the same steps. The two states that were saved last are kept. Ranks that synchronise at
    each step, as all distributed training of one model does, are at most one save apart, so that all of them hold the
    older one at least. A state that there is no room for is not kept, and one line on standard error says so. In the
    handler of a signal that interrupts a save it does nothing.

    Args:
        step: the number of the step that is done. A step that is saved already is not saved again.
        state: dicts, lists, tuples, tensors, numpy arrays, numbers, strings, bytes and None, nested in any way. A map
            of another kind comes back as a dict (but for a Counter), a named tuple as a tuple, and a parameter as a
            plain tensor. Tensors that share memory come back apart.
        replicated: whether all ranks have the same state, as in DistributedDataParallel. Then local rank 0 of each node
            keeps it for all of them, and it can be loaded by any number of nodes; else by the same ranks only.

    Raises:
        StateError: the state holds something else; the message says where.
        ValueError: this attempt has saved a later step.
        TypeError: `step` is no whole number.
    """
    try:
        if isinstance(step, bool):
            raise TypeError
        step = operator.index(step)  # numpy's and torch's whole numbers, too
    except TypeError:
        raise TypeError(f"memory.save: found step {step!r}, expected a whole number") from None
    if not 0 <= step <= LARGEST_STEP:
        raise ValueError(f"memory.save: found step {step}, expected one from 0 to 2**62 - 1")
    if (found := rank_state()) is not None:
        found.save(step, state, is_replicated=replicated)


def random_state() -> dict[str, Any]:
    """Return the states of the random generators of Python, numpy and torch, as far as these are imported.

    Of CUDA's generators there is one a device, if CUDA is in use. It belongs into a state that each rank keeps of its
    own; from one that is `replicated` all ranks would go on with the random numbers of one.
    """
    found: dict[str, Any] = {"python": random.getstate()}
    if (numpy := _loaded("numpy.random")) is not None:
        found["numpy"] = numpy.get_state()
    if (torch := _loaded("torch")) is not None:
        found["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def set_random_state(state: Mapping[str, Any]) -> None:
    """Set the random generators to what `random_state` has returned; those that are not imported are left out."""
    random.setstate(state["python"])
    if "numpy" in state and (numpy := _loaded("numpy.random")) is not None:
        numpy.set_state(state["numpy"])
    if "torch" in state and (torch := _loaded("torch")) is not None:
        torch.set_rng_state(state["torch"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda"])


def _loaded(name: str) -> Any:
    return sys.modules.get(name)
