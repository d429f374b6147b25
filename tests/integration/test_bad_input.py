"""Everything that can be wrong before and under a run, through the real command: one message, the right exit code."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.agent.records import retries
from tests.integration.conftest import REPOSITORY, Door
from tests.tiers import variants

pytestmark = pytest.mark.local

BAD_JOBS = sorted((REPOSITORY / "tests" / "job" / "bad").glob("*.yaml"))
JOB = "name: probe\nsite: local\ntime: 10m\nentrypoint: {script: train.py}\n"
EXTENDS = '{% extends "local/job.sh.j2" %}\n'
BROKEN_TEMPLATES = {
    "unclosed block": (EXTENDS + "{% block before %}\necho {{ name\n", "mine.sh.j2:3: "),
    "unknown variable": (EXTENDS + "{% block before %}\necho {{ acount }}\n{% endblock %}", "'acount' is undefined"),
    "unknown block": (EXTENDS + "{% block lunch %}{% endblock %}", "did you mean launch?"),
    "no launch": (EXTENDS + "{% block launch %}\ntrue\n{% endblock %}", "starts no agent"),
    "inside quotes": (EXTENDS + '{% block before %}\necho "{{ name }}"\n{% endblock %}', "inside double quotes"),
    "unknown parent": ('{% extends "locl/job.sh.j2" %}', "no template locl/job.sh.j2"),
}


def write_job(door: Door, more: str = "", *, script: str = "print('trained')\n") -> None:
    door.write("train.py", script)
    door.write("job.yaml", JOB + more)


def assert_nothing_made(door: Door) -> None:
    assert not (door.folder / "hpc-elastic-runs").exists()
    assert door.run("list", "--json").stdout == "[]\n"


def assert_one_message(door: Door, *arguments: str, exit_code: int, says: str, lines: int = 2) -> str:
    """A refusal: nothing on standard output, a few lines on standard error, the right exit code."""
    done = door.run(*arguments, exit_code=exit_code)
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if not line.startswith("no site named")]
    assert said[0].startswith("hpc-elastic: error: "), done.stderr
    assert says in done.stderr
    assert len(said) <= lines, done.stderr
    return done.stderr


@pytest.mark.parametrize(  # each of these files is refused in tests/job too, without a command
    "path",
    [
        *BAD_JOBS[::25],
        *variants(*sorted({*BAD_JOBS} - {*BAD_JOBS[::25]}), of="test_a_bad_job_file_is_refused_by_every_verb"),
    ],
    ids=lambda path: path.stem,
)
def test_a_bad_job_file_is_refused_by_every_verb(door: Door, path: Path) -> None:
    says = [line.removeprefix("# says: ") for line in path.read_text().splitlines() if line.startswith("# says: ")]
    door.write("job.yaml", path.read_text())
    done = door.run("submit", "job.yaml", "--site", "local", exit_code=3)
    assert done.stdout == ""
    for line in says:
        assert line in done.stderr
    assert_nothing_made(door)


def test_all_problems_are_told_at_once_in_good_yaml_of_the_other_kind(door: Door) -> None:
    write_job(door, "restart: {max_restarts: 1.10}\nresources: {exclusive: on}\nstart: no\nlog_level: off\n")
    done = door.run("check", "job.yaml", exit_code=3)
    for line, key in ((5, "restart.max_restarts"), (6, "resources.exclusive"), (7, "start"), (8, "log_level")):
        assert f"job.yaml:{line}: {key}: " in done.stderr


def test_scalars_that_only_yaml_1_1_misreads_arrive_as_they_were_written(door: Door) -> None:
    args = "[on, no, 12:00:00, 012345, 1.10, 1e-3, 0x1f, null, ~, 1_000, 2026-11-20, .5, y]"
    door.write("train.py", "import os, sys\nprint(sys.argv[1:], os.environ['ANSWER'])\n")
    door.write(
        "job.yaml",
        "site: local\nname: probe\ntime: 12:00:00\nenv: {ANSWER: no}\nentrypoint:\n  script: train.py\n"
        f"  args: {args}\n",
    )
    done = door.run("check", "job.yaml")
    assert "12:00:00" in done.stdout
    assert "train.py on no 12:00:00 012345 1.10 1e-3 0x1f" in done.stdout


@pytest.mark.parametrize(
    "case",
    ["no launch", *variants(*sorted({*BROKEN_TEMPLATES} - {"no launch"}), of="test_a_broken_template_is_refused")],
)
def test_a_broken_template_is_refused(door: Door, case: str) -> None:
    text, says = BROKEN_TEMPLATES[case]
    write_job(door, "template: ./mine.sh.j2\n")
    door.write("mine.sh.j2", text)
    for verb in ("check", "render", "submit"):
        assert_one_message(door, verb, "job.yaml", exit_code=3, says=says)
    assert_nothing_made(door)


def test_a_job_file_that_is_not_there_or_no_text_is_refused(door: Door) -> None:
    assert_one_message(door, "submit", "nowhere.yaml", exit_code=2, says="nowhere.yaml")
    (door.folder / "binary.yaml").write_bytes(b"\x80\x81\xff")
    assert_one_message(door, "submit", "binary.yaml", exit_code=3, says="UTF-8")
    assert_one_message(door, "submit", ".", exit_code=2, says="directory")
    assert_nothing_made(door)


def test_an_unknown_site_is_refused(door: Door) -> None:
    write_job(door)
    assert_one_message(door, "submit", "job.yaml", "--site", "locl", exit_code=3, says="did you mean local?", lines=3)
    assert_one_message(door, "submit", "job.yaml", "--site", "./no.yaml", exit_code=3, says="no.yaml", lines=3)
    assert_nothing_made(door)


def test_a_site_file_on_the_command_line_is_relative_to_the_current_directory(door: Door) -> None:
    (door.folder / "jobs").mkdir()
    door.write("jobs/train.py", "")
    door.write("jobs/job.yaml", JOB)
    door.write("mine.yaml", "name: mine\ncontact: me\nlast_checked: 2026-11-20\nscheduler: local\n")
    assert "mine (local)" in door.run("check", "jobs/job.yaml", "--site", "./mine.yaml").stdout
    door.write("jobs/job.yaml", JOB.replace("site: local", "site: ../mine.yaml"))
    assert "mine (local)" in door.run("check", "jobs/job.yaml").stdout


def test_a_run_directory_that_cannot_be_written_is_refused(door: Door) -> None:
    write_job(door)
    door.write("file", "")
    assert_one_message(door, "submit", "job.yaml", "--run-dir", "file", exit_code=5, says="file")
    assert_one_message(door, "submit", "job.yaml", "--run-dir", "file/run", exit_code=5, says="file")
    assert_one_message(door, "submit", "job.yaml", "--run-dir", "/proc/run", exit_code=5, says="/proc/run")
    assert_one_message(door, "submit", "job.yaml", "--run-dir", ".", exit_code=5, says="is not empty")
    assert_nothing_made(door)


# Slurm as a few programs on PATH.


def fake_slurm(door: Door, sbatch: str) -> None:
    programs = door.folder.parent / "bin"
    programs.mkdir()
    for name, body in {"sbatch": sbatch, "sinfo": "echo debug", "squeue": "exit 1", "sacct": "exit 1"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o700)
    door.environ["PATH"] = f"{programs}:{door.environ['PATH']}"


@pytest.mark.parametrize(
    ("sbatch", "says"),
    [
        ("echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1", "invalid partition specified: gpu"),
        ("echo Welcome to the cluster", "Welcome to the cluster"),
        ("kill -9 $$", "sbatch"),
        *variants(
            ("exit 3", "sbatch"),
            ("echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1", "Unable to contact"),
            of="test_what_slurm_refuses_is_said_in_its_words_and_leaves_nothing",
        ),
        (r"printf '\377\376 error\033[31m\n' >&2; exit 1", "sbatch"),
    ],
)
def test_what_slurm_refuses_is_said_in_its_words_and_leaves_nothing(door: Door, sbatch: str, says: str) -> None:
    write_job(door)
    fake_slurm(door, sbatch)
    said = assert_one_message(door, "submit", "job.yaml", "--site", "generic-slurm", exit_code=4, says=says, lines=3)
    assert "\033" not in said  # nor anything else that steers a terminal
    assert_nothing_made(door)


def test_a_named_slurm_without_its_programs_is_slurms_error(door: Door) -> None:
    write_job(door)
    empty = door.folder.parent / "empty"
    empty.mkdir()
    door.environ["PATH"] = str(empty)
    assert_one_message(door, "submit", "job.yaml", "--site", "generic-slurm", exit_code=4, says="sbatch")
    assert_nothing_made(door)


# A shell's start that leaves no script.


@pytest.mark.parametrize(
    "line",
    ["exec true", *variants("exit 0", of="test_a_bash_env_that_takes_the_place_of_the_script_is_named")],
)
def test_a_bash_env_that_takes_the_place_of_the_script_is_named(line: str, door: Door) -> None:
    write_job(door)
    start = door.write("start.sh", f"{line}\n")
    door.environ["BASH_ENV"] = str(start)
    run = door.submit("job.yaml", wait=True, exit_code=3)
    told = run.result()["cause"]
    assert told.startswith(f"the job ended with exit code 0 and its script never began: {start}, which BASH_ENV names")
    assert "env -u BASH_ENV" in json.loads(door.run("explain", run.job_id, "--json").stdout)["advice"][0]
    assert "and its script never began" in door.run("run", "train.py", exit_code=3).stderr
    run.assert_records_valid()


# A disk that is full.


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root and a machine that allows it")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    with (folder / "ballast").open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def test_a_disk_that_is_full_at_submission_is_one_message_and_leaves_nothing(door: Door, disk: Path) -> None:
    write_job(door)
    fill(disk)
    run_dir = ["--run-dir", str(disk / "run")]
    assert_one_message(door, "submit", "job.yaml", *run_dir, exit_code=5, says="No space left on device")
    assert [path.name for path in disk.iterdir()] == ["ballast"]
    assert door.run("list", "--json").stdout == "[]\n"


@pytest.mark.parametrize(
    "ending", ["fails", *variants("succeeds", of="test_a_disk_that_gets_full_ends_the_run_with_5_and_says_so")]
)
def test_a_disk_that_gets_full_ends_the_run_with_5_and_says_so(door: Door, disk: Path, ending: str) -> None:
    waits = """
