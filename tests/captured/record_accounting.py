"""Records what a real sacct answers, for the tests of its parser.

    python -m tests.captured.record_accounting [--slurm 24.11]

boots a sandbox with slurmdbd and MariaDB and writes `slurm-<version>/accounting-<case>.json`.
"""

from __future__ import annotations

import argparse
import os

from hpc_elastic.scheduler.slurm import commands
from tests.captured.record import Recorder, script
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.slurm_sandbox.versions import SUPPORTED


def _ask(recorder: Recorder, case: str, *job_ids: str) -> None:
    recorder.record(f"accounting-{case}", commands.sacct_command(job_ids), job_ids=list(job_ids))


def _wait_for_record(cluster: Cluster, job_id: str, words: str) -> None:
    """Waits until the data base has the end of a job, which slurmctld tells it a moment later."""

    def is_told() -> bool:
        return words in cluster.run(*commands.sacct_command([job_id])).stdout

    wait_until(is_told, f"accounting says {words} of {job_id}", within_s=240)


def _record_ends(cluster: Cluster, recorder: Recorder) -> None:
    submit = cluster.submit
    late = submit(*script("--time=1", "--nodelist=node1"))
    lost = submit(*script("--no-requeue", "--nodelist=node2"))
    done = submit(*script(command="true"))
    failed = submit(*script(command="exit 3"))
    killed = submit(*script(command="kill -KILL $$"))
    cancelled = submit(*script())
    waiting = submit(*script("--hold"))
    again = submit(*script("--nodelist=node3"))
    array = submit(*script("--array=0-3%1", "--nodelist=node4"))
    for job_id in (late, lost, cancelled, again):
        cluster.wait_for_job(job_id, "RUNNING")
    wait_until(lambda: f"{array}_0" in cluster.job_ids(), "the first task of the array runs")
    _wait_for_record(cluster, again, "RUNNING")
    _ask(recorder, "running", again)
    cluster.kill("node2")
    cluster.run("scontrol", "requeue", again)
    wait_until(lambda: cluster.job(again)["Restarts"] == "1" and cluster.job(again)["JobState"] == "RUNNING", "again")
    cluster.run("scancel", cancelled, waiting, again)
    cluster.run(*commands.scancel_pending_command(array))
    for job_id, words in ((done, "COMPLETED"), (failed, "FAILED"), (killed, "FAILED")):
        _wait_for_record(cluster, job_id, words)
    for job_id in (cancelled, waiting, again, array):
        _wait_for_record(cluster, job_id, "CANCELLED")
    _ask(recorder, "completed", done)
    _ask(recorder, "failed", failed)
    _ask(recorder, "killed", killed)
    _ask(recorder, "cancelled", cancelled)
    _ask(recorder, "cancelled-pending", waiting)
    _ask(recorder, "requeued", again)
    duplicates = [*commands.sacct_command([again]), "--duplicates"]
    recorder.record("accounting-requeued-duplicates", duplicates, job_ids=[again])
    _ask(recorder, "array-rest-cancelled", array)
    _ask(recorder, "array-task-cancelled", f"{array}_3")
    cluster.run("scancel", array)
    _wait_for_record(cluster, lost, "NODE_FAIL")
    _ask(recorder, "node-fail", lost)
    _wait_for_record(cluster, late, "TIMEOUT")
    _ask(recorder, "timeout", late)
    _ask(recorder, "mixed", done, "999999", failed)
    _ask(recorder, "unknown", "999999")  # and of a job that slurmdbd has purged


def main() -> None:
    """Records all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slurm", metavar="VERSION", choices=SUPPORTED, help="default: this machine's own")
    version = parser.parse_args().slurm
    cluster = Cluster.start(4, owner=os.getpid(), accounting=True, version=version)
    try:
        recorder = Recorder(cluster)
        _record_ends(cluster, recorder)
        cluster.run_on("controller", "pkill", "-x", "slurmdbd")
        _ask(recorder, "no-slurmdbd", "1")
    finally:
        cluster.down()


if __name__ == "__main__":
    main()
