"""The vendors' GPU tools, played by programs on PATH."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.agent.node.gpu_usage import MOST_FAILURES, GpuTool, parse_amd, parse_nvidia
from hpc_elastic.rundir.records import GpuSample

MIB = 1024 * 1024


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return tmp_path


def make_tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_nvidia_s_lines_are_read_also_where_a_value_is_missing() -> None:
    assert parse_nvidia("0, 97, 71000, 81559\n1, [N/A], 0, 81559\n") == (
        GpuSample(index=0, busy_percent=97.0, memory_used=71000 * MIB, memory_total=81559 * MIB),
        GpuSample(index=1, busy_percent=None, memory_used=0, memory_total=81559 * MIB),
    )


def test_amd_s_object_is_read() -> None:
    text = (
        '{"card0": {"GPU use (%)": "12", "VRAM Total Memory (B)": "2048", "VRAM Total Used Memory (B)": "1024"},'
        ' "system": {"Driver version": "6"}}'
    )
    assert parse_amd(text) == (GpuSample(index=0, busy_percent=12.0, memory_used=1024, memory_total=2048),)


def test_the_tool_on_path_is_asked(folder: Path) -> None:
    make_tool(folder, "nvidia-smi", "echo 0, 5, 1, 2")
    assert GpuTool(pytest.fail).ask() == (GpuSample(index=0, busy_percent=5.0, memory_used=MIB, memory_total=2 * MIB),)


@pytest.mark.long
@pytest.mark.parametrize(("script", "within_s"), [("exit 9", 60), ("echo no such device", 60), ("exec sleep 60", 1)])
def test_a_tool_that_fails_is_not_asked_for_ever(folder: Path, script: str, within_s: float) -> None:
    make_tool(folder, "nvidia-smi", f"echo asked >>{folder}/asked\n{script}")
    said: list[str] = []
    tool = GpuTool(said.append, within_s=within_s)
    for _ in range(MOST_FAILURES + 2):
        assert tool.ask() == ()
    assert (folder / "asked").read_text().count("asked") == MOST_FAILURES
    (line,) = said
    assert line.startswith("nvidia-smi failed (")
    assert tool.pids() == []
