"""Who starts the training: the columns of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Launcher:
    """One of the columns: its name, and the variables of torchrun's mode or the job's keys."""

    name: str
    is_ours: bool
    setting: Mapping[str, str]


OURS = Launcher("hpc_elastic", True, {"start": "auto"})
SPAWN = Launcher("hpc_elastic, start: spawn", True, {"start": "spawn"})
SHARING_OFF = Launcher("torchrun, sharing off", False, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
DEFAULT = Launcher("torchrun, default", False, {})
LAUNCHERS = {"ours": OURS, "spawn": SPAWN, "off": SHARING_OFF, "default": DEFAULT}
