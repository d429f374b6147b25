"""Runs of the examples of Lightning, accelerate and transformers as they lie there, and a crash in the middle."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from tests.integration.conftest import REPOSITORY, Door, Run
from tests.slurm_sandbox.cluster import wait_until

# The beginning of a script that trains a layer with transformers' Trainer.
A_TRAINER = """
import torch
from transformers import Trainer, TrainingArguments
from hpc_elastic.integrations.transformers import TransformersCallback

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}
"""


@dataclass(frozen=True)
class Library:
    """One example, and the texts by which its output tells what it does.

    `checkpoint` is the file of each checkpoint that is written last; `torn` a file that is there after a crash while
    one was saved. `resumed` is how it says that it goes on from one, with its number, and `last` that it is done.
    """

    name: str
    arguments: str
    checkpoint: str
    torn: str
    resumed: str
    last: str


LIBRARIES = {
    library.name: library
    for library in (
        Library(
            name="lightning",
            arguments="--epochs, 60",
            checkpoint="epoch=*.ckpt",
            torn="epoch=99-step=9900.ckpt",
            resumed=r"MEMBER: 1/{ranks}\n.*Restored all states from the checkpoint at \S+/epoch=(\d+)-step=\d+\.ckpt",
            last="epoch 60/60",
        ),
        Library(
            name="accelerate",
            arguments="--epochs, 90",
            checkpoint="step_*",
            torn="unfinished/model.safetensors",
            resumed=r"resumed after step (\d+) on {ranks} ranks",
            last="epoch 90/90",
        ),
        Library(
            name="transformers",
            arguments="--steps, 200",
            checkpoint="checkpoint-*/trainer_state.json",
            torn="checkpoint-9999/model.safetensors",
            resumed=r"resumed after \S+/checkpoint-(\d+) on {ranks} ranks",
            last="'train_runtime'",
        ),
    )
}


class Training:
    """One run of an example."""

    def __init__(self, run: Run, library: Library, checkpoints: Path) -> None:
        self.run = run
        self.library = library
        self.checkpoints = checkpoints

    @classmethod
    def start(cls, door: Door, name: str, python: Path, *options: str, checkpoints: str = "checkpoints") -> Training:
        """Submits an example to be run by this Python, with half a checkpoint of an earlier crash in its way."""
        library, folder = LIBRARIES[name], door.folder / checkpoints
        torn = folder / library.torn
        torn.parent.mkdir(parents=True)
        torn.write_bytes(b"PK\3\4 and not much more")
        arguments = f"entrypoint.args=[{library.arguments}, --checkpoints, {folder}]"
        job = REPOSITORY / "examples" / name / "job.yaml"
        run = door.submit(str(job), "--set", f"python={python}", "--set", arguments, *options)
        return cls(run, library, folder)

    def kill_in_the_middle(self, rank: int) -> None:
        """Kills a rank as soon as there is a checkpoint."""
        torn = self.checkpoints / self.library.torn

        def has_saved() -> bool:
            return any(path != torn for path in self.checkpoints.glob(self.library.checkpoint))

        wait_until(has_saved, f"there is a {self.library.checkpoint}", within_s=120, otherwise=self.run.story)
        os.kill(self.run.worker_pid(rank), signal.SIGKILL)

    def resumed_from(self, attempt: int, *, ranks: int) -> int | None:
        """The number of the checkpoint from which an attempt went on with so many ranks, None if it has not."""
        told = re.search(self.library.resumed.format(ranks=ranks), self.said(attempt), re.S)
        return None if told is None else int(told[1])

    def said(self, attempt: int, rank: int = 0) -> str:
        """Return the output and the error output of a rank."""
        layout = self.run.layout
        files = (Path(layout.stdout(attempt, rank)), Path(layout.stderr(attempt, rank)))
        return "".join(file.read_text() for file in files if file.exists())

    def agent_log(self, node: str) -> str:
        return Path(self.run.layout.agent_output(node)).read_text()
