"""Two ranks that train in step, crash, stall, save, and write down when they did what.

    useful_trainer.py STEPS STEP_S SAVE_EVERY

Rank 1 is killed in the first attempt and stops for good in the second one. Both write to `own-RANK.jsonl`.
"""

import json
import os
import pathlib
import signal
import sys
import time

from hpc_elastic.worker import heartbeat

CRASHES_AT, STALLS_AT, LOAD_S = 45, 75, 0.5
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["HPC_ELASTIC_ATTEMPT"])


def tell(**what: object) -> None:
    """Write down what this rank does now."""
    with open(f"own-{RANK}.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"attempt": ATTEMPT, "at": time.time(), **what}) + "\n")


def replace(name: str, step: int) -> None:
    """Write a step into a file, whole."""
    pathlib.Path(f"{name}.new").write_text(str(step))
    os.replace(f"{name}.new", name)


def wait_for_other(step: int) -> None:
    """Wait until the other rank has begun this step too, as a collective would."""
    replace(f"at-{ATTEMPT}-{RANK}", step)
    other = pathlib.Path(f"at-{ATTEMPT}-{1 - RANK}")
    while not other.exists() or int(other.read_text()) < step:
        time.sleep(0.005)


def main() -> None:
    steps, step_s, save_every = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    tell(what="begin")
    saved = pathlib.Path("saved")
    step = int(saved.read_text()) if saved.exists() else 0
    time.sleep(LOAD_S)
    wait_for_other(step)
    tell(what="loaded")
    while step < steps:
        if (RANK, ATTEMPT, step) == (1, 1, CRASHES_AT):
            os.kill(os.getpid(), signal.SIGKILL)
        if (RANK, ATTEMPT, step) == (1, 2, STALLS_AT):
            while True:
                signal.pause()  # the signal that asks for stacks ends one
        wait_for_other(step)
        time.sleep(step_s)
        step += 1
        heartbeat(step)
        tell(what="step", step=step)
        if RANK == 0 and step % save_every == 0:
            replace("saved", step)
    tell(what="done")


if __name__ == "__main__":
    main()
