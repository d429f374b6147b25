"""The roles example on this machine: an evaluator that fails starts again while the trainers run on."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.integration.conftest import REPOSITORY, Door
from tests.slurm_sandbox.cluster import wait_until

pytestmark = pytest.mark.local
ROLES = REPOSITORY / "examples" / "roles" / "job.yaml"


@pytest.mark.variant(of="test_a_failure_restarts_what_the_policy_of_its_role_says")
def test_the_evaluators_start_again_alone_and_score_every_checkpoint_once(door: Door) -> None:
    fails = "roles[1].entrypoint.args=[--fail-at-step, 60]"
    run = door.submit(str(ROLES), "--site", "local", "--set", fails, wait=True)
    result = run.result()
    assert (result["state"], result["attempts"], result["restarts"]) == ("SUCCEEDED", 2, 1), run.story()
    assert run.read(run.layout.claim(1))["roles"] == ["trainer", "evaluator"]
    assert run.read(run.layout.claim(2))["roles"] == ["evaluator"]
    assert "step 100: loss" in run.stdout(1, 0)
    assert "step 100: error" in run.stdout(2, 3)
    scores = [line.split(",") for line in (run.path / "checkpoints" / "scores.csv").read_text().splitlines()]
    assert [step for step, _ in scores] == ["20", "40", "60", "80", "100"]
    assert float(scores[-1][1]) < 0.01 * float(scores[0][1])
    run.assert_nothing_left()
    run.assert_records_valid()


WAITS = """
import os, sys, time
if os.environ["ROLE_NAME"] == "reader" and os.environ["LOCAL_RANK"] == "0":
    sys.exit(7)
while not os.path.exists("go"):
    time.sleep(0.05)
"""


def test_a_node_is_unhealthy_while_others_run_on_after_a_failure_that_is_ignored(door: Door) -> None:
    door.write("waits.py", WAITS)
    role = "{{name: {}, nodes: 1, workers_per_node: {}, entrypoint: {{script: waits.py}}, restart: {}}}"
    roles = ", ".join((role.format("trainer", 1, "restart_all"), role.format("reader", 2, "ignore")))
    door.write("job.yaml", f"name: probe\nsite: local\ntime: 10m\nstart: spawn\nroles: [{roles}]\n")
    run = door.submit("job.yaml")
    path = run.layout.node_result(1, "local1")

    def is_unhealthy() -> bool:
        return os.path.exists(path) and bool(run.read(path)["state"] == "UNHEALTHY")

    wait_until(is_unhealthy, "the reader's node is unhealthy", within_s=60, otherwise=run.story)
    record = run.read(path)
    assert (record["ended"], list(record["failures"])) == (None, ["1"])
    door.write("go", "")
    assert run.wait_until_over()["state"] == "SUCCEEDED", run.story()
    assert run.read(path)["state"] == "FAILED"
    run.assert_nothing_left()
    run.assert_records_valid()


REPORTS = """
import os, time
names = ("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "KIND")
print(*(os.environ[name] for name in names), flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""


def test_a_spare_of_another_role_takes_the_place_of_a_lost_node_and_runs_its_program(door: Door) -> None:
    door.write("reports.py", REPORTS)
    trainer = "{name: trainer, nodes: 1, workers_per_node: 2, entrypoint: {script: reports.py}, env: {KIND: train}}"
    command = f"command: {sys.executable}, args: [reports.py]"
    reader = f"{{name: reader, nodes: 1, workers_per_node: 1, entrypoint: {{{command}}}, env: {{KIND: read}}}}"
    elastic = "elastic: {lease: 5s}\nsignals: {restart_grace: 1s}"
    door.write("job.yaml", f"site: local\ntime: 10m\nspares: 1\nstart: auto\n{elastic}\nroles: [{trainer}, {reader}]\n")
    run = door.submit("job.yaml")
    run.wait_until_started()
    os.kill(run.agent_pid("local0"), signal.SIGKILL)
    for rank in range(3):
        run.wait_for_output("\n", attempt=2, rank=rank)
    assert [run.stdout(2, rank) for rank in range(3)] == [
        "trainer 0 2 0 3 2 train\n",
        "trainer 1 2 1 3 2 train\n",
        "reader 0 1 2 3 1 read\n",
    ]
    claim = run.read(run.layout.claim(2))
    assert (claim["head"], claim["members"]) == ("local1", ["local2", "local1"])
    door.write("go", "")
    result = run.wait_until_over()
    assert (result["state"], result["attempts"], result["restarts"]) == ("SUCCEEDED", 2, 0), run.story()
    run.assert_records_valid(killed=("local0",))
