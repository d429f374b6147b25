"""What happens otherwise in a schedule than at another revision is shown, and fails the record."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import against, recorded
from tests.simulation.draws.kinds import KINDS
from tests.simulation.world import SimulatedRun

pytestmark = pytest.mark.long

SENTENCE = "every rank exited 0"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository whose one commit is the code as it is."""
    for folder in against.FOLDERS:
        shutil.copytree(against.REPOSITORY / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-c", "user.name=ada", "-c", "user.email=ada@example.org", "-C", str(tmp_path)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Add the code"]):
        subprocess.run([*git, *words], check=True)
    return tmp_path


def differs(checkout: Path, seed: int) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "tests.simulation.against", "HEAD", "--seed", str(seed)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    ended = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert not ended.stderr
    return ended.returncode, ended.stdout.splitlines()


def test_what_happens_otherwise_is_shown_and_nothing_else(checkout: Path) -> None:
    assert differs(checkout, 14) == (0, [""])
    module = checkout / "hpc_elastic" / "agent" / "policy.py"
    assert SENTENCE in module.read_text()
    module.write_text(module.read_text().replace(SENTENCE, "no rank failed"))
    code, lines = differs(checkout, 14)
    taken, added = (
        [line for line in lines if line.startswith(sign) and not line.startswith((3 * sign, f"{sign}trace"))]
        for sign in "-+"
    )
    assert code == 1
    assert added
    assert [line.replace(SENTENCE, "no rank failed")[1:] for line in taken] == [line[1:] for line in added]


def test_a_schedule_in_which_only_another_word_is_said_differs_from_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SimulatedRun(KINDS["any"](1))
    run.play()
    assert recorded.difference("any", 1, run) is None
    moment, who, what = run.events[-1]
    run.events[-1] = moment, who, f"{what} and more"
    assert recorded.difference("any", 1, run) == recorded.SAME_COST
