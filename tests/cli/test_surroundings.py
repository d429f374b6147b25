"""Encodings, locales, other users and a new home: what is wrong is named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from tests.cli.conftest import FakeSlurm
from tests.observe.builders import RunBuilder
from tests.tiers import longer

Capture = pytest.CaptureFixture[str]
REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-32"])
def test_job_file_in_another_encoding_is_told_with_its_name(workplace: Path, capsys: Capture, encoding: str) -> None:
    (workplace / "job.yaml").write_bytes((workplace / "job.yaml").read_text().encode(encoding))
    assert main(["check", "job.yaml"]) == 3
    error = capsys.readouterr().err
    assert f"error: job.yaml:1: found {encoding} text, expected UTF-8\n" in error
    assert f"iconv -f {encoding} -t UTF-8" in error


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["check", "huge"], "huge:1: expected at most 262144 characters, found more"),
        (["check", "job.yaml", "--site", "./huge.yaml"], "expected at most 262144 characters, found 262145"),
        (["init", "--from", "huge", "-o", "new.yaml"], "huge: expected a batch script of at most 1 MiB of text"),
    ],
)
def test_file_that_is_far_too_large_is_not_read_whole(
    workplace: Path, capsys: Capture, command: list[str], says: str
) -> None:
    for name in ("huge", "huge.yaml"):
        with open(workplace / name, "wb") as file:
            file.truncate(1 << 40)
    assert main(command) == 3
    assert says in capsys.readouterr().err


def test_byte_that_is_no_utf8_is_told_with_its_line(workplace: Path, capsys: Capture) -> None:
    (workplace / "job.yaml").write_bytes(b"name: digits\nenv: {PLACE: K\xf6ln}\n")
    assert main(["check", "job.yaml"]) == 3
    assert "error: job.yaml:2: found the byte 0xf6, expected UTF-8 text\n" in capsys.readouterr().err


def test_job_file_with_the_line_ends_of_windows_is_read(workplace: Path, capsys: Capture) -> None:
    (workplace / "job.yaml").write_bytes((workplace / "job.yaml").read_bytes().replace(b"\n", b"\r\n"))
    assert main(["check", "job.yaml", "--site", "local"]) == 0


def in_ascii(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "hpc_elastic", *arguments]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.long
@pytest.mark.parametrize("verb", ["check", "submit"])
def test_locale_without_letters_for_a_setup_line_is_fine(verb: str, workplace: Path, fake_slurm: FakeSlurm) -> None:
    with (workplace / "job.yaml").open("a", encoding="utf-8") as job:
        job.write("\nsetup: ['echo größe']\n")
    done = in_ascii(workplace, verb, "job.yaml", "--site", "generic-slurm")
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_locale_without_letters_for_the_folder_is_named(workplace: Path, fake_slurm: FakeSlurm) -> None:
    folder = workplace / "größe"
    shutil.copytree(workplace, folder, ignore=shutil.ignore_patterns("größe"))
    done = in_ascii(folder, "submit", "job.yaml", "--site", "generic-slurm")
    assert done.returncode == 3, done.stderr
    assert "the locale (LC_ALL=C, PYTHONUTF8=0) has no letters for the path" in done.stderr
    assert "export LC_ALL=C.UTF-8" in done.stderr
    assert fake_slurm.calls("sbatch") == []


@pytest.mark.long
def test_locale_without_letters_for_the_name_is_named(workplace: Path, fake_slurm: FakeSlurm) -> None:
    done = in_ascii(workplace, "submit", "job.yaml", "--site", "generic-slurm", "--set", 'name="\\u65e5\\u672c"')
    assert done.returncode == 3, done.stderr
    assert "the locale (LC_ALL=C, PYTHONUTF8=0) has no letters for the path" in done.stderr
    assert fake_slurm.calls("sbatch") == []


@pytest.mark.long
def test_run_of_a_folder_is_the_same_in_every_locale(workplace: Path, fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    folder = workplace / "größe"
    folder.mkdir()
    job = ["submit", str(workplace / "job.yaml"), "--site", "generic-slurm", "--run-dir", str(tmp_path / "run")]
    done = in_ascii(folder, *job)
    assert done.returncode == 0, done.stderr
    for done in (
        in_ascii(folder, "status"),
        subprocess.run(
            [sys.executable, "-m", "hpc_elastic", "status"], cwd=folder, capture_output=True, text=True, check=False
        ),
    ):
        assert str(tmp_path / "run") in done.stdout
        assert "no run was submitted" not in done.stderr


@pytest.fixture
def others() -> Iterator[Path]:
    """A folder that every user may enter."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def as_nobody(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Our command by another user, with an interpreter that this user may start."""
    for interpreter in (sys.executable, "/usr/bin/python3"):
        line = ["runuser", "-u", "nobody", "--", interpreter, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"]
        if subprocess.run(line, capture_output=True, check=False).returncode == 0:
            break
    else:
        pytest.skip("no interpreter that another user may start")
    return subprocess.run(
        ["runuser", "-u", "nobody", "--", interpreter, "-m", "hpc_elastic", *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.long
@pytest.mark.parametrize("verb", ["status", "logs", "cancel"])
def test_run_of_another_user_is_permission_denied(others: Path, verb: str) -> None:
    run = RunBuilder(others / "private" / "run").submit().allocate().open_attempt(1).end()
    for closed in (run.layout.root, str(others / "private")):
        done = as_nobody(verb, run.layout.root)
        assert done.returncode == 5, done.stderr
        assert f"error: {run.layout.root}: permission denied\n  tip: root may look at it, and copy" in done.stderr
        assert "all but its `secret`\n" in done.stderr
        os.chmod(closed, 0o755)
        if closed == run.layout.root:
            os.chmod(others / "private", 0o700)


@pytest.mark.long
@pytest.mark.parametrize("verb", ["status", "cancel"])
@pytest.mark.parametrize("record", ["result", *longer("plan", "submission")])
def test_record_that_may_not_be_read_is_named(others: Path, verb: str, record: str) -> None:
    run = RunBuilder(others / "run").submit().allocate().open_attempt(1).end()
    for folder, _, files in os.walk(run.layout.root):
        for path in [folder, *(os.path.join(folder, file) for file in files)]:
            shutil.chown(path, "nobody")
    path = getattr(run.layout, record)
    os.chmod(path, 0)
    done = as_nobody(verb, run.layout.root)
    assert done.returncode == 5, done.stderr
    assert f"error: {path} cannot be read: Permission denied\n" in done.stderr


@pytest.mark.long
def test_useful_time_is_not_told_by_events_that_may_not_be_read(others: Path) -> None:
    run = RunBuilder(others / "run").submit().allocate().open_attempt(1).end()
    run.note("node1", "node.joined", "node1", attempt=1)
    for folder, _, _ in os.walk(run.layout.root):
        os.chmod(folder, 0o755)
    for path in Path(run.layout.root).rglob("*"):
        path.chmod(path.stat().st_mode | 0o044)
    os.chmod(run.layout.events("node1"), 0o600)
    done = as_nobody("status", run.layout.root)
    assert done.returncode == 0, done.stderr
    told = f"useful time not known: {run.layout.events('node1')} cannot be read: Permission denied"
    assert told in " ".join(done.stdout.split())


@pytest.mark.long
def test_ranks_that_another_user_may_not_look_at_are_not_told_not_to_have_failed(others: Path) -> None:
    run = RunBuilder(others / "run").submit().allocate().open_attempt(1).write_error(1, 0).end()
    for path in Path(run.layout.root).rglob("*"):
        path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o044))
    os.chmod(run.layout.root, 0o755)
    os.chmod(run.layout.rank(1, 0), 0o700)
    done = as_nobody("logs", run.layout.root, "--failed")
    assert done.returncode == 5, done.stderr
    assert f"error: cannot read {run.layout.rank(1, 0)}: Permission denied\n  tip: it belongs to another" in done.stderr
