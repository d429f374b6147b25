"""Whatever squeue prints, a command ends with the run directory's word or one plain error, and no run gets a result."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from hpc_elastic.errors import SchedulerError
from hpc_elastic.rundir.states import RunState
from hpc_elastic.scheduler.slurm import output
from tests.cli.conftest import FakeSlurm
from tests.observe.builders import RunBuilder
from tests.scheduler.slurm.captured import VERSIONS, captured
from tests.scheduler.slurm.fuzz import donors_of, mutate

GARBAGE = {
    "its exit code is of another kind": "echo '42|42|RUNNING|0|0:0:core|node1|None|'",
    "a wrapper says more": "echo 'Welcome!'; echo '42|42|RUNNING|0|0:0|node1|None|'",
    "it is not text": "head -c 3000 /dev/urandom",
    "it is another's job": "echo '7|7|COMPLETED|0|0:0|node1|None|'",
    "it is killed": "kill -KILL $$",
    "it is gone": 'rm "$0"; exit 127',
}


@pytest.fixture
def run(tmp_path: Path, fake_slurm: FakeSlurm) -> RunBuilder:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    Path(run.layout.stdout(1, 0)).parent.mkdir(parents=True, exist_ok=True)
    Path(run.layout.stdout(1, 0)).write_text("step 1\n")
    return run


@pytest.mark.parametrize("verb", [["status"], ["status", "--json"], ["list"], ["logs"]], ids=" ".join)
@pytest.mark.parametrize("lines", GARBAGE.values(), ids=GARBAGE.keys())
def test_says_what_the_run_directory_knows(
    run: RunBuilder, fake_slurm: FakeSlurm, capfd: pytest.CaptureFixture[str], verb: list[str], lines: str
) -> None:
    fake_slurm.script("squeue", lines)
    assert main([*verb, *([] if verb == ["list"] else [run.layout.root])]) == 0
    shown = capfd.readouterr()
    assert "internal error" not in shown.err
    assert "Traceback" not in shown.err
    if verb[0] == "status":
        assert "RUNNING" in shown.out
        assert "the state is from the run directory alone" in " ".join(shown.out.split())
    assert not Path(run.layout.result).exists()


@pytest.mark.long
def test_shows_no_traceback_and_ends_no_run_whatever_a_mutated_answer_is(
    run: RunBuilder, fake_slurm: FakeSlurm, capfd: pytest.CaptureFixture[str]
) -> None:
    dice, donors = random.Random("status"), donors_of(VERSIONS[-1])
    capture = captured(VERSIONS[-1], "queue-running")
    (job_id,) = capture.job_ids
    answer_file = fake_slurm.folder / "answer"
    fake_slurm.script("squeue", f"cat {answer_file}")
    rejected = 0
    for _ in range(60):
        answer = mutate(capture.output, dice, donors)
        told = answer.stdout.replace(f"{job_id}|{job_id}|", "42|42|", 1)
        answer_file.write_bytes(told.encode(errors="replace"))
        read = output.CommandOutput(returncode=0, stdout=told, stderr="")
        try:
            is_terminal = all(each.state.is_terminal for each in [output.parse_queue(read, ["42"])["42"]])
        except (SchedulerError, KeyError):
            is_terminal, rejected = False, rejected + 1
        assert main(["status", run.layout.root]) == 0, told
        shown = capfd.readouterr()
        assert "internal error" not in shown.err, told
        assert is_terminal or not Path(run.layout.result).exists(), told
    assert 10 < rejected < 60  # else the mutations were none, or too many to mean something


@pytest.mark.long
def test_submit_wait_goes_on_until_the_run_ends(
    run: RunBuilder, fake_slurm: FakeSlurm, workplace: Path, tmp_path: Path
) -> None:
    fake_slurm.script("squeue", f"echo >>{tmp_path}/asked; echo 'Welcome!'")
    submitting = [sys.executable, "-m", "hpc_elastic", "submit", "job.yaml", "--wait", "--site", "generic-slurm"]
    with subprocess.Popen(submitting, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        while not (tmp_path / "asked").exists():
            assert waiting.poll() is None
        (root,) = (workplace / "hpc-elastic-runs").iterdir()
        RunBuilder.at(root, "42").allocate().open_attempt(1).end(
            RunState.FAILED, exit_code=1, reason="worker_failed", cause="rank 1 failed"
        )
        _, said = waiting.communicate(timeout=60)
    assert waiting.returncode == 1
    assert "rank 1 failed" in said
    assert "Traceback" not in said
    assert said.count("squeue printed a line that cannot be read: 'Welcome!'") == 1


@pytest.mark.long
def test_cancel_ends_the_job_although_squeue_cannot_be_read(
    run: RunBuilder, fake_slurm: FakeSlurm, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunBuilder(Path(f"{run.layout.root}-short"), grace_s=-14.0).submit().allocate().open_attempt(1)
    fake_slurm.script("squeue", "echo '42|42|RUNNING|0|0:0:core|node1|None|'")
    fake_slurm.script("scancel", f"echo 'echo \"42|42|CANCELLED|0|0:15|node1|None|\"' >{fake_slurm.folder}/squeue")
    assert main(["cancel", run.layout.root]) == 0
    assert fake_slurm.calls("scancel") == ["scancel 42"]
    assert "CANCELLED" in capfd.readouterr().out
