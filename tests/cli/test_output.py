"""Standard output that is full or closed, and a folder that was removed: plain errors, and no job is hidden."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.cli.conftest import FakeSlurm
from tests.tiers import variants

HPC_ELASTIC = f"{shlex.quote(sys.executable)} -m hpc_elastic"
SUBMIT = f"{HPC_ELASTIC} submit job.yaml --site generic-slurm"
FULL, CLOSED = ">/dev/full", ">&-"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "target"),
    [
        ("", FULL),
        (" --json", CLOSED),
        (" --wait", CLOSED),
        (" --array env.SEED=0..1", CLOSED),
        (" --array env.SEED=0..1 --json", FULL),
        *variants(
            ("", CLOSED),
            (" --json", FULL),
            (" --wait", FULL),
            (" --array env.SEED=0..1", FULL),
            (" --array env.SEED=0..1 --json", CLOSED),
            of="test_submission_that_cannot_be_written_out_says_the_job_id_elsewhere",
        ),
    ],
)
def test_submission_that_cannot_be_written_out_says_the_job_id_elsewhere(
    workplace: Path, fake_slurm: FakeSlurm, options: str, target: str
) -> None:
    done = shell(f"{SUBMIT}{options} {target}")
    assert done.returncode == 74, done.stderr
    assert "submitted digits as job 42" in done.stderr
    assert "error: cannot write the output: " in done.stderr
    assert "internal error" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert "[Errno" not in done.stderr
    (found,) = (workplace / "hpc-elastic-runs").iterdir()
    assert str(found) in done.stderr


def without_reader(line: str) -> subprocess.CompletedProcess[str]:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        return subprocess.run(
            shlex.split(line), stdout=write_end, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    finally:
        os.close(write_end)


@pytest.mark.long
def test_submission_whose_reader_is_gone_says_the_job_id_elsewhere(fake_slurm: FakeSlurm) -> None:
    gone = without_reader(SUBMIT)
    assert (gone.returncode, gone.stderr.count("submitted digits as job 42")) == (0, 1)


@pytest.mark.long
def test_submission_whose_reader_is_gone_is_waited_for_all_the_same(fake_slurm: FakeSlurm) -> None:
    fake_slurm.script("sbatch", f"echo CANCELLED 0 None >{fake_slurm.folder}/state; echo 42")
    gone = without_reader(f"{SUBMIT} --wait")
    assert (gone.returncode, gone.stderr.count("submitted digits as job 42")) == (10, 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("verb", "target"),
    [
        ("list", FULL),
        ("list --json", CLOSED),
        ("status .", FULL),
        ("schema", CLOSED),
        ("--help", FULL),
        ("check job.yaml --site local", CLOSED),
        *variants(
            ("list", CLOSED),
            ("list --json", FULL),
            ("status .", CLOSED),
            ("schema", FULL),
            ("--help", CLOSED),
            ("check job.yaml --site local", FULL),
            of="test_output_that_cannot_be_written_is_one_plain_error",
        ),
    ],
)
def test_output_that_cannot_be_written_is_one_plain_error(
    workplace: Path, fake_slurm: FakeSlurm, verb: str, target: str
) -> None:
    assert shell(f"{SUBMIT} --run-dir run").returncode == 0
    where = "cd run && " if verb == "status ." else ""
    done = shell(f"{where}{HPC_ELASTIC} {verb} {target}")
    assert (done.returncode, done.stdout) == (74, "")
    word = {FULL: "No space left", CLOSED: "Bad file descriptor"}[target]
    assert re.fullmatch(rf"(no site named.*\n)?hpc-elastic: error: cannot write the output: {word}.*\n", done.stderr)


@pytest.mark.long
def test_standard_error_that_is_closed_costs_nothing(fake_slurm: FakeSlurm) -> None:
    done = shell(f"{SUBMIT} --dry-run 2>&-")
    assert done.returncode == 0
    assert done.stdout.startswith("#!")


@pytest.mark.long
@pytest.mark.parametrize("verb", ["submit", *variants("check", "render", of="test_folder_that_was_removed_is_named")])
def test_folder_that_was_removed_is_named(workplace: Path, fake_slurm: FakeSlurm, verb: str) -> None:
    gone = workplace / "gone"
    gone.mkdir()
    line = f"cd {gone} && rmdir {gone} && {HPC_ELASTIC} {verb} {workplace}/job.yaml --site generic-slurm"
    done = subprocess.run(
        ["bash", "-c", line],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert "the folder that this shell is in was removed" in done.stderr
    assert fake_slurm.calls("sbatch") == []


@pytest.mark.long
def test_other_verbs_do_without_a_folder(workplace: Path, fake_slurm: FakeSlurm) -> None:
    assert shell(f"{SUBMIT} --run-dir run").returncode == 0
    gone = workplace / "gone"
    gone.mkdir()
    for verb in ("list", f"status {workplace}/run", "status 42", "status"):
        gone.mkdir(exist_ok=True)
        done = shell(f"cd {gone} && rmdir {gone} && {HPC_ELASTIC} {verb}")
        assert done.returncode == 0, done.stderr
        assert "digits" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "target"),
    [
        ("", "2>/dev/full"),
        (" --json", "2>&-"),
        (" --array env.SEED=0..1", "2> >(true)"),
        *variants(
            *((options, "2>/dev/full") for options in (" --json", " --array env.SEED=0..1")),
            *((options, "2>&-") for options in ("", " --array env.SEED=0..1")),
            *((options, "2> >(true)") for options in ("", " --json")),
            of="test_job_is_recorded_although_no_warning_can_be_said",
        ),
    ],
)
def test_job_is_recorded_although_no_warning_can_be_said(
    workplace: Path, fake_slurm: FakeSlurm, options: str, target: str
) -> None:
    done = shell(f"export XDG_STATE_HOME={workplace}/train.py; {SUBMIT}{options} {target}")
    assert done.returncode == 0
    assert "42" in done.stdout
    (run_dir,) = (workplace / "hpc-elastic-runs").iterdir()
    assert (run_dir / ("array.json" if "array" in options else "submission.json")).exists()


@pytest.mark.parametrize("target", ["2>/dev/full", "2>&-"])
def test_error_that_cannot_be_said_has_its_exit_code(fake_slurm: FakeSlurm, target: str) -> None:
    assert shell(f"{HPC_ELASTIC} status nosuch {target}").returncode == 2


def in_ascii(workplace: Path, verb: str) -> str:
    """What a verb prints in a folder with letters that its output has not, after a submission there."""
    folder = workplace / "gr\u00fc\u00dfe\U0001f600"
    folder.mkdir()
    for name in ("job.yaml", "train.py"):
        shutil.copy(workplace / name, folder)
    assert shell(f"cd {folder}; {SUBMIT}").returncode == 0
    done = shell(f"cd {folder}; PYTHONIOENCODING=ascii {HPC_ELASTIC} {verb}")
    assert (done.returncode, "internal error" in done.stderr) == (0, False)
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    "verb",
    [
        "submit job.yaml --site generic-slurm",
        *variants("list", "check job.yaml --site generic-slurm", of="test_letters_that_the_output_has_not_are_escaped"),
    ],
)
def test_letters_that_the_output_has_not_are_escaped(workplace: Path, fake_slurm: FakeSlurm, verb: str) -> None:
    assert r"gr\u00fc\u00dfe\ud83d\ude00" in in_ascii(workplace, verb)


@pytest.mark.long
@pytest.mark.parametrize(
    "verb",
    [
        "submit job.yaml --site generic-slurm --json",
        *variants("status --json", of="test_letters_that_the_output_has_not_are_those_of_json"),
    ],
)
def test_letters_that_the_output_has_not_are_those_of_json(workplace: Path, fake_slurm: FakeSlurm, verb: str) -> None:
    assert "/gr\u00fc\u00dfe\U0001f600/" in json.loads(in_ascii(workplace, verb))["run_dir"]


@pytest.mark.long
def test_status_fits_a_dumb_terminal(workplace: Path, fake_slurm: FakeSlurm) -> None:
    assert shell(f"{SUBMIT} --run-dir run").returncode == 0
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "dumb"}
    command = [*shlex.split(HPC_ELASTIC), "status", "42"]
    subprocess.run(command, stdout=theirs, env=environment, check=True, timeout=60)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: all was read
        while chunk := os.read(ours, 4096):
            shown += chunk
    os.close(ours)
    lines = shown.decode().splitlines()
    assert any(line.strip() == "PENDING (Resources)" for line in lines), lines
    assert [line for line in lines if len(line) > 40 and str(workplace) not in line] == []
