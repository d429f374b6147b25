"""Records what a real Slurm's commands answer, for the tests of the parsers.

    python -m tests.captured.record

boots a sandbox, brings jobs into every state, and writes `slurm-<version>/<case>.json`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hpc_elastic.scheduler.slurm import commands
from tests.slurm_sandbox.cluster import Cluster, wait_until

_HERE = os.path.dirname(os.path.abspath(__file__))


class Recorder:
    """Runs commands on a cluster and writes down how they end."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        version = cluster.run("sinfo", "--version").stdout.split()[1]
        self._folder = os.path.join(_HERE, "slurm-" + ".".join(version.split(".")[:2]))
        os.makedirs(self._folder, exist_ok=True)

    def record(self, case: str, command: Sequence[str], **facts: Any) -> None:
        """Runs a command and files it under a name; `facts` are what a test wants to know beside it."""
        done = self._cluster.run(*command, check=False, timeout_s=120)
        captured = {
            "command": list(command),
            **facts,
            "returncode": done.returncode,
            "stdout": done.stdout,
            "stderr": done.stderr,
        }
        with open(os.path.join(self._folder, f"{case}.json"), "w") as file:
            file.write(json.dumps(captured, indent=2) + "\n")

    def queue(self, case: str, *job_ids: str) -> None:
        """What squeue says of jobs."""
        self.record(f"queue-{case}", commands.squeue_command(job_ids), job_ids=list(job_ids))


def _script(*options: str, command: str = "sleep 600") -> list[str]:
    return ["--output=/dev/null", *options, f"--wrap={command}"]


@contextmanager
def _quiet(cluster: Cluster) -> Iterator[None]:
    """An empty cluster before and after."""
    yield
    cluster.run("scancel", "--user=root")
    cluster.leftovers(within_s=30)


def _record_plain_states(cluster: Cluster, recorder: Recorder) -> None:
    submit, wait = cluster.submit, cluster.wait_for_job
    done = submit(*_script(command="true"))
    failed = submit(*_script(command="exit 3"))
    killed = submit(*_script(command="kill -KILL $$"))
    running = submit(*_script("--nodes=2"))
    stubborn = submit(*_script(command="trap '' TERM; sleep 600 & wait; wait"))
    pending = submit(*_script("--nodes=4", "--exclusive", "--nice=-1000"))  # so that nothing pends before it
    held = submit(*_script("--hold"))
    array = submit(*_script("--array=0-2%2", command="sleep 2; exit $SLURM_ARRAY_TASK_ID"))
    for job_id, state in ((done, "COMPLETED"), (failed, "FAILED"), (killed, "FAILED"), (running, "RUNNING")):
        wait(job_id, state)
    wait_until(lambda: cluster.job(pending)["Reason"] == "Resources", "it waits for nodes")
    recorder.queue("array-running", array, f"{array}_0", f"{array}_2")
    recorder.queue("completed", done)
    recorder.queue("failed", failed)
    recorder.queue("killed", killed)
    recorder.queue("running", running)
    recorder.queue("pending", pending)
    recorder.queue("held", held)
    recorder.queue("mixed", done, "999999", running, held)
    cluster.run("scancel", stubborn, pending)
    wait(stubborn, "COMPLETING")
    recorder.queue("completing", stubborn)
    recorder.queue("cancelled-pending", pending)
    recorder.record("requeue", commands.requeue_command(running), job_ids=[running])
    wait(running, "PENDING")
    recorder.queue("requeued", running)
    wait(stubborn, "CANCELLED")
    recorder.queue("cancelled-running", stubborn)
    wait_until(lambda: not [line for line in cluster.job_ids() if line.startswith(array)], "the array is over")
    recorder.queue("array-over", array, f"{array}_0", f"{array}_1")
    recorder.queue("unknown", "999999")
    recorder.queue("unknown-two", "999998", "999999")
    recorder.record("requeue-held", commands.requeue_command(held), job_ids=[held])
    recorder.record("requeue-unknown", commands.requeue_command("999999"), job_ids=["999999"])
    recorder.record("cancel-done", commands.scancel_command(done), job_ids=[done])
    recorder.record("cancel-unknown", commands.scancel_command("999999"), job_ids=["999999"])
    recorder.record("cancel-pending", commands.scancel_command(held), job_ids=[held])


def _record_arrays(cluster: Cluster, recorder: Recorder) -> None:
    """Tasks that run, and others that are cancelled while they wait."""
    array = cluster.submit(*_script("--array=0-3%2"))
    wait_until(
        lambda: f"{array}_1" in cluster.run("squeue", "--noheader", "--format=%i", "--states=R").stdout, "it runs"
    )
    recorder.record("cancel-waiting", commands.scancel_pending_command(array), job_ids=[array])
    recorder.queue("array-rest-cancelled", array)
    recorder.queue("array-task-cancelled", f"{array}_3")


