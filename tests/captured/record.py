"""Records what a real Slurm's commands answer, for the tests of the parsers.

    python -m tests.captured.record [--slurm 24.11]

boots a sandbox, brings jobs into every state, and writes `slurm-<version>/<case>.json`. A command is asked again until
its output shows the case, so that no output is stored under a wrong name.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hpc_elastic.scheduler.slurm import commands
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.slurm_sandbox.versions import SUPPORTED

_HERE = os.path.dirname(os.path.abspath(__file__))
_OTHER_USER = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
_EXPEDITES_SINCE = "25.11"


class Recorder:
    """Runs commands on a cluster and writes down how they end."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._folder = os.path.join(_HERE, f"slurm-{cluster.version}")
        os.makedirs(self._folder, exist_ok=True)

    def record(
        self,
        case: str,
        command: Sequence[str],
        *,
        before: Sequence[str] = (),
        until: Callable[[str], bool] = lambda _: True,
        **facts: Any,
    ) -> None:
        """Runs a command and files it under a name.

        Args:
            case: the name.
            command: what is run, and filed.
            before: a command that runs it, and is not filed.
            until: of the command's output; the command is run again until it is true.
            facts: what a test wants to know beside it.
        """
        answers: list[subprocess.CompletedProcess[str]] = []

        def is_there() -> bool:
            answers.append(self._cluster.run(*before, *command, check=False, timeout_s=120))
            return until(answers[-1].stdout)

        wait_until(is_there, case, otherwise=lambda: f"it answers {answers[-1]}")
        done = answers[-1]
        captured = {
            "command": list(command),
            **facts,
            "returncode": done.returncode,
            "stdout": done.stdout,
            "stderr": done.stderr,
        }
        with open(os.path.join(self._folder, f"{case}.json"), "w") as file:
            file.write(json.dumps(captured, indent=2) + "\n")

    def queue(
        self, case: str, *job_ids: str, shows: str = "", nodes: str | None = None, rows: int | None = None
    ) -> None:
        """Record squeue's output about jobs, once it shows just these states, on these nodes, in so many rows."""

        def is_shown(stdout: str) -> bool:
            fields = [line.split(commands.SEPARATOR) for line in stdout.splitlines()]
            states, places = (
                {row[commands.QUEUE_FIELDS.index(name)] for row in fields} for name in ("State", "NodeList")
            )
            return (
                states == set(shows.split())
                and (nodes is None or places == {nodes})
                and (rows is None or len(fields) == rows)
            )

        self.record(f"queue-{case}", commands.squeue_command(job_ids), until=is_shown, job_ids=list(job_ids))


def script(*options: str, command: str = "sleep 600") -> list[str]:
    """The arguments of sbatch for a job that writes nothing."""
    return ["--output=/dev/null", *options, f"--wrap={command}"]


@contextmanager
def _quiet(cluster: Cluster) -> Iterator[None]:
    """Make the cluster empty before and after the block."""
    yield
    cluster.run("scancel", "--user=root")
    cluster.leftovers(within_s=30)


def _record_arrays(cluster: Cluster, recorder: Recorder) -> None:
    """Record tasks of an array that run, that are over, and that are cancelled while they wait."""
    with tempfile.TemporaryDirectory() as folder:
        wait = f"until [ -e {folder}/go ]; do sleep 0.1; done"
        array = cluster.submit(*script("--array=0-2%2", command=f"{wait}; exit $SLURM_ARRAY_TASK_ID"))
        recorder.queue("array-running", array, f"{array}_0", f"{array}_2", shows="RUNNING PENDING", rows=3)
        open(f"{folder}/go", "w").close()
        recorder.queue("array-over", array, f"{array}_0", f"{array}_1", shows="COMPLETED FAILED", rows=3)
    array = cluster.submit(*script("--array=0-3%2"))
    first = {f"{array}_0", f"{array}_1"}
    running = ("squeue", "--noheader", "--array", "--states=RUNNING", "--format=%i")
    wait_until(lambda: first <= set(cluster.run(*running).stdout.split()), "two tasks run")
    recorder.record("cancel-waiting", commands.scancel_pending_command(array), job_ids=[array])
    recorder.queue("array-rest-cancelled", array, shows="RUNNING CANCELLED")
    recorder.queue("array-task-cancelled", f"{array}_3")


