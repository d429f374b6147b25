"""What the tests' own way to the command does for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Door
from tests.without_torch import hide_torch

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("script", "is_hidden"), [("trainer", True), ("saver", False)])
def test_runs_of_a_script_in_plain_python_find_no_torch(tmp_path: Path, script: str, is_hidden: bool) -> None:
    """Each of their nodes would import it twice; that half of what such a run takes is easily overlooked."""
    project = tmp_path / "project"
    project.mkdir()
    door = Door(project, {"PATH": "/usr/bin"})
    door.write("job.yaml", f"entrypoint: {{script: {REPOSITORY}/tests/soak/{script}.py, args: [{project}]}}\n")
    environ = door._environ_of((*door.command, "submit", "job.yaml"))
    assert environ == (hide_torch(door.environ, tmp_path / "without-torch") if is_hidden else door.environ)
