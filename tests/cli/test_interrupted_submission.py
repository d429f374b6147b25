"""Ctrl-C while a job is being submitted: whether there is a job, and which, is said and recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc_elastic.cli.foreground import ForegroundScheduler
from hpc_elastic.cli.main import main
from hpc_elastic.plan.launch_plan import LaunchPlan
from tests.cli.conftest import FakeSlurm

SUBMIT = [sys.executable, "-m", "hpc_elastic", "submit", "job.yaml", "--site", "generic-slurm"]
UNTIL_RELEASED = "touch asked; until [ -e go ]; do sleep 0.02; done"


def interrupt_in_sbatch(folder: Path, *options: str) -> tuple[int, str]:
    """Submits, presses Ctrl-C while sbatch runs, as a terminal does: for all of its process group."""
    process = subprocess.Popen(
        [*SUBMIT, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not (folder / "asked").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr is not None
    said = ""
    while "under way" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    (folder / "go").touch()
    _, rest = process.communicate(timeout=60)
    return process.returncode, said + rest


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["--array", "env.SEED=0..1"]])
def test_interrupt_of_a_submission_names_the_job_that_was_submitted(
    workplace: Path, fake_slurm: FakeSlurm, options: list[str]
) -> None:
    fake_slurm.script("sbatch", f"cd {workplace}; {UNTIL_RELEASED}; echo 42")
    code, error = interrupt_in_sbatch(workplace, *options)
    (run_dir,) = (workplace / "hpc-elastic-runs").iterdir()
    assert code == 130
    assert f"interrupted; submitted digits as job 42; run directory: {run_dir}" in error
    assert (run_dir / ("array.json" if options else "submission.json")).exists()
    assert main(["status", "42"]) == 0


@pytest.mark.long
def test_interrupt_of_a_submission_that_is_refused_leaves_nothing(workplace: Path, fake_slurm: FakeSlurm) -> None:
    fake_slurm.script("sbatch", f'cd {workplace}; {UNTIL_RELEASED}; echo "sbatch: error: Invalid qos" >&2; exit 1')
    code, error = interrupt_in_sbatch(workplace)
    assert code == 4
    assert "sbatch refused the job" in error
    assert not list(workplace.glob("hpc-elastic-runs/*"))


@pytest.mark.local
def test_interrupt_while_a_run_in_the_foreground_starts_stops_it(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (workplace / "train.py").write_text("import time\ntime.sleep(600)\n")
    submit = ForegroundScheduler.submit

    def submit_and_interrupt(scheduler: ForegroundScheduler, plan: LaunchPlan, script: str) -> str:
        job_id = submit(scheduler, plan, script)
        signal.raise_signal(signal.SIGINT)
        return job_id

    monkeypatch.setattr(ForegroundScheduler, "submit", submit_and_interrupt)
    assert main(["run", "--nodes", "1", "train.py"]) == 10
    assert "stopping, with grace" in capfd.readouterr().err
