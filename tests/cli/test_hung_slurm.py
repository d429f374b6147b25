"""A Slurm whose controller hangs: what the run directory says is shown at once, and waiting goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from hpc_elastic.rundir.index import IndexEntry, append_entry, index_path
from tests.cli.conftest import FakeSlurm
from tests.observe.builders import TIME, RunBuilder
from tests.slurm_sandbox.cluster import Cluster
from tests.slurm_sandbox.configuration import CONTROLLER

Capture = pytest.CaptureFixture[str]
HPC_ELASTIC = [sys.executable, "-m", "hpc_elastic"]


@pytest.mark.long
@pytest.mark.parametrize("verb", [["status", "42", "--json"], ["list", "--json"]])
def test_run_directory_has_the_word_if_the_controller_hangs(
    tmp_path: Path, fake_slurm: FakeSlurm, capsys: Capture, verb: list[str]
) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    entry = IndexEntry(
        run=run.plan.run,
        name="digits",
        job_id="42",
        site="generic-slurm",
        scheduler="slurm",
        run_dir=run.layout.root,
        submitted=TIME,
    )
    append_entry(index_path(os.environ), entry)
    fake_slurm.script("squeue", "exec sleep 60")
    began = time.monotonic()
    assert main(verb) == 0
    assert time.monotonic() - began < 10
    captured = capsys.readouterr()
    shown = json.loads(captured.out)
    assert (shown if isinstance(shown, dict) else shown[0])["state"] == "RUNNING"
    assert "Slurm does not answer" in captured.out + captured.err
    assert len(fake_slurm.calls("squeue")) == 1


@pytest.mark.long
def test_status_has_slurms_word_if_a_backup_controller_answers(
    tmp_path: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    """Slurm's commands try the primary first, whose machine may have no power for days: that takes two seconds."""
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    fake_slurm.script("squeue", "sleep 2.1; echo '42|42|SUSPENDED|0|0:0|node[1-2]|None|'")
    assert main(["status", run.layout.root, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["job_state"], shown["note"]) == ("RUNNING", "SUSPENDED", None), shown


@contextmanager
def hung_controller(slurm: Cluster) -> Iterator[None]:
    """A slurmctld that does not run for a while, and keeps its connections open."""
    with open(os.path.join(slurm.layout.root, "slurmctld.pid")) as file:
        pid = file.read().strip()
    slurm.run_on(CONTROLLER, "kill", "-STOP", pid)
    try:
        yield
    finally:
        slurm.run_on(CONTROLLER, "kill", "-CONT", pid)


@pytest.mark.variant(of="test_run_directory_has_the_word_if_the_controller_hangs")
@pytest.mark.slurm
def test_status_and_wait_do_without_a_real_controller_that_hangs(workplace: Path, slurm: Cluster) -> None:
    (workplace / "train.py").write_text("import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.1)\n")
    waiting = subprocess.Popen(
        [*HPC_ELASTIC, "submit", "job.yaml", "--wait", "--site", "generic-slurm"], stderr=subprocess.PIPE, text=True
    )
    wait_for_workers(workplace)
    with hung_controller(slurm):
        for verb in (["status", "--json"], ["list", "--json"]):
            with subprocess.Popen(["squeue"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as plain:
                done = subprocess.run([*HPC_ELASTIC, *verb], capture_output=True, text=True, check=True, timeout=60)
                assert plain.poll() is None  # still waits: MessageTimeout, 10 s here
                plain.kill()
            shown = json.loads(done.stdout)
            assert (shown if isinstance(shown, dict) else shown[0])["state"] == "RUNNING"
            assert "Slurm does not answer" in done.stdout + done.stderr
        (workplace / "go").touch()
        _, error = waiting.communicate(timeout=60)
        assert waiting.returncode == 0, error
        assert "SUCCEEDED" in error


def wait_for_workers(folder: Path) -> None:
    deadline = time.monotonic() + 120
    while not list(folder.glob("hpc-elastic-runs/*/attempts/0001/ranks/*/stdout.log")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
