"""Libraries' trainings whose state is in memory: a rank is killed, and the weights are those of an undisturbed run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="there is no torch")


from hpc_elastic.rundir.state_records import StateVersion
from tests.compat.training import A_TRAINER
from tests.integration.conftest import Door, Run
from tests.integrations.test_checkpoint_in_memory import START as TORCH_START
from tests.worker.conftest import Outcome
from tests.worker.conftest import runner as runner
from tests.worker.test_memory import Node, held, outcome_of
from tests.worker.test_memory import node as node

pytestmark = pytest.mark.local

STEPS, DIES_AT = 24, 11

# Each script kills rank 1 at step DIES_AT of the first attempt, before that step is saved. Dropout uses the random
# state; the order of the data depends on the position in the epoch.
START = """
import os, signal, sys
import torch

STEPS, DIES_AT, DIES, REPLICATED = {steps}, {dies_at}, {dies}, {replicated}
RANK = int(os.environ["RANK"])

def begin(step):
    print("begins at", step, flush=True)

def step_is_done(step):
    if DIES and step == DIES_AT and RANK == 1 and os.environ["HPC_ELASTIC_ATTEMPT"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)

def end(model):
    weights = [getattr(value, "to_local", lambda: value)() for value in model.state_dict().values()]
    print("ends with", [[number.hex() for number in value.flatten().tolist()] for value in weights], flush=True)

def make_network():
    torch.manual_seed(3)
    network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
    torch.manual_seed(100 + RANK)
    return network
"""

LIGHTNING = """
import lightning
from hpc_elastic.integrations.lightning import LightningCallback

class Batches:
    '''Seven batches an epoch, of which it knows how many are read.'''
    def __init__(self):
        self.read = 0
    def __len__(self):
        return 7
    def __iter__(self):
        while self.read % 7 or not getattr(self, "is_begun", False):
            self.is_begun = True
            self.read += 1
            yield torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * RANK + self.read))
        self.is_begun = False
    def state_dict(self):
        return {"read": self.read}
    def load_state_dict(self, state):
        self.read = state["read"]
        self.is_begun = self.read % 7 != 0

class Module(lightning.LightningModule):
    def __init__(self, unkept):
        super().__init__()
        self.save_hyperparameters()
        self.network = make_network()
    def on_train_start(self):
        begin(self.global_step)
    def training_step(self, batch, batch_idx):
        return self.network(batch).square().mean()
    def on_before_zero_grad(self, optimizer):
        step_is_done(self.global_step + 1)
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2),
            "interval": "epoch"}}