def _record_heterogeneous(cluster: Cluster, recorder: Recorder) -> None:
    """A job of two parts: squeue shows both where the first was asked for, whose number the job has."""
    job_id = cluster.submit("--nodelist=node1", *script("--nodes=1", ":", "--nodelist=node2", "--nodes=1"))
    recorder.queue("heterogeneous", job_id, shows="RUNNING", rows=2)


def _record_plain_states(cluster: Cluster, recorder: Recorder) -> None:
    submit, wait = cluster.submit, cluster.wait_for_job
    done = submit(*script(command="true"))
    failed = submit(*script(command="exit 3"))
    killed = submit(*script(command="kill -KILL $$"))
    running = submit(*script("--nodelist=node[2-3]"))
    stubborn = submit(*script("--nodelist=node1", command="trap '' TERM; sleep 600 & wait; wait"))
    for job_id, state in ((done, "COMPLETED"), (failed, "FAILED"), (killed, "FAILED")):
        wait(job_id, state)
    for job_id in (running, stubborn):
        wait(job_id, "RUNNING")
    held = submit(*script("--hold"))
    pending = submit(*script("--nodes=4", "--exclusive"))  # alone in the queue, so that it waits for nodes only
    wait_until(lambda: cluster.job(pending)["Reason"] == "Resources", "it waits for nodes")
    recorder.queue("completed", done, shows="COMPLETED")
    recorder.queue("failed", failed, shows="FAILED")
    recorder.queue("killed", killed, shows="FAILED")
    recorder.queue("running", running, shows="RUNNING")
    recorder.queue("pending", pending, shows="PENDING")
    recorder.queue("held", held, shows="PENDING")
    recorder.queue("mixed", done, "999999", running, held, shows="COMPLETED RUNNING PENDING")
    cluster.run("scancel", stubborn, pending)
    recorder.queue("completing", stubborn, shows="COMPLETING")
    recorder.queue("cancelled-pending", pending, shows="CANCELLED")
    recorder.record("requeue", commands.requeue_command(running), job_ids=[running])
    recorder.queue("requeued", running, shows="PENDING")
    recorder.queue("cancelled-running", stubborn, shows="CANCELLED")
    recorder.queue("unknown", "999999")
    recorder.queue("unknown-two", "999998", "999999")
    recorder.record("requeue-held", commands.requeue_command(held), job_ids=[held])
    recorder.record("requeue-unknown", commands.requeue_command("999999"), job_ids=["999999"])
    recorder.record("cancel-done", commands.scancel_command(done), job_ids=[done])
    recorder.record("cancel-unknown", commands.scancel_command("999999"), job_ids=["999999"])
    recorder.record("cancel-pending", commands.scancel_command(held), job_ids=[held])


def _record_of_another_user(cluster: Cluster, recorder: Recorder) -> None:
    """Record the refusals that another user gets, and a job that the administrator cancels."""
    mine = cluster.submit(*script())
    theirs = cluster.run(*_OTHER_USER, "sbatch", "--parsable", "--chdir=/", *script()).stdout.strip()
    for job_id in (mine, theirs):
        cluster.wait_for_job(job_id, "RUNNING")
    recorder.record("cancel-denied", commands.scancel_command(mine), before=_OTHER_USER, job_ids=[mine])
    recorder.record("requeue-denied", commands.requeue_command(mine), before=_OTHER_USER, job_ids=[mine])
    cluster.run("scancel", theirs)
    recorder.queue("cancelled-by-another", theirs, shows="CANCELLED")


def _record_slow_states(cluster: Cluster, recorder: Recorder) -> None:
    submit, wait = cluster.submit, cluster.wait_for_job
    late = submit(*script("--time=1", "--nodelist=node1"))
    lost = submit(*script("--no-requeue", "--nodelist=node2"))
    preempted = submit(*script("--no-requeue", "--nodelist=node3", "--exclusive"))
    for job_id in (late, lost, preempted):
        wait(job_id, "RUNNING")
    urgent = submit(*script("--partition=urgent", "--nodelist=node3", "--exclusive"))
    cluster.kill("node2")
    wait(preempted, "PREEMPTED", within_s=120)
    recorder.queue("preempted", preempted, shows="PREEMPTED")
    cluster.run("scancel", urgent)
    wait(lost, "NODE_FAIL", within_s=120)
    recorder.queue("node-fail", lost, shows="NODE_FAIL")
    wait(late, "TIMEOUT", within_s=180)
    recorder.queue("timeout", late, shows="TIMEOUT")


