"""What `local_share` trains: a small transformer of nanoGPT's shape, which keeps every thread that it has busy.

    python training.py RESULT_FOLDER [--steps N] [--accumulate N] [--warm-up N] [--bind]

Each rank writes what its steps took. A step of `--accumulate N` is N passes over a batch, after the last of which the
ranks average their gradients, as nanoGPT does. Alone, without a world around it, it trains without
DistributedDataParallel.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import time
from typing import Any

# nanoGPT's settings for a CPU (its README, "I only have a macbook").
LAYERS, HEADS, WIDTH, BLOCK, BATCH, VOCABULARY = 4, 4, 128, 64, 12, 65


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--bind", action="store_true", help="bind each rank to CPUs of its own")
    arguments = parser.parse_args()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if arguments.bind:
        cpus = sorted(os.sched_getaffinity(0))
        share = max(1, len(cpus) // world_size)
        os.sched_setaffinity(0, cpus[rank * share :][:share])

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(rank)
    model = make_model()
    if world_size > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    begun = time.perf_counter()
    for step in range(arguments.warm_up + arguments.steps):
        if step == arguments.warm_up:
            begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        for left in reversed(range(arguments.accumulate)):
            with model.no_sync() if world_size > 1 and left else contextlib.nullcontext():
                tokens = torch.randint(VOCABULARY, (BATCH, BLOCK + 1))
                logits = model(tokens[:, :-1])
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                (loss / arguments.accumulate).backward()
        optimizer.step()
    said = {"seconds": time.perf_counter() - begun, "threads": torch.get_num_threads(), "loss": loss.item()}
    name = f"{rank}.json" if "RANK" in os.environ else f"alone-{os.getpid()}.json"
    (arguments.folder / name).write_text(json.dumps(said))
    if world_size > 1:
        del model, optimizer  # torch 2.13 may wait for ever where DistributedDataParallel ends after its group
        dist.destroy_process_group()


def make_model() -> Any:
    """Embeddings, causal self-attention and a head; torch is imported only when the CPUs are chosen."""
    import torch

    class Model(torch.nn.Module):  # type: ignore[misc]  # torch's types are not looked at
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(VOCABULARY, WIDTH)
            self.places = torch.nn.Embedding(BLOCK, WIDTH)
            layer = torch.nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
            self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
            self.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(BLOCK))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            hidden = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
            hidden = self.layers(hidden, mask=self.mask, is_causal=True)
            return self.head(hidden)

    return Model()


if __name__ == "__main__":
    main()
