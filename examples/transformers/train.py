"""A tiny GPT-2 learns to count in steps, with transformers' Trainer, from checkpoint to checkpoint.

The model is made on the spot: nothing is downloaded. It knows nothing of hpc_elastic:
`torchrun --nproc-per-node 2 train.py` runs it as well.
"""

from __future__ import annotations

import argparse
import os

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

NUMBERS, STEPS, LENGTH = 32, 4, 12


class Counting(Dataset[dict[str, Tensor]]):
    """Sequences such as 30 1 4 7 10: a first number and a step, modulo NUMBERS."""

    def __len__(self) -> int:
        return NUMBERS * STEPS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        first, step = divmod(index, STEPS)
        numbers = (first + (step + 1) * torch.arange(LENGTH)) % NUMBERS
        return {"input_ids": numbers, "labels": numbers}


def find_last_checkpoint(folder: str) -> str | None:
    """The last complete checkpoint; every rank gets what rank 0 sees.

    A rank that is killed while it saves leaves a part of one. `trainer_state.json` is written last.
    """
    names = os.listdir(folder) if os.path.isdir(folder) else []
    steps = [
        int(name.removeprefix("checkpoint-"))
        for name in names
        if name.startswith("checkpoint-") and os.path.exists(os.path.join(folder, name, "trainer_state.json"))
    ]
    return broadcast_object_list([os.path.join(folder, f"checkpoint-{max(steps)}") if steps else None])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-steps", type=int, default=25)
    run_directory = os.environ.get("HPC_ELASTIC_RUN_DIR", ".")
    parser.add_argument("--checkpoints", default=os.path.join(run_directory, "checkpoints"), metavar="DIR")
    arguments = parser.parse_args()

    training = TrainingArguments(
        output_dir=arguments.checkpoints,
        max_steps=arguments.steps,
        save_steps=arguments.save_steps,
        save_total_limit=3,
        # Of all ranks together, because of split_batches: a multiple of every world size that may come.
        per_device_train_batch_size=48,
        accelerator_config={"split_batches": True},
        learning_rate=3e-3,
        logging_steps=25,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),  # else every rank of a machine without GPUs would train for itself
    )
    checkpoint = find_last_checkpoint(arguments.checkpoints)
    if training.process_index == 0:
        print(
            f"{'resumed after ' + checkpoint if checkpoint else 'started'} on {training.world_size} ranks", flush=True
        )
    set_seed(training.seed)
    size = {"n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=NUMBERS, bos_token_id=None, eos_token_id=None, **size))
    Trainer(model=model, args=training, train_dataset=Counting()).train(resume_from_checkpoint=checkpoint)


if __name__ == "__main__":
    main()
