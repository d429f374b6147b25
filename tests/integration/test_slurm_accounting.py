"""A Slurm with slurmdbd: what became of a job that the controller has forgotten."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from hpc_elastic.scheduler.slurm.identity import describe_job
from hpc_elastic.scheduler.slurm.output import CommandOutput
from hpc_elastic.scheduler.slurm.runner import run_command
from tests import slurm_choice
from tests.integration.conftest import Door, Run
from tests.integration.slurm_jobs import assert_over, wait_for_ranks, write_job
from tests.slurm_sandbox.accounting import why_no_accounting
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.slurm_sandbox.versions import why_impossible

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("accounting")]

PREEMPTS = {"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE"}
FORGETS_WITHIN_S = 150  # it looks for old jobs twice a minute


@pytest.fixture(scope="module")
def accounted_sandboxes() -> Iterator[Callable[[str], Cluster]]:
    """Gives a Slurm of a version with accounting, whose controller forgets a job 2 s after its end."""
    booted: dict[str, Cluster] = {}

    def boot_once(version: str) -> Cluster:
        number = None if version == slurm_choice.OWN else version
        if reason := why_impossible(number) or why_no_accounting(number):
            pytest.skip(reason)
        if version not in booted:
            booted[version] = Cluster.start(
                2, owner=os.getpid(), accounting=True, version=number, settings={"MinJobAge": "2", **PREEMPTS}
            )
        return booted[version]

    yield boot_once
    for cluster in booted.values():
        cluster.down()


@pytest.fixture
def accounted(slurm_version: str, accounted_sandboxes: Callable[[str], Cluster]) -> Iterator[Cluster]:
    """That Slurm of the test's version, all nodes idle."""
    cluster = accounted_sandboxes(slurm_version)
    yield cluster
    cluster.leftovers(within_s=15)


