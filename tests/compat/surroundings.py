"""A script that these libraries run: each rank writes where Lightning, accelerate and transformers think it is."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import lightning
from accelerate import PartialState
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.demos.boring_classes import BoringModel
from transformers import TrainingArguments

SLURM = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS")

said: dict[str, Any] = {
    "rank_zero_only": rank_zero_only.rank,  # as the import left it
    "master": [os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]],
    "slurm": {name: value for name, value in os.environ.items() if name in SLURM},
}
state = PartialState(cpu=True)
said["accelerate"] = [state.process_index, state.local_process_index, state.num_processes, str(state.distributed_type)]
training = TrainingArguments(output_dir="unused", use_cpu=True)
said["transformers"] = [training.process_index, training.local_process_index, training.world_size]


class Look(lightning.Callback):
    """A callback that writes what the library sees in the middle of a training."""

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        environment = trainer.strategy.cluster_environment
        said["lightning"] = {
            "environment": type(environment).__name__,
            "ranks": [environment.global_rank(), environment.local_rank(), environment.node_rank()],
            "world": environment.world_size(),
            "master": [environment.main_address, str(environment.main_port)],
            "requeues": signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL,
        }


trainer = lightning.Trainer(
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy="ddp",
    fast_dev_run=True,
    callbacks=[Look()],
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(BoringModel())
said["slurm"] = {
    name: value for name, value in os.environ.items() if name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS")
}
with open(os.path.join(sys.argv[1], f"{os.environ['RANK']}.json"), "w") as file:
    json.dump(said, file)