def _record_lost_nodes(cluster: Cluster, recorder: Recorder) -> None:
    """A job that survives: a node that its administrator marks, one that is powered off, one set down by hand."""
    job_id = cluster.submit(*script("--nodes=4", "--no-kill"))
    cluster.wait_for_job(job_id, "RUNNING")
    cluster.run("scontrol", "update", "NodeName=node4", "State=FAIL", "Reason=looks bad")
    recorder.queue("node-marked-fail", job_id, shows="RUNNING", nodes="node[1-4]")
    cluster.kill("node3")
    wait_until(lambda: cluster.node_states()["node3"] == "mixed*", "node3 does not respond", within_s=60)
    recorder.queue("node-silent", job_id, shows="RUNNING", nodes="node[1-4]")
    wait_until(lambda: cluster.node_states()["node3"] == "down*", "node3 is down", within_s=60)
    recorder.queue("node-down", job_id, shows="RUNNING", nodes="node[1-2,4]")
    cluster.boot("node3")
    wait_until(lambda: cluster.node_states()["node3"] == "idle", "node3 is back", within_s=60)
    recorder.queue("node-back", job_id, shows="RUNNING", nodes="node[1-2,4]")
    cluster.run("scancel", job_id)


def _record_expediting(cluster: Cluster, recorder: Recorder) -> None:
    """A job that may start again at once after it lost its node, and cannot: the node is off."""
    with cluster.configured(SlurmctldParameters="enable_expedited_requeue"):
        job_id = cluster.submit(*script("--requeue=expedite", "--nodelist=node2"))
        cluster.wait_for_job(job_id, "RUNNING")
        cluster.kill("node2")
        cluster.run("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=it is off")
        recorder.queue("expediting", job_id, shows="EXPEDITING")
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
        recorder.record(f"submit-{name}", ["sbatch", "--parsable", *script(*options)])
    recorder.record("submit-script", ["sbatch", "--parsable", "/no/such/job.sh"])
    recorder.record("submit-accepted", ["sbatch", "--parsable", *script(command="true")])
    recorder.record("accounting-disabled", commands.sacct_command(["1"]), job_ids=["1"])
    recorder.record("sinfo", commands.sinfo_command())
    recorder.record("ping", commands.ping_command())


def _record_without_controller(cluster: Cluster, recorder: Recorder, case: str) -> None:
    recorder.record(f"submit-{case}", ["sbatch", "--parsable", *script()])
    recorder.queue(case, "1")
    recorder.record(f"cancel-{case}", commands.scancel_command("1"), job_ids=["1"])
    recorder.record(f"requeue-{case}", commands.requeue_command("1"), job_ids=["1"])
    recorder.record(f"sinfo-{case}", commands.sinfo_command())
    recorder.record(f"ping-{case}", commands.ping_command())


def main(version: str | None) -> None:
    """Records all cases of one Slurm."""
    cluster = Cluster.start(4, owner=os.getpid(), version=version)
    parts = [_record_arrays, _record_plain_states, _record_of_another_user, _record_slow_states, _record_lost_nodes]
    parts.append(_record_heterogeneous)
    if cluster.version >= _EXPEDITES_SINCE:
        parts.append(_record_expediting)
    try:
        recorder = Recorder(cluster)
        with _quiet(cluster):
            _record_refusals(recorder)
        for part in parts:
            with _quiet(cluster):
                part(cluster, recorder)
        cluster.end_slurmctld()
        _record_without_controller(cluster, recorder, "no-controller")
        cluster.kill("controller")
        _record_without_controller(cluster, recorder, "controller-off")
    finally:
        cluster.down()
    subprocess.run(["git", "status", "--short", _HERE], check=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slurm", metavar="VERSION", choices=SUPPORTED, help="the default is this machine's own")
    main(parser.parse_args().slurm)
