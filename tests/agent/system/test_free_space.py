"""File systems are measured, and one that hangs does not hold the agent."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hpc_elastic.agent.system.free_space import FreeSpaceProbe


def test_each_file_system_is_measured_and_a_missing_one_left_out(tmp_path: Path) -> None:
    probe = FreeSpaceProbe({"here": str(tmp_path), "nowhere": str(tmp_path / "missing")})
    (space,) = probe.measure(10)
    assert space.place == "here"
    assert 0 <= space.free <= space.total


def test_a_file_system_that_hangs_is_left_out_and_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers, asked, real = threading.Event(), [], os.statvfs

    def hang(path: str) -> os.statvfs_result:
        asked.append(path)
        if path == "hung":
            answers.wait(60)
        return real(tmp_path)

    monkeypatch.setattr(os, "statvfs", hang)
    probe = FreeSpaceProbe({"hung": "hung", "well": "well"})
    try:
        assert [space.place for space in probe.measure(0.2)] == ["well"]
        assert [space.place for space in probe.measure(0.2)] == ["well"]
        assert asked.count("hung") == 1
    finally:
        answers.set()
