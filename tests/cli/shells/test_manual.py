"""The manual page: complete, and read by `man` without a warning."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from hpc_elastic.cli.shells.grammar import all_verbs, read_verbs, spelled
from hpc_elastic.cli.shells.manual import manual_page
from hpc_elastic.cli.verbs import EXIT_CODES


@cache
def page() -> str:
    return manual_page(read_verbs(), version="0.1.0", date="2026-01-31")


def plain(text: str) -> str:
    for escape, character in (("\\-", "-"), ("\\(aq", "'"), ("\\(ti", "~"), ("\\fB", ""), ("\\fR", ""), ("\\e", "\\")):
        text = text.replace(escape, character)
    return text


def test_the_page_has_every_verb_option_and_exit_code() -> None:
    text = plain(page())
    for verb in all_verbs():
        section = text.partition(f".SS hpc-elastic {verb.name} ")[2].partition("\n.SS ")[0]
        assert section, verb.name
        for option in verb.options:
            assert all(name in section for name in spelled(option)), option.names
    assert all(line in text for line in EXIT_CODES.splitlines()[1:])


def test_no_line_of_the_page_is_a_request_by_mistake() -> None:
    requests = {line.split()[0] for line in page().splitlines() if line.startswith((".", "'"))}
    assert requests <= {".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".BR", ".nf", ".fi", ".sp"}


@pytest.mark.long
@pytest.mark.parametrize(
    "command", [["mandoc", "-Tlint", "-Wstyle"], ["groff", "-ww", "-man", "-Tutf8"]], ids=["mandoc", "groff"]
)
def test_man_shows_the_page_without_a_warning(command: list[str], tmp_path: Path) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    path = tmp_path / "hpc-elastic.1"
    path.write_text(page())
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert command[0] != "mandoc" or done.stdout == ""
