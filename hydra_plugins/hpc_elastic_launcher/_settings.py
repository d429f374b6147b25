"""The settings below `hydra.launcher`: those of hydra-submitit-launcher, and the keys of job.yaml."""

from __future__ import annotations

from dataclasses import field, make_dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

from hpc_elastic.integrations.submitit.parameters import GENERIC, JOB_KEYS, SLURM_NAMES

TARGET = "hydra_plugins.hpc_elastic_launcher._launcher.HpcElasticLauncher"
# Where Hydra's Slurm launcher has another default than ours, which is that there is none.
_THEIRS = {"max_num_timeout": 0, "signal_delay_s": 120}


def _settings_type() -> type:
    # Any, for OmegaConf knows no type that is a number or a map.
    names = [*sorted((JOB_KEYS | SLURM_NAMES) - GENERIC - {*_THEIRS}), "nodes"]
    own: list[Any] = [(name, Any, field(default=1 if name == "nodes" else None)) for name in names]
    theirs: list[Any] = [(name, int, field(default=value)) for name, value in _THEIRS.items()]
    target: list[Any] = [("_target_", str, field(default=TARGET))]
    return make_dataclass("HpcElasticQueueConf", [*target, *theirs, *own], bases=(BaseQueueConf,))


HpcElasticQueueConf = _settings_type()


def register() -> None:
    """Lets `hydra/launcher=hpc_elastic` be chosen."""
    ConfigStore.instance().store(
        group="hydra/launcher", name="hpc_elastic", node=HpcElasticQueueConf(), provider="hpc_elastic"
    )
