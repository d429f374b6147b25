"""Lightning's and transformers' callbacks of ours: what a notice does, and what is no stall."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.api.requests import make_request, send
from tests.compat.training import A_TRAINER
from tests.integration.conftest import Door

pytestmark = pytest.mark.local

LIGHTNING = """
import os, sys, time
import lightning
from lightning.pytorch.demos.boring_classes import BoringModel
from hpc_elastic.integrations.lightning import LightningCallback

class Slow(BoringModel):
    def training_step(self, batch, batch_idx):
        time.sleep(0.02)
        if self.global_step == 5:
            print("ready", flush=True)
        return super().training_step(batch, batch_idx)

elastic = LightningCallback(save_to="saved/notice.ckpt")
trainer = lightning.Trainer(
    accelerator="cpu", num_nodes=2, devices=1, max_epochs=-1, min_epochs=1000, min_steps=100_000, callbacks=[elastic],
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Slow())
print("step", trainer.global_step, elastic.notice.reason, flush=True)
sys.exit(75)
"""
TRANSFORMERS = """
import os, sys, time
import torch
from transformers import Trainer, TrainingArguments
from hpc_elastic.integrations.transformers import TransformersCallback

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def forward(self, x, labels=None):
        time.sleep(0.02)
        out = self.layer(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}

class Ready(TransformersCallback):
    def on_step_end(self, args, state, control, **more):
        if state.global_step == 5:
            print("ready", flush=True)
        return super().on_step_end(args, state, control, **more)

data = [{"x": torch.ones(2), "labels": torch.ones(1)} for _ in range(64)]
arguments = TrainingArguments(
    output_dir="saved", use_cpu=True, max_steps=100_000, save_strategy="no", report_to=[], disable_tqdm=True,
)
elastic = Ready()
trainer = Trainer(Model(), arguments, train_dataset=data, callbacks=[elastic])
trainer.train()
print("step", trainer.state.global_step, elastic.notice.reason, flush=True)
sys.exit(75)
"""


@pytest.mark.variant(of="test_all_ranks_save_together_and_the_run_stops_at_once")
@pytest.mark.parametrize("script", [LIGHTNING, TRANSFORMERS], ids=["lightning", "transformers"])
def test_all_ranks_save_at_a_notice_and_the_run_stops(door: Door, python: Path, script: str) -> None:
    door.write("train.py", script)
    door.write(
        "job.yaml",
        f"name: notice\nsite: local\nnodes: 2\nworkers_per_node: 1\npython: {python}\n"
        "entrypoint: {script: train.py}\nenv: {GLOO_SOCKET_IFNAME: lo}\n",
    )
    run = door.submit("job.yaml")
    run.wait_for_output("ready", within_s=180)
    send(run.layout, make_request("notice", reason="operator", seconds_left=60.0))
    result = run.wait_until_over()
    assert (result["reason"], result["failures"]) == ("notice_taken", {}), run.story()
    said = [run.stdout(1, rank).splitlines()[-1] for rank in (0, 1)]
    assert said[0].startswith("step ")
    assert said[0].endswith(" operator")
    assert said[1] == said[0]
    assert list((door.folder / "saved").iterdir())
    run.assert_nothing_left()


LONG_VALIDATION = """
import time
import lightning
from lightning.pytorch.demos.boring_classes import BoringModel
from hpc_elastic.integrations.lightning import LightningCallback

class Slow(BoringModel):
    def validation_step(self, batch, batch_idx):
        time.sleep(0.5)

trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=1, limit_train_batches=2, limit_val_batches=12, callbacks=[LightningCallback()],
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Slow())
"""
LONG_EVALUATION = """
import time
import torch
from transformers import Trainer, TrainingArguments
from hpc_elastic.integrations.transformers import TransformersCallback

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def forward(self, x, labels=None):
        time.sleep(0 if self.training else 0.5)
        out = self.layer(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}

data = [{"x": torch.ones(2), "labels": torch.ones(1)} for _ in range(12)]
arguments = TrainingArguments(
    output_dir="saved", use_cpu=True, max_steps=2, save_strategy="no", report_to=[], disable_tqdm=True,
    eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=1,
)
Trainer(Model(), arguments, train_dataset=data, eval_dataset=data, callbacks=[TransformersCallback()]).train()
"""
LONG_CHECKPOINT = """
import time
import lightning
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.plugins import TorchCheckpointIO
from hpc_elastic.integrations.lightning import LightningCallback

class Slow(TorchCheckpointIO):
    def save_checkpoint(self, *arguments, **options):
        time.sleep(12)
        super().save_checkpoint(*arguments, **options)

trainer = lightning.Trainer(
    accelerator="cpu", strategy="ddp", devices=2, max_epochs=1, limit_train_batches=4, limit_val_batches=0,
    plugins=[Slow()], callbacks=[LightningCallback()], logger=False, enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(BoringModel())
"""
LONG_SAVE = (
    A_TRAINER
    + """
import time

class Slow(Trainer):
    def _save(self, *arguments, **options):
        if self.args.should_save:
            time.sleep(12)
        super()._save(*arguments, **options)

data = [{"x": torch.ones(2), "labels": torch.ones(1)} for _ in range(64)]
arguments = TrainingArguments(
    output_dir="saved", use_cpu=True, max_steps=3, save_steps=2, save_total_limit=1, report_to=[], disable_tqdm=True,
)
Slow(Model(), arguments, train_dataset=data, callbacks=[TransformersCallback()]).train()
"""
)


@pytest.mark.variant(of="test_a_rank_that_stops_is_named_and_the_run_goes_on")
@pytest.mark.parametrize("script", [LONG_CHECKPOINT, LONG_SAVE], ids=["lightning", "transformers"])
def test_ranks_that_wait_for_the_one_that_writes_a_checkpoint_have_not_stalled(
    door: Door, python: Path, script: str
) -> None:
    result = run_with_stall_timeout(door, python, script, workers=2)
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", 1), result


@pytest.mark.variant(of="test_a_rank_that_stops_is_named_and_the_run_goes_on")
@pytest.mark.parametrize("script", [LONG_VALIDATION, LONG_EVALUATION], ids=["lightning", "transformers"])
def test_an_evaluation_longer_than_the_stall_timeout_is_no_stall(door: Door, python: Path, script: str) -> None:
    result = run_with_stall_timeout(door, python, script, workers=1)
    assert result["state"] == "SUCCEEDED", result


def run_with_stall_timeout(door: Door, python: Path, script: str, *, workers: int) -> dict[str, Any]:
    """Run a script whose ranks may be silent for 3 s, and return the result."""
    door.write("train.py", script)
    door.write(
        "job.yaml",
        f"name: slow\nsite: local\nnodes: 1\nworkers_per_node: {workers}\npython: {python}\n"
        "entrypoint: {script: train.py}\nstall_timeout: 3s\nrestart: {max_restarts: 0}\n"
        "env: {GLOO_SOCKET_IFNAME: lo}\n",
    )
    run = door.submit("job.yaml")
    result: dict[str, Any] = run.wait_until_over()
    run.assert_nothing_left()
    return result