def _record_slow_states(cluster: Cluster, recorder: Recorder) -> None:
    submit, wait = cluster.submit, cluster.wait_for_job
    late = submit(*_script("--time=1", "--nodelist=node1"))
    lost = submit(*_script("--no-requeue", "--nodelist=node2"))
    preempted = submit(*_script("--no-requeue", "--nodelist=node3", "--exclusive"))
    for job_id in (late, lost, preempted):
        wait(job_id, "RUNNING")
    urgent = submit(*_script("--partition=urgent", "--nodelist=node3", "--exclusive"))
    cluster.kill("node2")
    wait(preempted, "PREEMPTED", within_s=120)
    recorder.queue("preempted", preempted)
    cluster.run("scancel", urgent)
    wait(lost, "NODE_FAIL", within_s=120)
    recorder.queue("node-fail", lost)
    wait(late, "TIMEOUT", within_s=180)
    recorder.queue("timeout", late)


def _record_lost_nodes(cluster: Cluster, recorder: Recorder) -> None:
    """A job that survives: a node that its administrator marks, one that is powered off, one set down by hand."""
    job_id = cluster.submit(*_script("--nodes=4", "--no-kill"))
    cluster.wait_for_job(job_id, "RUNNING")
    cluster.run("scontrol", "update", "NodeName=node4", "State=FAIL", "Reason=looks bad")
    recorder.queue("node-marked-fail", job_id)
    cluster.kill("node3")
    wait_until(lambda: cluster.node_states()["node3"] == "mixed*", "node3 does not respond", within_s=60)
    recorder.queue("node-silent", job_id)
    wait_until(lambda: cluster.node_states()["node3"] == "down*", "node3 is down", within_s=60)
    recorder.queue("node-down", job_id)
    cluster.boot("node3")
    wait_until(lambda: cluster.node_states()["node3"] == "idle", "node3 is back", within_s=60)
    recorder.queue("node-back", job_id)
    cluster.run("scancel", job_id)


def _record_refusals(recorder: Recorder) -> None:
    refused = {
        "partition": ["--partition=nowhere"],
        "nodes": ["--nodes=99"],
        "memory": ["--mem=999G"],
        "cpus": ["--cpus-per-task=99"],
        "gres": ["--gres=unicorn:1"],
        "gpus": ["--gpus-per-node=9"],
        "option": ["--no-such-option=1"],
        "time": ["--time=never"],
        "nodelist": ["--nodelist=node77"],
        "dependency": ["--dependency=afterok:999999"],
        "reservation": ["--reservation=none"],
        "array": ["--array=0-100000"],
    }
    for name, options in refused.items():
        recorder.record(f"submit-{name}", ["sbatch", "--parsable", *_script(*options)])
    recorder.record("submit-script", ["sbatch", "--parsable", "/no/such/job.sh"])
    recorder.record("submit-accepted", ["sbatch", "--parsable", *_script(command="true")])
    recorder.record("accounting-disabled", commands.sacct_command(["1"]), job_ids=["1"])
    recorder.record("sinfo", commands.sinfo_command())
    recorder.record("ping", commands.ping_command())


def _record_without_controller(cluster: Cluster, recorder: Recorder, case: str) -> None:
    recorder.record(f"submit-{case}", ["sbatch", "--parsable", *_script()])
    recorder.queue(case, "1")
    recorder.record(f"cancel-{case}", commands.scancel_command("1"), job_ids=["1"])
    recorder.record(f"requeue-{case}", commands.requeue_command("1"), job_ids=["1"])
    recorder.record(f"sinfo-{case}", commands.sinfo_command())
    recorder.record(f"ping-{case}", commands.ping_command())


def main() -> None:
    """Records all cases."""
    cluster = Cluster.start(4, owner=os.getpid())
    try:
        recorder = Recorder(cluster)
        _record_refusals(recorder)
        with _quiet(cluster):
            _record_plain_states(cluster, recorder)
        with _quiet(cluster):
            _record_arrays(cluster, recorder)
        with _quiet(cluster):
            _record_slow_states(cluster, recorder)
        with _quiet(cluster):
            _record_lost_nodes(cluster, recorder)
        cluster.run_on("controller", "pkill", "-x", "slurmctld")
        _record_without_controller(cluster, recorder, "no-controller")
        cluster.kill("controller")
        _record_without_controller(cluster, recorder, "controller-off")
    finally:
        cluster.down()
    subprocess.run(["git", "status", "--short", _HERE], check=False)


if __name__ == "__main__":
    main()