elastic = LightningCallback(keep_every=1, replicated=REPLICATED)
trainer = lightning.Trainer(
    accelerator="cpu", num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy="ddp", max_steps=STEPS, callbacks=[elastic], logger=False, use_distributed_sampler=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
module = Module(unkept=object())
trainer.fit(module, Batches(), ckpt_path=elastic.resume_from())
end(module.network)
"""

TRANSFORMERS = """
from transformers import Trainer, TrainingArguments
from hpc_elastic.integrations.transformers import TransformersCallback

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.network = make_network()
    def forward(self, x, labels=None):
        out = self.network(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}

class Elastic(TransformersCallback):
    def on_train_begin(self, args, state, control, **more):
        begin(state.global_step)
        super().on_train_begin(args, state, control, **more)
    def on_step_end(self, args, state, control, **more):
        step_is_done(state.global_step)
        return super().on_step_end(args, state, control, **more)

numbers = torch.Generator().manual_seed(5)
data = [{"x": torch.randn(8, generator=numbers), "labels": torch.ones(1)} for _ in range(28)]
arguments = TrainingArguments(
    output_dir="saved", use_cpu=True, max_steps=STEPS, save_strategy="no", report_to=[], disable_tqdm=True,
    per_device_train_batch_size=2, learning_rate=0.01,
)
elastic = Elastic(keep_every=1, replicated=REPLICATED)
model = Model()
trainer = Trainer(model, arguments, train_dataset=data, callbacks=[elastic])
trainer.train(resume_from_checkpoint=elastic.resume_from())
end(model.network)
"""

TORCH = """
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from hpc_elastic import memory
from hpc_elastic.integrations.torch_checkpoint import MemoryReader, MemoryWriter

dist.init_process_group("gloo")
network = make_network()
fully_shard(network, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)

def state_of(step):
    model, optim = get_state_dict(network, optimizer)
    random, own = memory.random_state(), torch.ones(2) * RANK
    return {"model": model, "optimizer": optim, "step": step, "random": random, "own": own}

reader = MemoryReader()
done = 0
if reader.step is not None:
    state = state_of(0)
    dcp.load(state, storage_reader=reader)
    set_state_dict(network, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    memory.set_random_state(state["random"])
    done = state["step"]
    assert done == reader.step and state["own"].tolist() == [RANK, RANK]
begin(done)
for step in range(done + 1, STEPS + 1):
    optimizer.zero_grad()
    network(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    step_is_done(step)
    dcp.save(state_of(step), storage_writer=MemoryWriter(step))
end(network)
dist.destroy_process_group()
"""

ACCELERATE = """
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset
from hpc_elastic.integrations.accelerate import AccelerateStates

accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
set_seed(3)
network = make_network()
optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
data = TensorDataset(torch.randn(56, 8, generator=torch.Generator().manual_seed(5)))
loader = DataLoader(data, batch_size=4, shuffle=True)
network, optimizer, loader, schedule = accelerator.prepare(network, optimizer, loader, schedule)
states = AccelerateStates(accelerator, replicated=REPLICATED)
step = states.load() or 0
begin(step)
epoch, done = divmod(step, len(loader))
while step < STEPS:
    loader.set_epoch(epoch)
    for (batch,) in states.batches(loader, done):
        if step < STEPS:
            optimizer.zero_grad()
            accelerator.backward(network(batch).square().mean())
            optimizer.step()
            schedule.step()
            step += 1
            step_is_done(step)
            states.save(step)
    epoch, done = epoch + 1, 0
end(accelerator.unwrap_model(network))
network, optimizer, loader, schedule = accelerator.free_memory(network, optimizer, loader, schedule)
accelerator.end_training()
"""

SHARDED = ("torch", "replicated")  # each rank has a part of its own
SCRIPTS = {"lightning": LIGHTNING, "transformers": TRANSFORMERS, "torch": TORCH, "accelerate": ACCELERATE}


def run_script(
    door: Door,
    python: Path,
    name: str,
    script: str,
    *,
    dies: bool,
    nodes: int = 2,
    replicated: bool = True,
    dies_at: int = DIES_AT,
    workers: int = 2,
) -> Run:
    start = START.format(steps=STEPS, dies_at=dies_at, dies=dies, replicated=replicated)
    door.write(f"{name}.py", start + script)
    door.write(
        "job.yaml",
        f"name: {name}\nsite: local\nnodes: {nodes}\nworkers_per_node: {workers // nodes}\npython: {python}\n"
        f"entrypoint: {{script: {name}.py}}\nenv: {{GLOO_SOCKET_IFNAME: lo, OMP_NUM_THREADS: 1, "
        f"TMPDIR: {json.dumps(str(temporary(door)))}}}\n",
    )
    run = door.submit("job.yaml")
    result = run.wait_until_over(within_s=240)
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", 1 + dies), run.story()
    return run


def temporary(door: Door) -> Path:
    folder = door.folder / "temporary"
    folder.mkdir(exist_ok=True)
    return folder


def begins(run: Run, attempt: int) -> list[int]:
    """At which step each rank of an attempt began."""
    return [int(re.findall(r"^begins at (\d+)$", run.stdout(attempt, rank), re.M)[0]) for rank in (0, 1)]


def weights(run: Run, attempt: int) -> list[str]:
    return [re.findall(r"^ends with (.*)$", run.stdout(attempt, rank), re.M)[0] for rank in (0, 1)]


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
@pytest.mark.parametrize(
    ("library", "kept"),
    [(library, kept) for library in SCRIPTS for kept in ("replicated", "own") if (library, kept) != SHARDED],
)
def test_a_librarys_training_goes_on_at_the_last_step_if_a_rank_is_killed(
    door: Door, python: Path, library: str, kept: str
) -> None:
    nodes, replicated = (2, True) if kept == "replicated" else (1, False)
    script = SCRIPTS[library]
    undisturbed = run_script(door, python, "undisturbed", script, dies=False, nodes=nodes, replicated=replicated)
    killed = run_script(door, python, "killed", script, dies=True, nodes=nodes, replicated=replicated)
    assert begins(undisturbed, 1) == begins(killed, 1) == [0, 0]
    # Rank 0 may have saved the step whose gradients rank 1 died with; the step before is in the memory of both.
    assert begins(killed, 2) == [DIES_AT - 1] * 2, killed.story()
    assert weights(killed, 2) == weights(undisturbed, 1)
    assert "hpc-elastic: memory:" not in killed.story()
    assert list(temporary(door).glob("hpc-elastic-*")) == []
    killed.assert_nothing_left()


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_a_training_goes_on_exactly_between_two_epochs(door: Door, python: Path, library: str) -> None:
    script = SCRIPTS[library]
    undisturbed = run_script(door, python, "undisturbed", script, dies=False, nodes=1, replicated=False)
    killed = run_script(door, python, "killed", script, dies=True, dies_at=8, nodes=1, replicated=False)
    assert begins(killed, 2) == [7, 7], killed.story()
    assert weights(killed, 2) == weights(undisturbed, 1)


LIGHTNING_ON_A_FULL_DISK = """
import os
import lightning
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.plugins import TorchCheckpointIO
from hpc_elastic.integrations.lightning import LightningCallback

class Disk(TorchCheckpointIO):
    def save_checkpoint(self, checkpoint, path, **options):
        if os.environ["HPC_ELASTIC_ATTEMPT"] == "1" and checkpoint["global_step"] == 8:
            raise OSError("No space left on device")
        super().save_checkpoint(checkpoint, path, **options)

elastic = LightningCallback(keep_every=1)
trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=2, limit_train_batches=4, limit_val_batches=2, plugins=[Disk()], logger=False,
    callbacks=[ModelCheckpoint("saved", **OPTIONS), elastic], enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(BoringModel(), ckpt_path=elastic.resume_from())
print("saved", os.listdir("saved"), flush=True)
"""
TRAINER_ON_A_FULL_DISK = (
    A_TRAINER
    + """
import os

class Disk(Trainer):
    def _save(self, *arguments, **options):
        if os.environ["HPC_ELASTIC_ATTEMPT"] == "1" and self.state.global_step == 8:
            raise OSError("No space left on device")
        super()._save(*arguments, **options)

data = [{"x": torch.ones(2), "labels": torch.ones(1)} for _ in range(32)]
arguments = TrainingArguments(
    output_dir="saved", use_cpu=True, num_train_epochs=2, report_to=[], disable_tqdm=True, **OPTIONS
)
elastic = TransformersCallback(keep_every=1)
Disk(Model(), arguments, train_dataset=data, callbacks=[elastic]).train(resume_from_checkpoint=elastic.resume_from())
print("saved", os.listdir("saved"), flush=True)
"""
)


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
@pytest.mark.parametrize(
    ("script", "options", "last"),
    [
        (LIGHTNING_ON_A_FULL_DISK, {}, "epoch=1-step=8.ckpt"),
        (LIGHTNING_ON_A_FULL_DISK, {"every_n_train_steps": 4}, "epoch=1-step=8.ckpt"),
        (TRAINER_ON_A_FULL_DISK, {"save_strategy": "epoch"}, "checkpoint-8"),
        (TRAINER_ON_A_FULL_DISK, {"save_strategy": "steps", "save_steps": 4}, "checkpoint-8"),
    ],
    ids=["lightning-epochs", "lightning-steps", "transformers-epochs", "transformers-steps"],
)
def test_the_last_checkpoint_is_written_after_a_restart_if_it_has_failed(
    door: Door, python: Path, script: str, options: dict[str, object], last: str
) -> None:
    run = run_script(
        door, python, "full", f"OPTIONS = {options!r}\n{script}", dies=True, dies_at=STEPS + 1, nodes=1, workers=1
    )
    assert last in run.stdout(2, 0), run.story()


PAIR = (
    TORCH_START
    + """
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

dist.init_process_group("gloo", init_method="file://" + os.path.abspath(os.environ["MEET"]), rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
whole = torch.arange(6.0).reshape(3, 2)

def tensor(placement):
    given = whole if isinstance(placement, Replicate) else whole.chunk(2)[rank]
    return DTensor.from_local(given.clone(), mesh, [placement], shape=whole.shape, stride=whole.stride())
"""
)
SAVE = PAIR + "dcp.save({'w': tensor(Shard(0)), 'own': torch.ones(2) * rank}, storage_writer=MemoryWriter(5))\n"


def run_pair(node: Node, python: Path, name: str, source: str) -> list[Outcome]:
    script = str(node.runner.write(f"{name}.py", source))
    started = [
        node.start(
            rank,
            node.command(rank, "--script", script, python=(str(python),)),
            MEET=str(Path(script).with_suffix(".meet")),
        )
        for rank in (0, 1)
    ]
    return [outcome_of(process) for process in started]


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
def test_a_load_that_needs_another_ranks_part_is_refused_on_all_ranks(node: Node, python: Path) -> None:
    run_pair(node, python, "save", SAVE)
    assert node.states.verify() == held((1, 5))
    node.begin(2, StateVersion(attempt=1, step=5))
    load = "attempt(dcp.load, {'w': tensor(Replicate())}, storage_reader=MemoryReader())"
    refused = run_pair(node, python, "load", PAIR + load)
    for outcome in refused:
        assert "of the 6 numbers that this rank needs in its memory" in outcome.stdout, refused
        assert "expected a state that is sharded as it was saved" in outcome.stdout
