"""What `tests/pythons.py` says of Pythons that cannot be used."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import pythons


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, in an empty checkout and without pyenv."""
    for name in ("constraints.txt", "pyproject.toml"):
        shutil.copy(pythons.REPOSITORY / name, tmp_path)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(pythons, "REPOSITORY", tmp_path)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


def test_a_python_that_makes_no_environment_fails_alone(programs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As Debian's own does without python3-venv."""
    python = programs / "python3.10"
    python.write_text("#!/bin/sh\necho 'ensurepip is not available' >&2\nexit 1\n")
    python.chmod(0o755)
    assert pythons.main(["--only", "3.10", "3.13"]) == 1
    told = capfd.readouterr()
    assert f"Python 3.10: no environment could be made with {python}" in told.out
    assert f"Python 3.13: {pythons.MISSING}" in told.out
    assert "ensurepip is not available" in told.err


def test_no_python_at_all_is_a_failure(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pythons.main(["--only", "3.12"]) == 1
    assert "Python 3.12: missing" in capsys.readouterr().out
