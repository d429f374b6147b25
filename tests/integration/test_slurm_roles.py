"""Two roles with uneven workers on the four nodes of a real Slurm, and a failure in each under each policy."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.conftest import Door, Run
from tests.integration.slurm_jobs import assert_left_slurm, assert_over, events
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.tiers import variants

SCRIPT = """
import json, os, time

print("waiting", json.dumps(dict(os.environ)), flush=True)
while not os.path.exists("finish"):
    time.sleep(0.05)
"""
JOB = """
name: roles
site: generic-slurm
time: 10m
signals: {{grace: 8s, restart_grace: 2s}}
resources: {{cpus_per_worker: 1}}
env: {{OF: job, DEPTH: 4}}
roles:
  - {{name: trainer, entrypoint: {{script: wait.py}}, nodes: 3, workers_per_node: [2, 1, 1], restart: {trainer}}}
  - {{name: reader, entrypoint: {{script: wait.py}}, workers_per_node: 3, restart: {reader}, env: {{OF: role}}}}
"""
# As torch's _assign_worker_ranks counts: through the nodes, and through the nodes of a role.
COLUMNS = (
    *("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("HPC_ELASTIC_NODE", "OF"),
)
ROWS = (
    "0 0 2 0 trainer 0 4 node1 job",
    "1 1 2 0 trainer 1 4 node1 job",
    "2 0 1 1 trainer 2 4 node2 job",
    "3 0 1 2 trainer 3 4 node3 job",
    "4 0 3 3 reader 0 3 node4 role",
    "5 1 3 3 reader 1 3 node4 role",
    "6 2 3 3 reader 2 3 node4 role",
)
TRAINERS, READERS = frozenset({0, 1, 2, 3}), frozenset({4, 5, 6})
ALL = TRAINERS | READERS


@dataclass(frozen=True)
class Failure:
    """A rank that is killed, and the ranks that start again for it."""

    rank: int
    restarts: frozenset[int]


class Scene:
    """A run with both roles at work."""

    def __init__(self, door: Door, trainer: str, reader: str) -> None:
        door.write("wait.py", SCRIPT)
        door.write("job.yaml", JOB.format(trainer=trainer, reader=reader))
        self.door = door
        self.run: Run = door.submit("job.yaml")
        self.attempt = dict.fromkeys(ALL, 1)
        self.pid: dict[int, int] = {}
        self.look()

    def seen(self, rank: int) -> dict[str, str]:
        """The environment of a rank, as its worker wrote it."""
        line = self.run.stdout(self.attempt[rank], rank).splitlines()[0]
        found: dict[str, str] = json.loads(line.removeprefix("waiting "))
        return found

    def look(self) -> None:
        """Waits for every rank that is expected to run, and checks what it sees."""
        for rank, attempt in self.attempt.items():
            self.run.wait_for_output("}\n", attempt=attempt, rank=rank)
            self.pid[rank] = self.run.worker_pid(rank, attempt)
            seen = self.seen(rank)
            assert " ".join(seen[column] for column in COLUMNS) == ROWS[rank]
            assert (seen["WORLD_SIZE"], seen["GROUP_WORLD_SIZE"], seen["DEPTH"]) == ("7", "4", "4")
            assert seen["HPC_ELASTIC_ATTEMPT"] == str(attempt)
            assert seen["TORCHELASTIC_RESTART_COUNT"] == str(attempt - 1)

    def store(self, rank: int) -> tuple[str, str]:
        """Where a rank meets the others."""
        seen = self.seen(rank)
        return seen["MASTER_ADDR"], seen["MASTER_PORT"]

    def fail(self, failure: Failure) -> None:
        """Kills a rank, and checks who starts again and who runs on."""
        before, following = dict(self.pid), max(self.run.attempts()) + 1
        os.kill(self.pid[failure.rank], signal.SIGKILL)
        if failure.restarts:
            self.attempt |= dict.fromkeys(failure.restarts, following)
        else:
            del self.attempt[failure.rank]
            del self.pid[failure.rank]
            self.wait_for_event("failure.ignored")
        self.look()
        same = {rank for rank in self.pid if self.pid[rank] == before.get(rank)}
        assert same == set(self.attempt) - failure.restarts

    def wait_for_event(self, name: str) -> None:
        """Waits until the run has noted it."""
        wait_until(
            lambda: any(event["name"] == name for event in events(self.run)),
            f"the event {name} is written",
            otherwise=self.run.story,
        )

    def finish(self) -> Any:
        """Lets every worker end, and gives the result."""
        self.door.write("finish", "")
        return assert_over(self.run, "SUCCEEDED", 0)


@pytest.mark.parametrize(
    ("trainer", "reader", "failures"),
    [
        ("restart_all", "restart_role", (Failure(6, READERS), Failure(0, ALL))),
        *variants(
            ("restart_role", "ignore", (Failure(5, frozenset()), Failure(2, TRAINERS))),
            ("ignore", "restart_all", (Failure(3, frozenset()), Failure(4, ALL))),
            of="test_a_failure_restarts_what_the_policy_of_its_role_says",
        ),
    ],
)
def test_a_failure_restarts_what_the_policy_of_its_role_says(
    slurm: Cluster, slurm_door: Door, trainer: str, reader: str, failures: tuple[Failure, ...]
) -> None:
    scene = Scene(slurm_door, trainer, reader)
    run = scene.run
    stores, restarts = [], 0
    for failure in failures:
        stores.append({rank: scene.store(rank) for rank in scene.attempt})
        attempt = scene.attempt[failure.rank]
        scene.fail(failure)
        error = run.read(run.layout.error(attempt, failure.rank))
        assert (error["signal"], error["class"]) == ("SIGKILL", "signal")
        if failure.restarts:
            claim = run.read(run.layout.claim(max(run.attempts())))
            restarts += 1
            assert set(claim["roles"]) == {ROWS[rank].split()[4] for rank in failure.restarts}
            assert claim["spend"]["restarts"] == restarts
    stores.append({rank: scene.store(rank) for rank in scene.attempt})
    assert_stores(stores, failures, is_shared="restart_role" not in (trainer, reader))

    result = scene.finish()
    assert (result["attempts"], result["restarts"], result["failures"]) == (1 + restarts, restarts, {})
    assert_left_slurm(slurm, run, "COMPLETED", "0:0")
    said = (run.path / "agents" / "node1.out").read_text()
    for failure in failures:
        place = f"rank {failure.rank} on {ROWS[failure.rank].split()[7]}"
        assert any(place in line and ("ignored" in line) == (not failure.restarts) for line in said.splitlines())


def assert_stores(stores: list[dict[int, tuple[str, str]]], failures: tuple[Failure, ...], *, is_shared: bool) -> None:
    """One store for those who meet, a new one for those who start again, and the old one for who runs on."""
    for seen in stores:
        of_trainers = {seen[rank] for rank in TRAINERS & set(seen)}
        of_readers = {seen[rank] for rank in READERS & set(seen)}
        assert len(of_trainers) == len(of_readers) == 1
        assert (of_trainers == of_readers) == is_shared
    for before, after, failure in zip(stores, stores[1:], failures, strict=False):
        assert {rank for rank in after if before.get(rank) != after[rank]} == failure.restarts
