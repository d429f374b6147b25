"""A training without torch: rank 0 says each step and when it was, and keeps a checkpoint beside this run's folder."""

from __future__ import annotations

import argparse
import json
import os
import time


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--fail-at", type=int, help="rank 1 raises once at this step")
    arguments = parser.parse_args()
    rank, attempt = int(os.environ["RANK"]), int(os.environ["HPC_ELASTIC_ATTEMPT"])
    checkpoint = os.path.join(os.environ["HPC_ELASTIC_RUN_DIR"], "checkpoint")
    first = 0
    if os.path.exists(checkpoint):
        with open(checkpoint) as file:
            first = json.load(file)
    print(f"rank {rank} begins with step {first}", flush=True)
    for step in range(first, arguments.steps):
        time.sleep(1.0)
        if rank == 1 and step == arguments.fail_at and attempt == 1:
            raise RuntimeError(f"asked to fail at step {step}")
        if rank == 0:
            with open(f"{checkpoint}.new", "w") as file:
                json.dump(step + 1, file)
            os.replace(f"{checkpoint}.new", checkpoint)
            print(f"step {step} at {time.time():.3f}", flush=True)
    print(f"rank {rank} is done", flush=True)


if __name__ == "__main__":
    main()
