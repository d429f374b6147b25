"""A stand-in for training, in plain Python: counts steps, goes on from a checkpoint, and leaves a mark of all it does.

    python trainer.py FOLDER

A mark is one line of FOLDER/marks, appended by one write, which no other rank's can split:

    MONOTONIC_NS ATTEMPT RANK WORLD_SIZE PID NODE KIND STEP

KIND is begin (STEP: the checkpoint it goes on from), work, step, saved, end. Rank 0 does the steps and saves every
`SAVE_EVERY`th of them. All ranks work until there is a file FOLDER/finish and the step after it is saved.
"""

from __future__ import annotations

import os
import sys
import time

SAVE_EVERY = 10
PAUSE_S = 0.01


def main(folder: str) -> None:
    rank = int(os.environ["RANK"])
    who = " ".join(os.environ[name] for name in ("HPC_ELASTIC_ATTEMPT", "RANK", "WORLD_SIZE"))
    where = f"{os.getpid()} {os.environ['HPC_ELASTIC_NODE']}"
    checkpoint = os.path.join(folder, "checkpoint")
    marks = os.open(os.path.join(folder, "marks"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def mark(kind: str, step: int) -> None:
        os.write(marks, f"{time.monotonic_ns()} {who} {where} {kind} {step}\n".encode())

    step, is_done = read(checkpoint)
    mark("begin", step)
    while not is_done:
        time.sleep(PAUSE_S)
        if rank != 0:
            mark("work", 0)
            _, is_done = read(checkpoint)
            continue
        step += 1
        mark("step", step)
        if step % SAVE_EVERY == 0:
            is_done = os.path.exists(os.path.join(folder, "finish"))
            save(checkpoint, step, is_done)
            mark("saved", step)
    mark("end", step)


def read(checkpoint: str) -> tuple[int, bool]:
    """The step that was saved, and whether it was the last one."""
    try:
        with open(checkpoint) as file:
            step, word = file.read().split()
    except FileNotFoundError:
        return 0, False
    return int(step), word == "done"


def save(checkpoint: str, step: int, is_done: bool) -> None:
    temporary = f"{checkpoint}.{os.getpid()}"
    with open(temporary, "w") as file:
        file.write(f"{step} {'done' if is_done else 'more'}\n")
    os.replace(temporary, checkpoint)


if __name__ == "__main__":
    main(sys.argv[1])
