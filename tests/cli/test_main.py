"""Dispatch, help, errors and exit codes, and what each verb may import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from hpc_elastic.cli.verbs import MODULES
from tests.observe.builders import RunBuilder

Capture = pytest.CaptureFixture[str]
HEAVY = {"torch", "yaml", "jinja2", "pydantic", "rich", "asyncio", "subprocess", "hpc_elastic.rundir.records"}


def command(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hpc_elastic", *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_help_is_shown_on_standard_output(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {verb} " in text for verb in MODULES)
    assert max(map(len, text.splitlines())) <= 80


def test_help_is_shown_and_is_a_usage_error_if_there_is_no_verb(capsys: Capture) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().out


@pytest.mark.parametrize("verb", MODULES)
@pytest.mark.parametrize("columns", ["40", "200"])
def test_help_of_a_verb_fits_and_has_an_example(
    verb: str, columns: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert f"  hpc-elastic {verb}" in text


def test_help_verb_is_the_same_as_help_option(capsys: Capture) -> None:
    assert main(["help", "logs"]) == 0
    assert capsys.readouterr().out.startswith("usage: hpc-elastic logs")


@pytest.mark.parametrize(
    ("arguments", "message", "tip"),
    [
        (["stauts"], "there is no verb 'stauts'", "did you mean `hpc-elastic status`?"),
        (["frobnicate"], "there is no verb 'frobnicate'", "the verbs are submit, run,"),
        (["job.yaml"], "job.yaml is not a verb", "did you mean `hpc-elastic submit job.yaml`?"),
        (["submit"], "the following arguments are required: job.yaml", "`hpc-elastic submit --help`"),
        (["submit", "nothing.yaml"], "there is no job file nothing.yaml", "give the path"),
        (["submit", "job.yaml", "--wait", "--follow"], "not allowed with argument", "--help"),
        (["submit", "job.yaml", "--dry"], "unrecognized arguments: --dry", "--help"),
        (["submit", "job.yaml", "--folow"], "unrecognized arguments: --folow", "did you mean --follow?"),
        (["run", "--folow", "train.py"], "unrecognized arguments: --folow", "`hpc-elastic run --help` lists"),
        (["run", "--rdzv-end", "a:1", "train.py"], "arguments: --rdzv-end", "did you mean --rdzv-endpoint?"),
        (["run", "--standalon", "train.py"], "arguments: --standalon", "did you mean --standalone?"),
        (["logs", "digits", "more", "--folow"], "arguments: more --folow", "did you mean --follow?"),
        (["status", "--watch"], "unrecognized arguments: --watch", "did you mean hpc-elastic watch?"),
        (["logs", "--atempt=2"], "unrecognized arguments: --atempt=2", "did you mean --attempt?"),
        (["list", "--xyzzy"], "unrecognized arguments: --xyzzy", "tip: `hpc-elastic list --help`"),
        (["submit", "train.py"], "train.py is a Python script, expected a job file", "`hpc-elastic run train.py`"),
        (["check", "my run.py"], "my run.py is a Python script", "`hpc-elastic run 'my run.py'`"),
        (["run", "--rdzv_backend=c10d", "train.py"], "--rdzv_backend is an option of torchrun", "run directory"),
        (["run", "--master-port", "29500", "train.py"], "--master-port is an option of torchrun", "free port"),
        (["status"], "there is no run yet", "hpc-elastic submit job.yaml"),
        (["status", "never"], "no run 'never'", "`hpc-elastic list`"),
        (["logs", "--rank", "-1"], "--rank: '-1' is no rank and no range of ranks", "`--rank 3,7-9`"),
        (["logs", "--rank", "x"], "--rank: 'x' is no rank and no range of ranks", "`--rank 3,7-9`"),
        (["list", "-n", "0"], "--number is 0, expected 1 or more", ""),
        (["run", "missing.py"], "there is no script missing.py", "-m runs a module"),
        (["run", "--nodes", "two", "train.py"], "--nodes is 'two', expected a number or MIN:MAX", "2:4"),
        (["run", "job.yaml", "--epochs"], "stands after the job file", "--set entrypoint.args"),
    ],
)
def test_bad_usage_is_one_clear_message(arguments: list[str], message: str, tip: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("hpc-elastic: error: ")
    assert message in captured.err
    assert tip in captured.err
    assert "Traceback" not in captured.err + captured.out
    assert captured.err.count("error:") == 1


@pytest.mark.parametrize(
    ("path", "message"),
    [("./nowhere", "there is no directory"), (".", "is not a run directory: there is no plan.json")],
)
def test_path_that_is_no_run_is_refused(path: str, message: str, capsys: Capture) -> None:
    assert main(["status", path]) == 5
    assert message in capsys.readouterr().err


def test_internal_error_is_short_and_its_traceback_comes_on_demand(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODULES, "status", "no_such_module")
    assert main(["status"]) == 70
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("HPC_ELASTIC_DEBUG", "1")
    assert main(["status"]) == 70
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.long
def test_closed_pipe_is_no_error(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).write_rank(1, 0, "epoch\n" * 200_000).end()
    for verb in ("logs", "status"):
        line = f'set -o pipefail; {sys.executable} -m hpc_elastic {verb} "{run.layout.root}" | head -n 1'
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["status", "--json"], ["explain", "--json"], ["explain"], ["logs"], ["status"], ["list"]]
)
def test_quick_verbs_import_little(arguments: list[str], tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).write_rank(1, 0, "epoch 1\n").end()
    argv = [*arguments, run.layout.root] if arguments[0] in ("status", "explain", "logs") else arguments
    code = (
        "import sys, json; before = set(sys.modules); from hpc_elastic.cli.main import main; code = main(sys.argv[1:]);"
        "json.dump(sorted(set(sys.modules) - before), sys.stderr); sys.exit(code)"
    )
    if arguments == ["list"]:
        code = code.replace("json.dump", "print(file=sys.stderr); json.dump")
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True, timeout=60)
    imported = set(json.loads(done.stderr.splitlines()[-1]))
    assert "hpc_elastic.cli.main" in imported
    assert imported & HEAVY == set()


@pytest.mark.parametrize("verb", ["submit", "run", "render", "check"])
def test_help_of_planning_verbs_imports_little(verb: str) -> None:
    done = command(verb, "--help", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "hpc_elastic.cli.main" in imported
    assert imported & {"torch", "yaml", "jinja2", "pydantic", "rich", "asyncio"} == set()


def test_version_is_the_packages(capsys: Capture) -> None:
    from hpc_elastic import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"hpc-elastic {__version__}\n"
