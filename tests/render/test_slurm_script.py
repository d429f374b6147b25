"""The Slurm script on a real Slurm, with a small program in the agent's place."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.plan.launch_plan import LaunchPlan, ResourcesPlan
from hpc_elastic.plan.roles import NodesPlan
from hpc_elastic.render.script import load_template, render_script
from hpc_elastic.rundir.layout import RunLayout
from tests.plans import make_plan
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.tiers import variants

pytestmark = [pytest.mark.slurm, pytest.mark.every_slurm]

# It writes down what it sees; with a file `wait` it waits for TERM, and is then asked how it went.
AGENT = """
import json, os, signal, sys, time
if sys.argv[1] == "hpc_elastic.agent.conclude":
    sys.exit(0)
run_dir, node = sys.argv[2], os.environ["SLURMD_NODENAME"]
signals = []
for number in (signal.SIGTERM, signal.SIGCONT):
    signal.signal(number, lambda number, frame: signals.append(signal.Signals(number).name))
seen = {"argv": sys.argv, "environ": dict(os.environ), "cpus": len(os.sched_getaffinity(0)), "cwd": os.getcwd()}
print("agent on", node, flush=True)
with open(os.path.join(run_dir, node + ".json.new"), "w") as file:
    json.dump(seen, file)
os.rename(file.name, file.name[:-4])
while os.path.exists(os.path.join(run_dir, "wait")) and not {"SIGTERM", "request"} & {*signals}:
    with open(os.path.join(run_dir, "requests.jsonl")) as file:
        if file.read():
            signals.append("request")
    time.sleep(0.05)
with open(os.path.join(run_dir, node + ".end"), "w") as file:
    file.write(" ".join(signals))
if node == "node1" and os.path.exists(os.path.join(run_dir, "leave")):
    os.rename(os.path.join(run_dir, "leave"), os.path.join(run_dir, "exit_code"))
