"""torch.distributed.checkpoint: saves that another rank's failure does not cut short, and a storage in memory.

Theory of operation of the storage. What `hpc_elastic.memory` keeps belongs to one rank of one world, so each rank keeps
all parts that its own plan names, before the ranks agree on who writes what all of them have, and describes these
alone. A load that shards the state as the save did needs nothing of another rank. Any other is refused, as is one in
which a part is missing.
"""

from __future__ import annotations

import io
import math
import os
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, SavePlan, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from hpc_elastic import memory
from hpc_elastic.worker.saves import saving

_FORMAT = "torch.distributed.checkpoint"


def save(state_dict: dict[str, Any], **options: Any) -> Any:
    """Save as `torch.distributed.checkpoint.save` does, with its arguments, within `saving()`."""
    with saving():
        return dcp.save(state_dict, **options)


def async_save(state_dict: dict[str, Any], **options: Any) -> Any:
    """Save as `torch.distributed.checkpoint.async_save` does; this rank is saving until the upload is done.

    Returns:
        What torch returns: a future, or with a stager of its own a response with two.
    """
    block = saving()
    block.__enter__()
    try:
        response = dcp.async_save(state_dict, **options)
    except BaseException:
        block.__exit__(None, None, None)
        raise
    upload: Future[Any] = getattr(response, "upload_completion", response)
    upload.add_done_callback(lambda _: block.__exit__(None, None, None))
    return response


class MemoryWriter(dcp.StorageWriter):  # type: ignore[misc, unused-ignore]  # torch's types are not read
    """A storage for `torch.distributed.checkpoint.save`: this rank's memory, from which `MemoryReader` reads.

    Outside of a run it keeps nothing. What `hpc_elastic.memory` cannot hold fails the save on all ranks.

    Args:
        step: the number of the step that is done, as for `memory.save`.
    """

    def __init__(self, step: int) -> None:
        self._step = step
        self._plan = SavePlan([])

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a save; a checkpoint in memory has no name."""

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Do nothing: no rank has another part than the others."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Take note of all that this rank has: the plan that comes back lacks what another rank is to write."""
        self._plan = plan
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans as they are."""
        return plans

    def write_data(self, plan: SavePlan, planner: dcp.SavePlanner) -> Any:
        """Keep all parts that this rank has.

        Raises:
            StateError: one cannot be kept, or the planner sends no plan because it has one from an earlier save.
        """
        if not getattr(self._plan, "usable", True):
            raise memory.StateError("MemoryWriter: found a planner that caches plans, expected one that does not")
        parts: dict[str, list[Any]] = {}
        for item in self._plan.items:
            data: Any = planner.resolve_data(item)
            described: dict[str, Any] = {"data": data.getvalue() if item.type is WriteItemType.BYTE_IO else data}
            if item.tensor_data is not None:
                described["data"] = data.detach()
                described["size"] = tuple(item.tensor_data.size)
                described["offsets"] = tuple(item.tensor_data.chunk.offsets)
            parts.setdefault(item.index.fqn, []).append(described)
        memory.save(self._step, {"format": _FORMAT, "parts": parts, "planner_data": self._plan.planner_data})
        written: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
        written.set_result([WriteResult(index=item.index, size_in_bytes=0, storage_data=None) for item in plan.items])
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Do nothing: each rank has described what it keeps."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003
        """Return that no name of a checkpoint is one in memory."""
        return False


class MemoryReader(dcp.StorageReader):  # type: ignore[misc, unused-ignore]  # as above
    """A storage for `torch.distributed.checkpoint.load`: what `MemoryWriter` has kept in this rank's memory.

    Make one before the first save, on every rank.

    Attributes:
        step: the step of the state, the same on every rank; None: there is none, so load from disk.
    """

    def __init__(self) -> None:
        self.step: int | None
        self._found: Any
        self._found, self.step = memory.load()
        if self.step is not None and not (isinstance(self._found, dict) and self._found.get("format") == _FORMAT):
            self._found, self.step = None, None  # saved by `memory.save` itself, in a loop that was another one then

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a load; a checkpoint in memory has no name."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the description of this rank's parts.

        Raises:
            StateError: there is no state in memory.
        """
        if self._found is None:
            raise memory.StateError("MemoryReader: there is no state in memory; ask for `step` before")
        described: dict[str, Any] = {}
        for name, parts in self._found["parts"].items():
            described[name] = _describe(parts)
        return Metadata(described, planner_data=self._found["planner_data"])

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Do nothing: the state is here already."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: dcp.LoadPlanner) -> Any:
        """Copy what the plan asks for to its place.

        Raises:
            StateError: a part of this rank's state is not in its memory, so nothing is copied.
        """
        parts = self._found["parts"]
        self._check_whole(plan, planner)
        for item in plan.items:
            held = parts[item.storage_index.fqn]
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(held[0]["data"]))
                continue
            offset = tuple(item.storage_index.offset or ())
            source = next(part["data"] for part in held if part["offsets"] == offset)
            for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                source = source.narrow(dimension, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(source)
            planner.commit_tensor(item, target)
        read: torch.futures.Future[None] = torch.futures.Future()
        read.set_result(None)
        return read

    def _check_whole(self, plan: LoadPlan, planner: Any) -> None:
        found: dict[str, int] = {}
        for item in plan.items:
            name = item.dest_index.fqn
            found[name] = found.get(name, 0) + math.prod(item.lengths)
        for name, value in planner.state_dict.items():
            if name in self._found["parts"] and (needed := _local_numbers(value)) > found.get(name, 0):
                raise memory.StateError(
                    f"MemoryReader: {name}: found {found.get(name, 0)} of the {needed} numbers that this rank needs in "
                    "its memory; expected a state that is sharded as it was saved"
                )

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003
        """Return that no name of a checkpoint is one in memory."""
        return False


def _describe(parts: list[Any]) -> Any:
    first = parts[0]
    if "size" not in first:
        return BytesStorageMetadata()
    chunks = [
        ChunkStorageMetadata(offsets=torch.Size(part["offsets"]), sizes=torch.Size(part["data"].shape))
        for part in parts
    ]
    properties = TensorProperties(dtype=first["data"].dtype)
    return TensorStorageMetadata(properties=properties, size=torch.Size(first["size"]), chunks=chunks)


def _local_numbers(value: Any) -> int:
    """Return how many numbers of a tensor this rank has: of a DTensor, a ShardedTensor, or one that is whole."""
    if not isinstance(value, torch.Tensor):
        shards = getattr(value, "local_shards", None)
        return 0 if shards is None else sum(shard.tensor.numel() for shard in shards())
    local = value.to_local() if hasattr(value, "to_local") else value
    return int(local.numel())
