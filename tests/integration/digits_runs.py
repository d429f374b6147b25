"""The digits example on the real Slurm, held in the middle of its training until a test has done its damage.

Rank 0 waits before step 25 and the others wait for it in their collective, as long as a test wants. The
last checkpoint is that of step 20 then, so every later attempt goes on at step 21 and is held again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.conftest import DIGITS, Door, Run
from tests.integration.slurm_jobs import assert_over, environment_of, events
from tests.slurm_sandbox.cluster import Cluster, wait_until

LAST_STEP = 44  # two epochs of 22
NODES = ("node1", "node2", "node3", "node4")
HELD_AT, CHECKPOINT, CHECKPOINT_EVERY = 25, 20, 5
LOOK_EVERY_S = 0.002
JOB = """\
name: digits
site: generic-slurm
nodes: {nodes}
workers_per_node: 1
time: 10m
resources: {{cpus_per_worker: 1}}
entrypoint:
  script: {script}
  args: [--epochs, 2, --accuracy, "0.5", --checkpoint, {folder}/checkpoint.pt, --checkpoint-every, {every},
         --hold-at-step, {held}, --hold-until, {folder}/go, --record, {folder}/record]
env: {{OMP_NUM_THREADS: 1}}
elastic: {{lease: 3s, rejoin: {rejoin}, join_timeout: 60s}}
"""


@dataclass(frozen=True)
class Training:
    """One run of it."""

    run: Run
    folder: Path

    @classmethod
    def submit(
        cls, door: Door, *, nodes: str = "{min: 2, max: 4}", rejoin: str = "at_restart", more: str = ""
    ) -> Training:
        """Hands it to Slurm."""
        cls.write_job(door, nodes=nodes, rejoin=rejoin, more=more)
        return cls(run=door.submit("job.yaml"), folder=door.folder)

    @classmethod
    def start(cls, door: Door, *, ranks: int = 4, **options: str) -> Training:
        """Hands it to Slurm, and waits until it is held for the first time."""
        training = cls.submit(door, **options)
        training.wait_until_held(1, ranks)
        return training

    @staticmethod
    def write_job(door: Door, *, nodes: str, rejoin: str = "at_restart", more: str = "") -> None:
        """Writes the job file."""
        script, folder = DIGITS / "train.py", door.folder
        text = JOB.format(
            nodes=nodes, rejoin=rejoin, script=script, folder=folder, every=CHECKPOINT_EVERY, held=HELD_AT
        )
        door.write("job.yaml", f"{text}{more}\n")

    def records(self, attempt: int) -> list[dict[str, Any]]:
        """What the ranks of an attempt wrote down so far, by rank."""
        paths = sorted((self.folder / "record").glob(f"restart{attempt - 1}-rank*.json"))
        return [json.loads(path.read_text()) for path in paths]

    def wait_until_held(self, attempt: int, ranks: int, *, within_s: float = 90) -> None:
        """Waits until each rank of an attempt trains, up to where it is held."""

        def is_held() -> bool:
            written = self.records(attempt)
            arrived = [r["last_step"] == CHECKPOINT if attempt == 1 else r["last_step"] is None for r in written]
            return len(written) == ranks and all(arrived)

        what = f"{ranks} ranks of attempt {attempt} train"
        wait_until(is_held, what, within_s=within_s, otherwise=self.story)
        self.run.wait_until_started(attempt)

    def go(self) -> None:
        """Lets it train to its end."""
        (self.folder / "go").touch()

    def story(self) -> str:
        """Everything about it, for the message of a failed test."""
        told = [f"{event['node']} {event['name']}: {event['message']}" for event in events(self.run)]
        return "\n".join([self.run.story(), *told[-60:]])

    def finish(self, *ranks: int | None) -> Any:
        """Lets it train to its end, and checks that it did: with so many ranks in its attempts, one after the other.

        None is for an attempt that may have been stopped before its ranks had written anything.

        Returns:
            The result.
        """
        self.go()
        result = assert_over(self.run, "SUCCEEDED", 0, killed=NODES)
        assert self.run.attempts() == list(range(1, len(ranks) + 1)), self.story()
        assert result["attempts"] == len(ranks)
        for attempt, size in enumerate(ranks, start=1):
            if size is None:
                continue
            written = self.records(attempt)
            assert [record["rank"] for record in written] == list(range(size)), f"attempt {attempt}\n{self.story()}"
            assert {record["world_size"] for record in written} == {size}
            assert {record["restart_count"] for record in written} == {attempt - 1}
            assert {record["first_step"] for record in written} == {1 if attempt == 1 else CHECKPOINT + 1}
        last = self.records(len(ranks))
        assert {record["last_step"] for record in last} == {LAST_STEP}, self.story()
        assert len({record["parameter_hash"] for record in last}) == 1
        assert "accuracy on held-out digits" in self.run.stdout(len(ranks), 0)
        return result

    def assert_completed(self, slurm: Cluster, *, within_s: float = 60) -> None:
        """Slurm says of the job that it succeeded, too."""
        job = slurm.wait_for_job(self.run.job_id, "COMPLETED", within_s=within_s)
        assert job["ExitCode"] == "0:0", job

    def times_since(self, fault: float, attempt: int) -> str:
        """When the attempt was claimed, and when its last rank trained, in seconds after a fault; by file times."""
        claimed = Path(self.run.layout.claim(attempt)).stat().st_mtime
        trains = max(path.stat().st_mtime for path in (self.folder / "record").glob(f"restart{attempt - 1}-rank*.json"))
        return f"claimed after {claimed - fault:.2f} s, all train after {trains - fault:.2f} s"

    def nodes(self, attempt: int) -> list[str]:
        """The world of an attempt, by rank."""
        return [rank["node"] for rank in self.run.read(self.run.layout.world(attempt))["ranks"]]

    def event_names(self) -> set[str]:
        return {event["name"] for event in events(self.run)}


def workers_on(run: Run, *nodes: str) -> list[int]:
    """The processes of workers on these nodes, by their environment."""
    return [pid for pid in run.processes() if environment_of(pid).get("HPC_ELASTIC_NODE") in nodes]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until_dead(pids: Sequence[int], *, within_s: float) -> float:
    """Polls until none of these processes runs; returns how many seconds that took.

    On a busy machine the test itself waits for its turn, and may find that they run in its last look before: of the
    time between two looks it counts what the looks are meant to be apart, and some more, against the bound.
    """
    start = last = time.monotonic()
    spent_s = 0.0
    while alive := [pid for pid in pids if is_alive(pid)]:
        assert spent_s < within_s, f"not dead within {within_s:g} s: {alive}"
        time.sleep(LOOK_EVERY_S)  # a test that never sleeps takes the processor from those that are to end them
        now = time.monotonic()
        spent_s += min(now - last, 10 * LOOK_EVERY_S)
        last = now
    return time.monotonic() - start
