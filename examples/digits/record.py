"""Writes down, for tests, what one rank of one start did: `DIR/restart<N>-rank<R>.json`."""

from __future__ import annotations

import hashlib
import json
import os
from array import array

from torch import nn


class Recorder:
    """Rewrites this rank's file whenever there is news; without a directory it writes nothing."""

    def __init__(self, directory: str | None, *, done: int) -> None:
        self.restart_count = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self._directory = directory
        self._first_step = done + 1
        self.write(None, last_step=None)

    def write(self, network: nn.Module | None, *, last_step: int | None) -> None:
        if self._directory is None:
            return
        rank = int(os.environ["RANK"])
        content = {
            "rank": rank,
            "local_rank": int(os.environ["LOCAL_RANK"]),
            "world_size": int(os.environ["WORLD_SIZE"]),
            "restart_count": self.restart_count,
            "pid": os.getpid(),
            "first_step": self._first_step,
            "last_step": last_step,
            "parameter_hash": None if network is None else parameter_hash(network),
        }
        os.makedirs(self._directory, exist_ok=True)
        path = os.path.join(self._directory, f"restart{self.restart_count}-rank{rank:05d}.json")
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(f"{path}.tmp", path)


def parameter_hash(network: nn.Module) -> str:
    """SHA-256 of all parameters, in their order, bit by bit."""
    digest = hashlib.sha256()
    for parameter in network.parameters():
        digest.update(array("f", parameter.detach().cpu().flatten().tolist()).tobytes())
    return digest.hexdigest()
