"""The repetition of ranks' output in the agent's log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.agent.tee import LONGEST_LINE, Tee


def teed(capfdbinary: pytest.CaptureFixture[bytes]) -> list[bytes]:
    return capfdbinary.readouterr().out.splitlines()


def test_each_line_says_who_wrote_it(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / "out").write_text("one\ntwo\n")
    (tmp_path / "err").write_text("three\n")
    Tee({str(tmp_path / "out"): "[node1:0] ", str(tmp_path / "err"): "[node1:0] "}).close()
    assert sorted(teed(capfdbinary)) == [b"[node1:0] one", b"[node1:0] three", b"[node1:0] two"]


def test_a_line_that_comes_in_parts_is_one_line(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    path = tmp_path / "out"
    tee = Tee({str(path): "> "})
    with open(path, "wb", buffering=0) as file:  # a file that appears late
        for part in (b"be", b"gin\nmid", b"dle\nen", b"d"):
            file.write(part)
            os.fsync(file.fileno())
    tee.close()
    assert teed(capfdbinary) == [b"> begin", b"> middle", b"> end"]


def test_a_line_without_an_end_is_cut(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / "out").write_bytes(b"x" * (5 * LONGEST_LINE))
    Tee({str(tmp_path / "out"): ""}).close()
    lines = teed(capfdbinary)
    assert sum(map(len, lines)) == 5 * LONGEST_LINE
    assert max(map(len, lines)) <= 2 * LONGEST_LINE


def test_bytes_that_are_no_text_pass_unchanged(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / "out").write_bytes(b"\xff\xfe\r50%\r100%\n")
    Tee({str(tmp_path / "out"): "> "}).close()
    assert capfdbinary.readouterr().out == b"> \xff\xfe\r50%\r100%\n"


def test_a_file_that_never_comes_is_no_trouble(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    Tee({str(tmp_path / "never"): "> "}).close()
    assert teed(capfdbinary) == []
