import os
from pathlib import Path

import torch

FOLDER = Path(os.environ["HPC_ELASTIC_RUN_DIR"]) / "checkpoints"
EVERY, STEPS = 20, 100


def path_of(step: int) -> Path:
    return FOLDER / f"step-{step:03}.pt"


def saved() -> list[int]:
    """The steps that there is a checkpoint of.

    The folder is listed: on NFS a name that was asked for too early stays absent for up to a minute.
    """
    return [int(path.stem.removeprefix("step-")) for path in FOLDER.glob("step-*.pt")]


def latest() -> int:
    """The last step that there is a checkpoint of, 0 if there is none."""
    return max(saved(), default=0)


def save(step: int, model: torch.nn.Module) -> None:
    """Writes a checkpoint that is there whole or not at all."""
    FOLDER.mkdir(exist_ok=True)
    unfinished = path_of(step).with_suffix(".tmp")
    torch.save(model.state_dict(), unfinished)
    os.replace(unfinished, path_of(step))
