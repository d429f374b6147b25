"""The tutorials do what their pages say, with the files and commands that the pages show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.integration.conftest import Door

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorial"


def fences(page: str, language: str) -> list[str]:
    """The blocks of a language on a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", (TUTORIALS / page).read_text(), re.M | re.S)


def commands(page: str) -> list[list[str]]:
    """Our commands in the transcripts of a page, in their order."""
    lines = [line for text in fences(page, "console") for line in text.splitlines()]
    return [shlex.split(line)[2:] for line in lines if line.startswith("$ hpc-elastic ")]


def shown(page: str, command: list[str]) -> str:
    """What a page shows below a command of ours."""
    asked = f"$ hpc-elastic {' '.join(command)}\n"
    return next(text.rpartition(asked)[2] for text in fences(page, "console") if asked in text).partition("\n$ ")[0]


def labels(output: str) -> list[str]:
    """The words before the values in an output of two columns."""
    return re.findall(r"^ {0,2}([a-z][a-z ]{0,13}[a-z]) +(?! ).", output, re.M)


@pytest.mark.local
def test_the_first_run_fails_once_and_goes_on_as_its_page_says(door: Door) -> None:
    page = "first-run.md"
    (mistaken,) = fences(page, "text")
    check, _, submit, status, logs, script, *_ = commands(page)
    (door.folder / "train.py").write_text(fences(page, "python")[0])
    (door.folder / "job.yaml").write_text(mistaken)
    refused = door.run(*check, exit_code=3)
    assert refused.stderr in "".join(fences(page, "console"))
    (door.folder / "job.yaml").write_text(fences(page, "yaml")[0])
    checked = door.run(*check).stdout
    assert "job.yaml is fine" in checked
    on_page = fences(page, "console")[1].partition("job.yaml is fine")[2]
    assert labels(on_page) == labels(checked.partition("job.yaml is fine")[2])
    done = door.run(*submit)
    told = done.stdout + done.stderr
    assert "attempt 2: 4 workers on 2 nodes (local0, local1); restart 1 of 2; after: rank 1 on local0 failed" in told
    assert [re.sub(" loss .*", "", line) for line in done.stdout.splitlines() if line.startswith("step")] == [
        f"step {step}:" for step in (20, 40, 60, 80, 100)
    ]
    stood = door.run(*status).stdout
    assert "restarts       1 of 2" in stood
    assert labels(shown(page, status)) == labels(stood)
    assert "RuntimeError: a cosmic ray" in door.start(*logs).communicate(timeout=60)[1]
    assert "restarting all ranks" in door.run(*script).stdout


@pytest.mark.slurm
@pytest.mark.variant(of="test_a_preempted_run_goes_on_however_slurm_preempts")
def test_the_first_requeue_goes_on_as_its_page_says(slurm_door: Door) -> None:
    page = "first-requeue.md"
    submit, status = commands(page)
    (slurm_door.folder / "train.py").write_text(fences(page, "python")[0])
    (slurm_door.folder / "job.yaml").write_text(fences(page, "yaml")[0])
    done = slurm_door.run(*submit, timeout_s=280)
    resumed = [int(step) for step in re.findall(r"^start at step (\d+)$", done.stdout, re.M)]
    assert resumed[0] == 0
    assert resumed == sorted(set(resumed))
    assert len(resumed) >= 2
    assert "step 300: " in done.stdout
    assert "because the job's time limit was reached" in done.stderr
    assert "restarts       0 of 3" in slurm_door.run(*status).stdout
