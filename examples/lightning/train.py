"""A small network learns to tell two spirals apart, with PyTorch Lightning, from checkpoint to checkpoint.

It knows nothing of hpc_elastic: `torchrun --nproc-per-node 2 train.py` runs it as well.
"""

from __future__ import annotations

import argparse
import math
import os
import zipfile
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Spirals(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        points, spirals = batch
        answers = self.network(points)
        accuracy = (answers.argmax(dim=1) == spirals).float().mean()
        self.log("accuracy", accuracy, on_step=False, on_epoch=True, sync_dist=True)
        return cross_entropy(answers, spirals)

    def on_train_epoch_end(self) -> None:
        if self.trainer.is_global_zero:
            accuracy = float(self.trainer.callback_metrics["accuracy"])
            print(f"epoch {self.current_epoch + 1}/{self.trainer.max_epochs}  accuracy {accuracy:.1%}", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def make_spirals(points: int = 1024) -> TensorDataset:
    """The same points on every rank: the sampler that Lightning adds gives each rank its share."""
    random = torch.Generator().manual_seed(0)
    spirals = torch.arange(points) % 2
    distance = torch.rand(points, generator=random).sqrt()
    angle = 2 * math.pi * distance + math.pi * spirals
    places = torch.stack([distance * angle.cos(), distance * angle.sin()], dim=1)
    return TensorDataset(places + 0.01 * torch.randn(points, 2, generator=random), spirals)


def find_last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that is whole, None if there is none.

    Lightning writes a checkpoint to TMPDIR and moves it to its place. From one file system to another that is a copy,
    which a crash may cut short. What is whole ends as a zip archive does.
    """
    whole = [path for path in folder.glob("*.ckpt") if zipfile.is_zipfile(path)]
    return max(whole, key=lambda path: path.stat().st_mtime, default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    run_directory = os.environ.get("HPC_ELASTIC_RUN_DIR", ".")
    parser.add_argument("--checkpoints", type=Path, default=Path(run_directory, "checkpoints"), metavar="DIR")
    arguments = parser.parse_args()

    L.seed_everything(0)
    trainer = L.Trainer(
        # The world may be smaller after a node was lost. Lightning wants to be told, and checks it.
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp",
        max_epochs=arguments.epochs,
        callbacks=[ModelCheckpoint(dirpath=arguments.checkpoints)],  # after every epoch; then the one before is deleted
        logger=False,
        enable_progress_bar=False,
    )
    loader = DataLoader(make_spirals(), batch_size=32, shuffle=True)
    trainer.fit(Spirals(), loader, ckpt_path=find_last_checkpoint(arguments.checkpoints))


if __name__ == "__main__":
    main()
