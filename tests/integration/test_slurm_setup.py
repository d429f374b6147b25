"""What is wrong before a worker starts, on the real Slurm: said at once, in one line, with its exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpc_elastic.shipped import shipped_directory
from tests.integration.conftest import Door, Run
from tests.integration.slurm_jobs import agent_outputs, script_output, write_job
from tests.slurm_sandbox.cluster import Cluster
from tests.tiers import variants

pytestmark = pytest.mark.slurm

FINE = 'import os\nprint(os.environ["RANK"], os.environ["WORLD_SIZE"], flush=True)\n'


def submit(door: Door, exit_code: int, script: str = FINE, **options: str) -> Run:
    """Submits a job and waits for it; the agents have ten minutes for what they must not wait for."""
    write_job(door, script, **options)
    run = door.submit("job.yaml", wait=True, exit_code=exit_code)
    run.assert_nothing_left()
    run.assert_records_valid()
    assert "Traceback" not in agent_outputs(run)
    return run


def write_template(door: Door, old: str, new: str) -> str:
    """A template of the user's own in which something of the shipped one is replaced."""
    text = Path(shipped_directory("templates"), "slurm", "job.sh.j2").read_text()
    assert text.count(old) == 1
    door.write("mine.sh.j2", text.replace(old, new))
    return "template: mine.sh.j2"


def test_a_template_that_starts_two_tasks_a_node_is_refused_by_each_agent(slurm_door: Door, slurm: Cluster) -> None:
    old = '--ntasks="$hpc_elastic_nodes" --ntasks-per-node=1'
    more = write_template(slurm_door, old, '--ntasks="$((2 * hpc_elastic_nodes))" --ntasks-per-node=2')
    run = submit(slurm_door, 3, nodes="2", workers="1", more=more + "\nsbatch: {exclusive: true}")
    assert agent_outputs(run).count("the step has 4 tasks on 2 nodes (2(x2) a node), expected one a node") == 4
    assert slurm.wait_for_job(run.job_id, "FAILED")["ExitCode"] == "3:0"


def test_a_template_without_srun_is_refused_by_the_agent(slurm_door: Door, slurm: Cluster) -> None:
    more = write_template(slurm_door, 'srun --nodes="$hpc_elastic_nodes"', 'true || : --nodes="$hpc_elastic_nodes"')
    text = (slurm_door.folder / "mine.sh.j2").read_text()
    start, end = text.index("true || :"), text.index("hpc_elastic_step=$!")
    slurm_door.write("mine.sh.j2", f'{text[:start]}"$hpc_elastic_python" {{{{ agent }}}} &\n{text[end:]}')
    run = submit(slurm_door, 3, nodes="1", workers="1", more=more)
    assert "the agent was not started by srun" in script_output(run)
    assert slurm.wait_for_job(run.job_id, "FAILED")["ExitCode"] == "3:0"


def test_a_failing_setup_line_is_named_and_status_makes_the_result(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, FINE, more="setup: [echo prepared, 'cd /no/such/folder', echo never]")
    run = slurm_door.submit("job.yaml")
    assert slurm.wait_for_job(run.job_id, "FAILED")["ExitCode"] == "3:0"
    assert "setup line failed (status 1): cd /no/such/folder" in script_output(run)
    assert "never" not in script_output(run).splitlines()
    assert not run.is_over()
    slurm_door.run("status", run.job_id, exit_code=None)
    result = run.result()
    assert (result["state"], result["reason"], result["exit_code"]) == ("FAILED", "setup_failed", 3)
    assert "cd /no/such/folder" in result["cause"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        pytest.param("env: {DATA: '${NO_SUCH_NAME}/x'}", ["env.DATA", "NO_SUCH_NAME"], id="env"),
        *variants(
            ("workdir: /no/such/workdir", ["no such workdir: /no/such/workdir"]),
            ("workdir: '${NO_SUCH_NAME}'", ["workdir", "NO_SUCH_NAME"]),
            of="test_what_no_node_has_ends_the_run_at_once",
            ids=["workdir", "workdir-reference"],
        ),
    ],
)
def test_what_no_node_has_ends_the_run_at_once(slurm_door: Door, slurm: Cluster, more: str, words: list[str]) -> None:
    run = submit(slurm_door, 3, more=more)
    result = run.result()
    assert (result["state"], result["reason"], result["attempts"]) == ("FAILED", "setup_failed", 0)
    assert all(word in result["cause"] for word in ["node", *words]), result["cause"]
    assert slurm.wait_for_job(run.job_id, "FAILED")["ExitCode"] == "3:0"


@pytest.mark.variant(of="test_a_script_that_is_not_there_is_named")
def test_a_missing_script_ends_the_run_at_once(slurm_door: Door) -> None:
    write_job(slurm_door)
    (slurm_door.folder / "train.py").unlink()
    run = slurm_door.submit("job.yaml", wait=True, exit_code=3)
    assert "train.py is not a file on this node" in run.result()["cause"]
    run.assert_nothing_left()


# A python that ends the agent of node4 before it is one.
SICK = """\
#!/bin/bash
[ -z "${SLURM_STEP_ID-}" ] || [ "$SLURMD_NODENAME" != node4 ] || exit 1
"""


def sick(door: Door) -> str:
    """The lines of a job whose agent on node4 never starts."""
    door.write("sick", f'{SICK}exec {sys.executable} "$@"\n').chmod(0o755)
    return f"python: {door.folder / 'sick'}\nelastic: {{join_timeout: 1h}}"


@pytest.mark.mirrored
def test_a_run_goes_on_without_an_agent_that_never_starts_if_enough_are_there(slurm_door: Door) -> None:
    run = submit(slurm_door, 0, nodes="{min: 2, max: 4}", workers="1", more=sick(slurm_door))
    result = run.result()
    assert (result["state"], result["nodes"]) == ("SUCCEEDED", ["node1", "node2", "node3"])
    assert [run.stdout(1, rank) for rank in range(3)] == [f"{rank} 3\n" for rank in range(3)]


@pytest.mark.variant(of="test_a_node_that_never_starts_and_one_with_another_secret")
def test_a_run_ends_with_the_names_of_the_nodes_that_are_missing(slurm_door: Door, slurm: Cluster) -> None:
    run = submit(slurm_door, 6, more=f"{sick(slurm_door)}\nrequeue: {{max: 0}}")
    result = run.result()
    assert (result["state"], result["reason"]) == ("FAILED", "nodes_missing")
    assert "node4" in result["cause"]
    assert "node3" not in result["cause"]
    assert result["cause"] in script_output(run)
    assert slurm.wait_for_job(run.job_id, "FAILED")["ExitCode"] == "6:0"


def test_a_run_takes_as_many_nodes_of_its_range_as_are_free(slurm_door: Door, slurm: Cluster) -> None:
    run = submit(slurm_door, 0, nodes="{min: 2, max: 4}", workers="1")
    assert run.result()["nodes"] == ["node1", "node2", "node3", "node4"]
    busy = slurm.submit("--nodelist=node2", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    slurm.wait_for_job(busy, "RUNNING")
    run = submit(slurm_door, 0, nodes="{min: 2, max: 4}", workers="1")
    slurm.run("scancel", busy)
    assert run.result()["nodes"] == ["node1", "node3", "node4"]