import os, sys, time
print("waiting", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
sys.exit(open("go").read() == "fails")
"""
    write_job(door, "nodes: 2\nworkers_per_node: 1\n", script=waits)
    run = door.submit("job.yaml", "--run-dir", str(disk / "run"))
    for rank in (0, 1):
        run.wait_for_output("waiting", rank=rank)
    fill(disk)
    (door.folder / "new").write_text(ending)
    (door.folder / "new").rename(door.folder / "go")
    # An agent tries each of these for so long: the record of its node, the claim or the result, its node's last record.
    run.assert_nothing_left(within_s=3 * retries.FOR_S + 60)
    for path in run.path.rglob("*"):  # a minute later: an agent might still have been about to write the result
        os.utime(path, (0, 0))
    # As long as nothing can be written, the end is known to those who ask, and that it could not be written.
    unwritten = f"the result could not be written: cannot write {run.layout.result}: No space left on device"
    assert unwritten in door.run("logs", run.job_id, "--follow").stderr
    shown = json.loads(door.run("status", run.job_id, "--json").stdout)
    assert (shown["state"], shown["exit_code"], shown["attempts"], shown["between"]) == ("FAILED", 5, 1, None)
    assert "No space left on device" in shown["cause"]
    assert unwritten in shown["note"]
    assert json.loads(door.run("explain", run.job_id, "--json").stdout)["advice"][-1].startswith("free some space")
    assert not Path(run.layout.result).exists()
    (disk / "ballast").unlink()
    written = json.loads(door.run("status", run.job_id, "--json").stdout)
    assert (written["state"], written["exit_code"], written["cause"]) == ("FAILED", 5, shown["cause"])
    assert written["note"] is None
    run.assert_records_valid()


@pytest.mark.variant(of="test_a_disk_that_gets_full_ends_the_run_with_5_and_says_so")
def test_cancel_on_a_disk_that_got_full_ends_the_run_with_success(door: Door, disk: Path) -> None:
    write_job(door, script="import time\nprint('waiting', flush=True)\ntime.sleep(3600)\n")
    run = door.submit("job.yaml", "--run-dir", str(disk / "run"))
    run.wait_for_output("waiting")
    fill(disk)
    done = door.run("cancel", run.job_id)
    assert "probe ended: CANCELLED" in done.stdout
    assert f"cannot write {run.layout.requests}: No space left on device; only the scheduler is told" in done.stderr
    assert f"cannot write {run.layout.result}: No space left on device" in done.stderr
    run.assert_nothing_left(within_s=0)
