"""Checkpoints that are either the old one or the new one, never half of one."""

from __future__ import annotations

import io
import os
from typing import Any

import torch
import torch.distributed as dist


def save_checkpoint(path: str, state: dict[str, Any]) -> None:
    """Writes a temporary file and renames it: a process killed in the middle leaves the old file as it was."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load_checkpoint(path: str, device: torch.device) -> dict[str, Any] | None:
    """The checkpoint, or None if there is none yet; all ranks get what rank 0 reads.

    On a network file system another node may still see an older file, or no file, for a while.
    """
    content = b""
    if dist.get_rank() == 0 and os.path.exists(path):
        with open(path, "rb") as file:
            content = file.read()
    length = torch.tensor([len(content)], device=device)
    dist.broadcast(length, src=0)
    size = int(length)
    if size == 0:
        return None
    buffer = torch.frombuffer(bytearray(content or size), dtype=torch.uint8).to(device)
    dist.broadcast(buffer, src=0)
    return torch.load(io.BytesIO(bytes(buffer.tolist())), map_location=device, weights_only=True)
