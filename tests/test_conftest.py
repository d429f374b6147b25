"""What `tests/conftest.py` promises: who runs on which Slurm, what may not skip, and that nothing is left."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import memory_folder, remains, slurm_choice

REPOSITORY = Path(__file__).parents[1]
# A session of its own, whose tests need no Slurm to skip, fail or pass.
TESTS = """
import pytest

@pytest.fixture
def slurm_session(slurm_version):
    return slurm_version

@pytest.mark.every_slurm
def test_words(slurm_session): print("words on", slurm_session)

@pytest.mark.mirrored
def test_mirrored(slurm_session): print("mirrored on", slurm_session)

@pytest.mark.local
def test_here(): print("with agents here")

def test_other(slurm_session): print("other on", slurm_session)

def test_without(): print("without")
"""


def run_session(
    folder: Path, text: str, *options: str, required: str = "0", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Runs pytest on one file, below the project's conftest and settings."""
    (folder / "test_it.py").write_text(text)
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-c", "pyproject.toml"]
    return subprocess.run(
        [*command, *options, str(folder / "test_it.py")],
        cwd=REPOSITORY,
        env={**os.environ, slurm_choice.REQUIRED: required, **environ},
        capture_output=True,
        text=True,
    )


@pytest.mark.long
@pytest.mark.parametrize(("required", "outcome"), [("0", "1 skipped"), ("1", "1 failed")])
def test_skipped_slurm_test_is_a_failure_if_slurm_is_required(tmp_path: Path, required: str, outcome: str) -> None:
    text = "import pytest\n@pytest.mark.slurm\ndef test_it(): pytest.skip('no Slurm here')\n"
    done = run_session(tmp_path, text, required=required)
    assert outcome in done.stdout
    assert "no Slurm here" in done.stdout
    assert done.returncode == int(required)


@pytest.mark.long
@pytest.mark.parametrize(("required", "outcome"), [("24.11", "1 skipped, 1 error"), ("24.11,26.05", "2 errors")])
def test_skipped_slurm_test_is_a_failure_on_a_version_that_is_required(
    tmp_path: Path, required: str, outcome: str
) -> None:
    text = (
        "import pytest\n@pytest.mark.every_slurm\ndef test_it(slurm_version, slurm_session): pass\n"
        "@pytest.fixture\ndef slurm_session(): pytest.skip('no Slurm here')\n"
    )
    done = run_session(tmp_path, text, "--slurm", "24.11,26.05", required=required)
    assert outcome in done.stdout, done.stdout
    assert f"skipped although {slurm_choice.REQUIRED}={required}" in done.stdout
    assert done.returncode == 1


@pytest.mark.long
def test_a_test_that_boots_another_version_itself_may_skip_unless_that_one_is_required(tmp_path: Path) -> None:
    text = (
        "import pytest\n"
        "@pytest.mark.parametrize('version', ['24.11', '26.05'])\n"
        "def test_it(version, slurm_session): pytest.skip('no such Slurm')\n"
        "@pytest.fixture\ndef slurm_session(slurm_version): pass\n"
    )
    done = run_session(tmp_path, text, "--slurm", "22.05,24.11", required="22.05,24.11")
    assert "1 failed, 1 skipped" in done.stdout, done.stdout


@pytest.mark.long
def test_a_skip_is_a_failure_if_the_test_has_cleared_the_environment(tmp_path: Path) -> None:
    text = (
        "import pytest\n@pytest.mark.slurm\ndef test_it(monkeypatch):\n"
        f"    monkeypatch.delenv('{slurm_choice.REQUIRED}')\n    pytest.skip('no Slurm here')\n"
    )
    done = run_session(tmp_path, text, required="1")
    assert f"skipped although {slurm_choice.REQUIRED}=1" in done.stdout, done.stdout
    assert "1 failed" in done.stdout


