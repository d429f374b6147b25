"""`hpc-elastic init`: a job file of a few answers, or of an old script; nothing is written over, and nothing half."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.cli.main import main

Capture = pytest.CaptureFixture[str]
OLD = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --time=30
srun torchrun --nproc-per-node=2 --max-restarts=1 train.py
python eval.py
"""


def test_a_script_s_job_file_passes_the_check(workplace: Path, capsys: Capture) -> None:
    os.remove("job.yaml")
    assert main(["init", "train.py", "--nodes", "2", "--workers-per-node", "4", "--account", "abc"]) == 0
    assert "hpc-elastic check" in capsys.readouterr().err
    text = (workplace / "job.yaml").read_text()
    assert "# how many nodes" in text
    assert "account: abc" in text
    assert main(["check", "job.yaml"]) == 0
    assert "workers a node 4" in capsys.readouterr().out


def test_a_script_s_job_file_passes_the_check_whatever_its_name_is(workplace: Path) -> None:
    (workplace / "my train (2).py").write_text("")
    (workplace / "old (2).sbatch").write_text(OLD.replace("train.py", "'my train (2).py'"))
    assert main(["init", "my train (2).py", "-o", "one.yaml"]) == 0
    assert main(["init", "--from", "old (2).sbatch", "-o", "two.yaml"]) == 0
    assert main(["check", "one.yaml"]) == main(["check", "two.yaml"]) == 0


def test_an_old_script_s_job_file_passes_the_check(workplace: Path, capsys: Capture) -> None:
    (workplace / "old.sbatch").write_text(OLD)
    assert main(["init", "--from", "old.sbatch", "-o", "new.yaml"]) == 0
    found = capsys.readouterr().err.splitlines()
    assert found[0].startswith("old.sbatch:5: not carried over: python eval.py: ")
    assert main(["check", "new.yaml"]) == 0
    assert "nodes          2" in capsys.readouterr().out


def test_a_file_that_is_there_is_not_written_over(workplace: Path, capsys: Capture) -> None:
    before = (workplace / "job.yaml").read_text()
    assert main(["init", "train.py"]) == 2
    assert "job.yaml is there already" in capsys.readouterr().err
    assert (workplace / "job.yaml").read_text() == before
    assert main(["init", "train.py", "--force"]) == 0
    assert (workplace / "job.yaml").read_text() != before


def test_standard_input_and_output(workplace: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(OLD.encode())))
    assert main(["init", "--from", "-", "-o", "-"]) == 0
    out = capsys.readouterr()
    assert "script: train.py" in out.out
    assert out.err.startswith("standard input:5: not carried over: ")
    assert sorted(os.listdir()) == ["job.yaml", "train.py"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--from", "missing.sbatch"], 3, "missing.sbatch: No such file or directory"),
        (["--from", "."], 3, ".: Is a directory"),
        (["--from", "binary"], 3, "binary: expected a batch script, found bytes that are no UTF-8 text"),
        (["--from", "train.py"], 3, "train.py: no command that starts a training was found"),
        (
            ["--from", "train.py", "--nodes", "2"],
            2,
            "--from takes all of the job from the script; found nodes beside it",
        ),
        (["train.py", "--nodes", "many"], 3, "nodes: "),
        (["train.py", "--time", "soon"], 3, "time: expected a duration"),
        ([], 2, "there is no script, and no terminal to ask for it"),
        (["train.py", "-o", "train.py/job.yaml"], 3, "train.py/job.yaml"),
    ],
)
def test_bad_input_is_one_message(
    arguments: list[str],
    code: int,
    message: str,
    workplace: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (workplace / "binary").write_bytes(b"\xff\xfe\x00")
    os.remove("job.yaml")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(["init", *arguments]) == code
    found = capsys.readouterr().err
    assert message in found
    assert "Traceback" not in found
    assert not (workplace / "job.yaml").exists()


@pytest.mark.long
def test_at_a_terminal_it_asks(workplace: Path) -> None:
    os.remove("job.yaml")
    controller, terminal = pty.openpty()
    os.write(controller, b"train.py\n3\n\n2h\nabc\n\n")
    asked = subprocess.run(
        [sys.executable, "-m", "hpc_elastic", "init"], stdin=terminal, capture_output=True, text=True, timeout=60
    )
    os.close(controller)
    os.close(terminal)
    assert asked.returncode == 0, asked.stderr
    assert "ranks a node (auto: one for each GPU) [auto]: " in asked.stderr
    text = (workplace / "job.yaml").read_text()
    assert "nodes: 3" in text
    assert "workers_per_node: auto" in text
    assert "account: abc" in text
    assert "partition" not in text
