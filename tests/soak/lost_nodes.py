"""`python -m tests.soak.lost_nodes --losses 6`: agents die at random moments, and spares go on.

Two nodes of two ranks each, whose states are copied between them, and a spare for each loss. Each attempt must begin
at the same step on all ranks: the last one that all had saved, or one of the two before. In the end the weights of
every rank must be those of a training that nobody has disturbed, bit by bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.play import prepare_door
from tests.integration.conftest import Door, Run
from tests.integration.savers import begun, finish, saved_in, wait_until_saved
from tests.soak import saver
from tests.soak.campaign import kill_everything

NODES, WORKERS = 2, 2
RANKS = range(NODES * WORKERS)
LONGEST_S = 3.0  # of an attempt, from its first steps to the loss
_JOB = """
name: {name}
site: local
nodes: {nodes}
spares: {spares}
workers_per_node: {workers}
time: 10h
entrypoint: {{script: {script}, args: {arguments}}}
env: {{OMP_NUM_THREADS: 1}}
restart: {{max_restarts: 0, max_node_losses: 1000}}
signals: {{grace: 3s, restart_grace: 3s}}
state: {{replicas: 1}}
"""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.lost_nodes", description=__doc__)
    parser.add_argument("--losses", type=int, default=6, help="how many nodes are lost")
    parser.add_argument("--seed", type=int, default=0, help="which nodes, and when")
    parser.add_argument("--replicated", action="store_true", help="all ranks have the same state")
    parser.add_argument("--step-ms", type=int, default=300, help="how long a step takes, beside its work")
    arguments = parser.parse_args(words)
    folder = Path(tempfile.mkdtemp(prefix="lost-nodes-"))
    options = ["--step-ms", str(arguments.step_ms), *(["--replicated"] if arguments.replicated else [])]
    wrong = lose_nodes(prepare_door(folder), arguments.losses, arguments.seed, options)
    for line in wrong:
        print(line)
    print(f"see {folder}" if wrong else f"{arguments.losses} nodes were lost, and no more than two steps with each")
    if not wrong:
        shutil.rmtree(folder)
    return 1 if wrong else 0


def lose_nodes(door: Door, losses: int, seed: int, options: Sequence[str]) -> list[str]:
    """Train once with losses and once without, and return what differs from the promise."""
    dice = random.Random(seed)
    run, folder = _train(door, "lost", options, spares=losses)
    wrong = []
    try:
        for attempt in range(1, losses + 1):
            wait_until_saved(run, folder, attempt, len(RANKS), more=3)
            time.sleep(dice.uniform(0, LONGEST_S))
            node = dice.choice(run.read(run.layout.world(attempt))["nodes"])["node"]
            os.kill(run.agent_pid(node), signal.SIGKILL)
            wait_until_saved(run, folder, attempt + 1, len(RANKS), more=1)
            last, firsts = min(saved_in(folder, rank, attempt) for rank in RANKS), begun(folder, attempt + 1)
            print(f"attempt {attempt}: {node} is lost at step {last}, the next one begins at {set(firsts.values())}")
            if len(set(firsts.values())) != 1 or not last - 2 <= next(iter(firsts.values())) <= last + 1:
                wrong.append(f"attempt {attempt + 1} begins at {firsts}, and all had saved step {last}")
        finish(run, folder, len(RANKS))
        result = run.wait_until_over(within_s=300)
    finally:
        kill_everything(run)
    wrong += [] if (result["state"], result["attempts"]) == ("SUCCEEDED", losses + 1) else [f"{result}"]
    undisturbed, reference = _train(door, "undisturbed", options[2:], spares=0)
    (reference / "end").write_text((folder / "end").read_text())
    try:
        assert undisturbed.wait_until_over(within_s=900)["state"] == "SUCCEEDED", undisturbed.story()
    finally:
        kill_everything(undisturbed)
    for rank in RANKS:
        if (folder / f"weights.{rank}").read_text() != (reference / f"weights.{rank}").read_text():
            wrong.append(f"rank {rank} has other weights than in a training that nobody has disturbed")
    return wrong


def _train(door: Door, name: str, options: Sequence[str], *, spares: int) -> tuple[Run, Path]:
    folder = door.folder / name
    folder.mkdir()
    text = _JOB.format(
        name=name,
        nodes=NODES,
        spares=spares,
        workers=WORKERS,
        script=json.dumps(saver.__file__),
        arguments=json.dumps([str(folder), *options]),
    )
    door.write(f"{name}.yaml", text)
    return door.submit(f"{name}.yaml"), folder


if __name__ == "__main__":
    sys.exit(main())