@pytest.mark.long
def test_a_test_of_cgroups_may_skip_although_its_slurm_is_required(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.slurm\n@pytest.mark.cgroups\ndef test_it(): pytest.skip('no cgroups here')\n"
    done = run_session(tmp_path, text, required="1")
    assert "1 skipped" in done.stdout, done.stdout
    assert done.returncode == 0


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the tests printed, one after the other."""
    lines = [line.lstrip(".") for line in done.stdout.splitlines()]
    return [line for line in lines if line.split(" ")[0] in ("words", "mirrored", "other", "with", "without")]


@pytest.mark.long
def test_the_first_slurm_runs_all_and_the_others_what_is_marked(tmp_path: Path) -> None:
    done = run_session(tmp_path, TESTS, "--slurm", "26.05,24.11")
    # One version after the other, then what has agents here, and what has neither last.
    first, second = (["words on 26.05", "mirrored on 26.05", "other on 26.05"], ["words on 24.11", "mirrored on 24.11"])
    assert said(done) == [*first, *second, "with agents here", "without"], done.stdout + done.stderr


@pytest.mark.long
def test_what_is_mirrored_is_a_variant_on_all_but_the_first_slurm(tmp_path: Path) -> None:
    done = run_session(tmp_path, TESTS, "--slurm", "24.11,26.05", "-m", "slurm and not variant")
    expected = ["words on 24.11", "mirrored on 24.11", "other on 24.11", "words on 26.05"]
    assert said(done) == expected, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("chosen", "expected"),
    [("24.11,26.05", ["words on 24.11", "other on 24.11"]), ("26.05", ["other on 26.05"])],
    ids=["after another", "alone"],
)
def test_what_is_not_for_a_slurm_is_not_there_and_no_skip(tmp_path: Path, chosen: str, expected: list[str]) -> None:
    text = (
        "import pytest\n@pytest.fixture\ndef slurm_session(slurm_version): return slurm_version\n"
        "@pytest.mark.every_slurm(but=('26.05',))\ndef test_words(slurm_session): print('words on', slurm_session)\n"
        "def test_other(slurm_session): print('other on', slurm_session)\n"
    )
    done = run_session(tmp_path, text, "--slurm", chosen, required=chosen)
    assert said(done) == expected, done.stdout + done.stderr
    assert (done.returncode, "skipped" in done.stdout, "1 deselected" in done.stdout) == (0, False, True), done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("expression", "imports"),
    [("not long and not local", False), ("local", True), ("not slurm", True), ("not local or long", True), ("", True)],
)
def test_a_file_is_imported_unless_a_mark_of_all_its_tests_is_left_out(
    tmp_path: Path, expression: str, imports: bool
) -> None:
    text = "import pytest\nprint('imported')\npytestmark = pytest.mark.local\ndef test_it(): pass\n"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "test_more.py").write_text(text)
    done = run_session(tmp_path, "", str(tmp_path), "-m", expression)
    assert ("imported" in done.stdout) == imports, done.stdout + done.stderr


@pytest.mark.long
def test_a_session_that_leaves_a_process_fails_and_names_it(tmp_path: Path) -> None:
    # It has said something, so that /proc knows its environment; and it does not hold this session's standard output.
    text = (
        "import subprocess, sys\n"
        "def test_it():\n"
        "    global process\n"
        "    command = [sys.executable, '-c', 'import time; print(flush=True); time.sleep(60)']\n"
        "    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)\n"
        "    process.stdout.readline()\n"
        "    process.stdout.close()\n"
        "    process.returncode = 0\n"
    )
    done = run_session(tmp_path, text, "-o", "ends_within_s=1")
    try:
        assert "1 passed" in done.stdout
        assert "the tests left processes behind" in done.stdout
        assert "time.sleep(60)" in done.stdout
        assert done.returncode == 1
    finally:
        for line in done.stdout.splitlines():
            if line.endswith("time.sleep(60)"):
                os.kill(int(line.split()[0]), 9)


@pytest.mark.long
def test_what_tests_start_ignores_no_signal_although_the_session_does(tmp_path: Path) -> None:
    text = (
        "import subprocess\n"
        "def test_it():\n"
        "    done = subprocess.run(['bash', '-c', 'trap \"echo trapped\" HUP INT; kill -HUP $$; kill -INT $$'])\n"
    )
    command = f"trap '' HUP INT; exec {sys.executable} -m pytest -q -s -p no:cacheprovider -c pyproject.toml"
    (tmp_path / "test_it.py").write_text(text)
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    done = subprocess.run(
        ["bash", "-c", f"{command} {tmp_path}/test_it.py"],
        cwd=REPOSITORY,
        env={**os.environ, slurm_choice.REQUIRED: "0"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.count("trapped") == 2, done.stdout + done.stderr


def test_versions_are_numbers_and_each_is_there_once() -> None:
    assert slurm_choice.parse_versions("own", own="22.05") == ["22.05"]
    assert slurm_choice.parse_versions("own,24.11", own="24.11") == ["24.11"]
    assert slurm_choice.parse_versions("24.11,own", own=None) == ["24.11", "own"]
    assert slurm_choice.parse_versions("own", own="23.11") == ["23.11"]


@pytest.mark.parametrize("text", ["23.02", "", "own,", "own, 24.11", "latest"])
def test_versions_reject_what_no_sandbox_can_run(text: str) -> None:
    with pytest.raises(slurm_choice.ChoiceError, match=r"there are own, 22\.05, 24\.11, 26\.05"):
        slurm_choice.parse_versions(text, own="22.05")


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", []), ("0", []), ("1", ["22.05"]), ("1,24.11", ["22.05", "24.11"]), ("24.11", ["24.11"])],
)
def test_required_versions_are_those_of_the_variable(value: str, expected: list[str]) -> None:
    assert slurm_choice.parse_required({slurm_choice.REQUIRED: value}, own="22.05") == expected
    assert slurm_choice.parse_required({}, own="22.05") == []


def test_a_required_version_on_which_nothing_runs_is_refused() -> None:
    slurm_choice.check(["22.05", "24.11"], ["24.11"])
    with pytest.raises(slurm_choice.ChoiceError, match=r"names 24\.11, and --slurm does not: 22\.05"):
        slurm_choice.check(["22.05"], ["24.11"])


def test_a_process_is_found_by_the_mark_of_its_session() -> None:
    # Until a program's own code runs, /proc may show no environment.
    command = [sys.executable, "-c", "print(flush=True); input()"]
    environ = {**os.environ, remains.MARK: "mine"}
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        assert process.pid in remains.processes_of("mine")
        assert process.pid not in remains.processes_of("min")
        process.stdin.write(b"\n")
        process.stdin.close()


def test_what_is_left_on_a_machine_is_listed(tmp_path: Path) -> None:
    before = remains.listing()
    left = Path("/dev/shm", f"left-by-{tmp_path.name}-{os.getpid()}")
    left.touch()
    try:
        assert f"file {left}" in set(remains.listing()) - set(before)
    finally:
        left.unlink()


def test_files_of_any_name_are_listed_on_a_line_each(tmp_path: Path) -> None:
    left = Path("/dev/shm", f"left-by-{tmp_path.name}-{os.getpid()}-" + os.fsdecode(b"\xff\nx"))
    left.touch()
    try:
        command = [sys.executable, "-m", "tests.remains"]
        listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()
        assert [line for line in listed if line.endswith(f"{os.getpid()}-\\udcff\\nx")]
        assert sorted(listed) == listed
    finally:
        left.unlink()


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="who is not root mounts nothing")
def test_folders_of_tests_are_in_memory_and_end_with_the_session(tmp_path: Path) -> None:
    (tmp_path / "folders").mkdir()
    before = remains.listing()
    failing = "def test_it(tmp_path): (tmp_path / 'left').touch(); assert not tmp_path"  # its folder stays, on a disk
    environ = {"TMPDIR": str(tmp_path / "folders"), memory_folder.OF_A_TEST: ""}
    done = run_session(tmp_path, failing, "-m", "not local and not slurm", **environ)
    assert "1 failed" in done.stdout
    is_possible = subprocess.run(["unshare", "--mount", "true"]).returncode == 0
    is_possible = is_possible and memory_folder.available_bytes() >= memory_folder.NEEDED_BYTES
    found = [*(tmp_path / "folders" / f"pytest-of-{getpass.getuser()}").rglob("left")]
    assert (found == []) is is_possible
    assert [line for line in remains.listing() if line.startswith("mount") and line not in before] == []


@pytest.mark.long
def test_a_session_that_names_a_folder_has_those_of_its_tests_there(tmp_path: Path) -> None:
    failing = "def test_it(tmp_path): (tmp_path / 'left').touch(); assert not tmp_path"
    done = run_session(
        tmp_path, failing, "-m", "not slurm", f"--basetemp={tmp_path / 'mine'}", **{memory_folder.OF_A_TEST: ""}
    )
    assert "1 failed" in done.stdout
    assert len([*(tmp_path / "mine").rglob("left")]) == 1


@pytest.mark.long
def test_a_session_that_may_try_a_slurm_has_the_folders_of_its_tests_on_a_disk(tmp_path: Path) -> None:
    (tmp_path / "folders").mkdir()
    failing = "def test_it(tmp_path): (tmp_path / 'left').touch(); assert not tmp_path"
    environ = {"TMPDIR": str(tmp_path / "folders"), memory_folder.OF_A_TEST: ""}
    assert "1 failed" in run_session(tmp_path, failing, **environ).stdout
    assert len([*(tmp_path / "folders").rglob("left")]) == 1


@pytest.mark.long
@pytest.mark.parametrize("processes", ["0", "1"])
def test_why_a_test_has_failed_is_told_before_the_next_one_if_asked_for(tmp_path: Path, processes: str) -> None:
    text = """
def test_first(): raise ValueError("the reason")

def test_next(): print("next one")
"""
    options = ("-vv", "-n", processes, "--dist", "loadfile")
    told, kept = (run_session(tmp_path, text, *options, *more).stdout for more in (("--tell-at-once",), ()))
    assert told.index("test_first has failed:") < told.index("ValueError: the reason") < told.index("::test_next")
    assert kept.index("::test_next") < kept.index("ValueError: the reason")