@pytest.fixture
def accounted_door(accounted: Cluster, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Door:
    """The command on its login node."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Door(folder, {**accounted.environment, "XDG_STATE_HOME": str(tmp_path / "state")})


def held(door: Door) -> Run:
    """A run whose job waits until it is cancelled: nobody but Slurm can tell its end."""
    write_job(door, nodes="2", workers="1")
    return door.submit("job.yaml", "--set", "sbatch.hold=true")


def forget(cluster: Cluster, job_id: str) -> None:
    """Waits until the controller does not know the job any more."""
    wait_until(
        lambda: not cluster.job(job_id),
        f"job {job_id} is forgotten",
        within_s=FORGETS_WITHIN_S,
        otherwise=cluster.controller_log,
    )


@pytest.mark.mirrored
def test_status_finds_the_end_of_a_job_that_the_controller_has_forgotten(
    accounted_door: Door, accounted: Cluster
) -> None:
    run = held(accounted_door)
    accounted.run("scancel", run.job_id)
    forget(accounted, run.job_id)
    shown = accounted_door.run("status", run.layout.root, "--json", exit_code=None).stdout
    assert '"CANCELLED"' in shown, shown
    assert run.result()["state"] == "CANCELLED"
    assert "CANCELLED by 0" in str(run.result()) or "cancel" in run.result()["cause"].lower(), run.result()


@pytest.mark.variant(of="test_status_finds_the_end_of_a_job_that_the_controller_has_forgotten")
@pytest.mark.mirrored
def test_submit_and_wait_ends_with_a_job_that_the_controller_has_forgotten(
    accounted_door: Door, accounted: Cluster
) -> None:
    """The command is stopped while the controller forgets the job, as a laptop that sleeps."""
    write_job(accounted_door, nodes="2", workers="1")
    command = [
        *accounted_door.command,
        "submit",
        "job.yaml",
        "--wait",
        "--set",
        "sbatch.hold=true",
        "--set",
        "start=spawn",
    ]
    waiting = accounted_door.start_program(*command)
    wait_until(lambda: len(accounted.job_ids()) == 1, "the job is in the queue")
    (job_id,) = accounted.job_ids()
    waiting.send_signal(signal.SIGSTOP)
    try:
        accounted.run("scancel", job_id)
        forget(accounted, job_id)
    finally:
        waiting.send_signal(signal.SIGCONT)
    _, error = waiting.communicate(timeout=90)
    assert waiting.returncode == 10, error
    assert "Traceback" not in error
    assert "CANCELLED" in error, error


@pytest.mark.variant(of="test_status_finds_the_end_of_a_job_that_the_controller_has_forgotten")
@pytest.mark.mirrored
def test_status_says_that_a_job_is_gone_if_slurmdbd_does_not_answer(accounted_door: Door, accounted: Cluster) -> None:
    run = held(accounted_door)
    accounted.run_on("controller", "pkill", "-STOP", "-x", "slurmdbd")
    try:
        assert '"PENDING"' in accounted_door.run("status", run.layout.root, "--json", exit_code=None).stdout
        accounted.run("scancel", run.job_id)
        forget(accounted, run.job_id)
        shown = accounted_door.run("status", run.layout.root, "--json", exit_code=None)  # no traceback
        assert '"CANCELLED"' not in shown.stdout, shown
    finally:
        accounted.run_on("controller", "pkill", "-CONT", "-x", "slurmdbd")


@pytest.mark.mirrored
def test_what_is_charged_stands_in_accounting_after_a_run(accounted_door: Door, accounted: Cluster) -> None:
    write_job(accounted_door, "print('done')\n", nodes="2", workers="1")
    run = accounted_door.submit("job.yaml", wait=True)
    wait_until(
        lambda: f"{run.job_id}|COMPLETED" in accounted.run("sacct", "-nXPj", run.job_id, "-oJobID,State").stdout,
        "accounting has the end of the job",
    )


@pytest.mark.mirrored
def test_accounting_tells_whose_a_job_is_that_the_controller_has_forgotten(
    accounted: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in accounted.variables.items():
        monkeypatch.setenv(name, value)
    options = ("--job-name=digits", f"--chdir={tmp_path}", "--output=/dev/null", "--wrap=true")
    job_ids = accounted.submit(*options), accounted.submit("--array=0-1", *options)

    def run_without_squeue(
        command: Sequence[str], *, environ: Mapping[str, str], timeout_s: float, cwd: str | None = None
    ) -> CommandOutput:
        if command[0] == "squeue":
            return CommandOutput(returncode=1, stdout="", stderr="slurm_load_jobs error: Invalid job id specified\n")
        return run_command(command, environ=environ, timeout_s=timeout_s, cwd=cwd)

    for job_id in job_ids:
        wait_until(
            lambda job_id=job_id: describe_job(job_id, run=run_without_squeue) == ("digits", str(tmp_path)),  # type: ignore[misc]
            f"accounting knows job {job_id}",
            otherwise=lambda job_id=job_id: str(describe_job(job_id, run=run_without_squeue)),  # type: ignore[misc]
        )


# Is told to stop in its first attempt, and goes on in the second one until a file is there.
GOES_ON = """
import os, pathlib, signal, sys, time

def stopped(number, frame):
    print("saved", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, stopped)
print("waiting", os.environ["RANK"], flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.02)
"""


@contextlib.contextmanager
def preempting_qos(cluster: Cluster, mode: str) -> Iterator[None]:
    """Have jobs of the QOS `urgent` preempt those of `normal`, which have 15 s of grace."""
    sacctmgr = ("sacctmgr", "-i")
    cluster.run(*sacctmgr, "modify", "qos", "normal", "set", f"PreemptMode={mode}", "GraceTime=15")
    cluster.run(*sacctmgr, "add", "qos", "urgent", "set", "Preempt=normal", "Priority=100", check=False)
    cluster.run(*sacctmgr, "modify", "user", "root", "set", "qos+=urgent")
    wait_until(
        lambda: (
            "urgent" in cluster.run("scontrol", "show", "assoc_mgr", "flags=qos").stdout
            and f"PreemptMode={mode}" in cluster.run("scontrol", "show", "assoc_mgr", "flags=qos").stdout
        ),
        "the controller knows the QOS",
        otherwise=lambda: cluster.run("scontrol", "show", "assoc_mgr", "flags=qos").stdout,
    )
    try:
        yield
    finally:
        cluster.run(*sacctmgr, "modify", "qos", "normal", "set", "PreemptMode=cluster", "GraceTime=0")


@pytest.mark.variant(of="test_a_preempted_run_goes_on_however_slurm_preempts")
@pytest.mark.mirrored
@pytest.mark.parametrize("mode", ["REQUEUE", "CANCEL"])
def test_a_run_that_another_qos_preempts_goes_on(accounted_door: Door, accounted: Cluster, mode: str) -> None:
    write_job(accounted_door, GOES_ON, nodes="2", workers="1")
    with preempting_qos(accounted, mode):
        run = accounted_door.submit("job.yaml")
        wait_for_ranks(run, 2)
        urgent = accounted.submit("--qos=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
        try:
            accounted.wait_for_job(urgent, "RUNNING", within_s=90)
            shown = json.loads(accounted_door.run("status", run.job_id, "--json").stdout)
            assert shown["state"] == "REQUEUED", shown
        finally:
            accounted.run("scancel", urgent)
        wait_for_ranks(run, 2, attempt=2)
        accounted_door.write("go", "")
        result = assert_over(run, "SUCCEEDED", 0)
    assert (result["attempts"], result["restarts"]) == (2, 0), run.story()
    assert [run.stdout(1, rank).split()[-1] for rank in range(2)] == ["saved", "saved"], run.story()
    story = " ".join(accounted_door.run("explain", run.job_id).stdout.split())
    assert "allocation 1 ended because Slurm took the job's nodes for another job" in story
