"""The Prometheus text file is replaced whole, and what is wrong with it is said once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hpc_elastic.agent.records.textfile import Textfile


def replaced(path: str, *texts: str, environ: dict[str, str] | None = None) -> list[str]:
    """What is said while these texts are put there, one after the other."""
    said: list[str] = []
    textfile = Textfile(path, environ or {}, said.append)
    for text in texts:
        textfile.replace(text)
    return said


def test_file_has_the_last_text_and_nothing_is_beside_it(tmp_path: Path) -> None:
    assert replaced("${FOLDER}/a$$b.prom", "one\n", "two\n", environ={"FOLDER": str(tmp_path)}) == []
    assert [path.name for path in tmp_path.iterdir()] == ["a$b.prom"]
    assert (tmp_path / "a$b.prom").read_text() == "two\n"


def test_file_can_be_read_by_who_collects_it(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        replaced(str(tmp_path / "x.prom"), "one\n")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x.prom").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{}/missing/x.prom", "metrics.textfile: there is no folder {}/missing on this node"),
        ("{}/${{NOWHERE}}/x.prom", "metrics.textfile: ${{NOWHERE}} is not set on this node"),
        ("{}/folder", "metrics.textfile: cannot write {}/folder: Is a directory"),
    ],
)
def test_what_is_wrong_is_said_once(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    (said,) = replaced(path.format(tmp_path), "one\n", "two\n")
    assert said.startswith(message.format(tmp_path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]
