"""Odd surroundings on the real Slurm: names of folders, runs side by side, a controller that is away."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Door, Run
from tests.integration.slurm_jobs import DIES, assert_over, script_output, wait_for_ranks, write_job
from tests.slurm_sandbox.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm

WHO = 'import os\nprint(os.environ["RANK"], os.environ["HPC_ELASTIC_RUN_DIR"], flush=True)\n'


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("two words", id="space", marks=pytest.mark.variant(of="test_a_run_directory_of_any_name")),
        pytest.param("it's", id="quote", marks=pytest.mark.variant(of="test_a_run_directory_of_any_name")),
        pytest.param("50%", id="percent", marks=pytest.mark.variant(of="test_a_run_directory_of_any_name")),
        pytest.param('a "b" %j', id="all"),
    ],
)
def test_a_run_directory_of_any_name(slurm_door: Door, name: str) -> None:
    write_job(slurm_door, WHO, nodes="2")
    path = slurm_door.folder / name
    run = slurm_door.submit("job.yaml", "--run-dir", str(path), wait=True)
    assert run.path == path
    assert_over(run, "SUCCEEDED", 0)
    assert [run.stdout(1, rank) for rank in range(4)] == [f"{rank} {path}\n" for rank in range(4)]
    assert {file.name for file in path.glob("agents/*")} == {"node1.out", "node2.out", "launch_agent"}
    assert str(path) in script_output(run)
    assert not [entry.name for entry in slurm_door.folder.iterdir() if entry.name not in {name, "job.yaml", "train.py"}]
    assert "SUCCEEDED" in slurm_door.run("status", str(path)).stdout


@contextlib.contextmanager
def host_named(slurm: Cluster, node: str, host: str) -> Iterator[None]:
    """Give a node's machine another host name than the node has; its slurmd, which reads that once, is started anew."""
    daemon = [*slurm.layout.installation.slurmd, "-N", node, "-f", slurm.layout.slurm_conf]
    pid_file = os.path.join(slurm.layout.root, f"slurmd.{node}.pid")
    script = f'hostname {host}; pid=`cat {pid_file}`; kill "$pid"; tail --pid="$pid" -f /dev/null; exec setsid "$@"'
    slurm.run_on(node, "sh", "-ec", f"exec </dev/null >/dev/null 2>&1; {script}", "sh", *daemon)
    try:
        yield
    finally:
        slurm.kill(node)
        slurm.boot(node)


@pytest.mark.mirrored
def test_an_agents_output_is_found_by_its_nodes_name_on_a_machine_of_another_name(
    slurm_door: Door, slurm: Cluster
) -> None:
    write_job(slurm_door, WHO, nodes="2", workers="1")
    with host_named(slurm, "node2", "cn2.cluster.example"):
        run = slurm_door.submit("job.yaml", wait=True)
        assert_over(run, "SUCCEEDED", 0)
    told = slurm_door.run("logs", str(run.path), "--node", "node2").stdout
    assert "hpc-elastic node2: " in told
    assert "node1, node2" in slurm_door.run("logs", str(run.path), "--node", "node9", exit_code=2).stderr


@pytest.mark.mirrored
def test_a_first_node_without_the_run_directory_is_the_cause(
    slurm_door: Door, slurm: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write_job(slurm_door, WHO, nodes="1", workers="1")
    with slurm.mounted("node1", tmp_path_factory.mktemp("empty"), slurm_door.folder):
        run = slurm_door.submit("job.yaml", "--set", "sbatch.nodelist=node1", wait=True, exit_code=5)
    result = assert_over(run, "FAILED", 5)
    assert result["reason"] == "run_directory"
    assert "the run directory is not there, or cannot be written" in result["cause"]
    assert "choose with --run-dir" in " ".join(slurm_door.run("explain", str(run.path)).stdout.split())


def start_one(door: Door, name: str) -> Run:
    run = door.submit("job.yaml", "--set", f"name={name}")
    wait_for_ranks(run, 4)
    return run


@pytest.mark.variant(of="test_a_second_start_of_a_run_on_its_nodes_leaves_the_workers_of_the_first_alone")
def test_two_runs_share_nodes_and_stopping_one_leaves_the_other_alone(slurm_door: Door, slurm: Cluster) -> None:
    write_job(
        slurm_door, DIES.replace("signal.pause()", "import time\nwhile not os.path.exists('finish'): time.sleep(0.1)")
    )
    text = (slurm_door.folder / "job.yaml").read_text().replace("workers_per_node: 2", "workers_per_node: 1")
    slurm_door.write("job.yaml", text + "sbatch: {mem: 1000M}\n")
    one, other = start_one(slurm_door, "one"), start_one(slurm_door, "other")
    assert {slurm.job(run.job_id)["JobState"] for run in (one, other)} == {"RUNNING"}
    slurm_door.run("cancel", "one")
    assert_over(one, "CANCELLED", 10)
    assert not other.is_over()
    assert len(other.processes()) >= 4
    third = start_one(slurm_door, "third")
    slurm_door.write("finish", "")
    for run in (other, third):
        result = assert_over(run, "SUCCEEDED", 0)
        assert (result["attempts"], result["restarts"]) == (1, 0)


@pytest.mark.mirrored
def test_submit_says_so_if_no_controller_answers(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, WHO, nodes="1", workers="1")
    run = slurm_door.submit("job.yaml", wait=True)
    runs = sorted((slurm_door.folder / "hpc-elastic-runs").iterdir())
    # Only the commands give up early: daemons that are told to reconfigure while their controller goes or comes lose it
    # for half a minute (22.05).
    text = Path(slurm.layout.slurm_conf).read_text()
    impatient = slurm_door.write("slurm.conf", re.sub(r"^MessageTimeout=.*", "MessageTimeout=2", text, flags=re.M))
    slurm_door.environ["SLURM_CONF"] = str(impatient)
    slurm.end_slurmctld()  # it writes down its jobs, or would give their ids to later ones
    slurm.kill("controller")
    # Nobody is asked about a run that is over.
    assert "SUCCEEDED" in slurm_door.run("status", str(run.path), timeout_s=10).stdout
    assert "SUCCEEDED" in slurm_door.run("list", timeout_s=60).stdout
    done = slurm_door.run("submit", "job.yaml", exit_code=4)
    assert "Slurm" in done.stderr or "slurm" in done.stderr
    assert sorted((slurm_door.folder / "hpc-elastic-runs").iterdir()) == runs
    slurm.boot("controller")
    wait_until(lambda: slurm.run("squeue", check=False).returncode == 0, "the controller is back")
    # One that has just come back may show nodes as idle that it has not reached yet, and start nothing on them.
    job = slurm.submit(f"--nodes={len(slurm.nodes)}", f"--output={os.devnull}", "--wrap", "srun true")
    slurm.wait_for_job(job, "COMPLETED", within_s=120)