sys.exit(3 if signals else 0)
"""


class Run:
    """A run directory with a rendered script."""

    def __init__(self, root: Path, run_dir: str = "run", **changes: Any) -> None:
        values = {
            "run_dir": str(root / run_dir),
            "workdir": str(root),
            "package_dir": str(root / "package"),
            "python": sys.executable,
            **changes,
        }
        self.plan: LaunchPlan = make_plan(**values)
        self.layout = RunLayout(self.plan.run_dir)
        self.directory = Path(self.plan.run_dir)
        (self.directory / "agents").mkdir(parents=True)
        Path(self.layout.requests).touch()
        (root / "package").mkdir()
        (root / "package" / "launch.py").write_text(AGENT)
        script = render_script(self.plan, load_template(self.plan.template, job_dir="/"))
        Path(self.layout.script).write_text(script, encoding="utf-8")

    def seen(self, node: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / f"{node}.json").read_text())
        return found

    def wait_for(self, name: str) -> None:
        wait_until((self.directory / name).exists, f"{name} is there")


@pytest.mark.parametrize(
    "name",
    [
        "it's 50% %j %N",
        *variants(
            "a b",
            '"$(touch canary)`x`#;&',
            "grün 学",
            of="test_output_lands_in_a_run_directory_with_a_hostile_name",
        ),
    ],
)
def test_output_lands_in_a_run_directory_with_a_hostile_name(name: str, slurm: Cluster, tmp_path: Path) -> None:
    run = Run(tmp_path, f"runs/{name}", name=f"-{name}")
    job_id = slurm.submit(run.layout.script)
    job = slurm.wait_for_job(job_id, "COMPLETED", "FAILED")
    output = Path(run.layout.script_output(job_id)).read_text()
    assert job["JobState"] == "COMPLETED", output
    assert f"hpc_elastic: run directory {run.directory}\n" in output
    for node in ("node1", "node2"):
        assert Path(run.layout.agent_output(node)).read_text() == f"agent on {node}\n"
        seen = run.seen(node)
        assert seen["argv"][1:] == ["hpc_elastic.agent.main", str(run.directory)]
        assert seen["environ"]["SLURM_JOB_NAME"] == f"-{name}"
    assert not list(tmp_path.rglob("canary"))


def test_a_step_has_one_task_a_node_with_all_that_the_job_has(slurm: Cluster, tmp_path: Path) -> None:
    resources = ResourcesPlan(gpus_per_node_option="2", cpus_per_task=4, memory_per_node="2G")
    run = Run(tmp_path, nodes=NodesPlan(min=3, max=3), resources=resources, time_s=600.0, sbatch={"comment": "a b"})
    job_id = slurm.submit(run.layout.script)
    job = slurm.wait_for_job(job_id, "COMPLETED", "FAILED")
    assert job["JobState"] == "COMPLETED", Path(run.layout.script_output(job_id)).read_text()
    for node in range(3):
        environment = run.seen(f"node{node + 1}")["environ"]
        assert environment["SLURM_NODEID"] == str(node)
        assert environment["SLURM_STEP_NUM_NODES"] == environment["SLURM_STEP_NUM_TASKS"] == "3"
        assert environment["SLURM_CPUS_PER_TASK"] == "4"
        assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_a_second_start_appends_and_the_runs_exit_code_counts(slurm: Cluster, tmp_path: Path) -> None:
    run = Run(tmp_path)
    first = slurm.submit(run.layout.script)
    slurm.wait_for_job(first, "COMPLETED")
    (run.directory / "leave").write_text("9\n")
    second = slurm.submit(run.layout.script)
    assert slurm.wait_for_job(second, "FAILED")["ExitCode"] == "9:0"
    assert Path(run.layout.agent_output("node1")).read_text() == "agent on node1\n" * 2
    Path(run.layout.result).write_text("{}")
    third = slurm.submit(run.layout.script)
    assert slurm.wait_for_job(third, "FAILED")["ExitCode"] == "5:0"


def test_a_failing_setup_line_ends_the_job_with_3(slurm: Cluster, tmp_path: Path) -> None:
    run = Run(tmp_path, setup=("export A=1", "no-such-module load cuda"))
    job_id = slurm.submit(run.layout.script)
    assert slurm.wait_for_job(job_id, "FAILED")["ExitCode"] == "3:0"
    output = Path(run.layout.script_output(job_id)).read_text()
    assert "hpc_elastic: setup line failed (status 127): no-such-module load cuda" in output


def test_scancel_reaches_the_agents_and_the_script_waits_for_them(slurm: Cluster, tmp_path: Path) -> None:
    run = Run(tmp_path)
    (run.directory / "wait").touch()
    job_id = slurm.submit(run.layout.script)
    run.wait_for("node1.json")
    run.wait_for("node2.json")
    slurm.run("scancel", job_id)
    run.wait_for("node1.end")
    run.wait_for("node2.end")
    assert "SIGTERM" in (run.directory / "node2.end").read_text()
    assert Path(run.layout.requests).read_text() == ""
    slurm.wait_for_job(job_id, "CANCELLED")


def test_the_script_in_an_allocation_takes_fewer_nodes_and_stops_by_request(slurm: Cluster, tmp_path: Path) -> None:
    run = Run(tmp_path)
    (run.directory / "wait").touch()
    outer = tmp_path / "outer.sh"
    outer.write_text(
        "#!/bin/bash\n#SBATCH --nodes=3 --ntasks-per-node=2 --mem-per-cpu=100\n"
        f"cd {tmp_path}\nbash run/job.sh >inner.out 2>&1 &\necho $! >inner.pid\n"
        "until [ -e run/node2.json ]; do sleep 0.1; done\nkill -TERM $!\nwait $!\n"
    )
    job_id = slurm.submit(f"--output={tmp_path}/outer.out", str(outer))
    assert slurm.wait_for_job(job_id, "COMPLETED", "FAILED")["ExitCode"] == "3:0", (tmp_path / "inner.out").read_text()
    assert (run.directory / "node1.end").read_text() == "request"
    assert not (run.directory / "node3.json").exists()
    assert run.seen("node1")["environ"]["SLURM_STEP_NUM_TASKS"] == "2"
