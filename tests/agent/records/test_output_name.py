"""The name of an agent's output where Slurm has named it by the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.agent.records.output_name import name_output
from hpc_elastic.rundir.layout import RunLayout


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    (tmp_path / "agents").mkdir()
    return RunLayout(str(tmp_path))


@pytest.fixture
def machines_output(layout: RunLayout) -> Iterator[int]:
    """The descriptor of a file that is named by the machine cn7."""
    with open(f"{layout.agents}/cn7.out", "w") as file:
        yield file.fileno()


def test_an_output_that_is_named_by_the_machine_is_found_by_the_nodes_name(
    layout: RunLayout, machines_output: int
) -> None:
    for _ in range(2):  # the job may be started again there
        name_output(layout, "node1", machines_output)
    os.write(machines_output, b"written later\n")
    assert Path(layout.agent_output("node1")).read_text() == "written later\n"
    assert sorted(os.listdir(layout.agents)) == ["cn7.out", "node1.out"]


def test_another_machine_by_the_nodes_name_is_the_one_that_is_found(layout: RunLayout, machines_output: int) -> None:
    os.symlink("cn3.out", layout.agent_output("node1"))
    name_output(layout, "node1", machines_output)
    assert os.readlink(layout.agent_output("node1")) == "cn7.out"


def test_an_output_by_the_nodes_name_stays(layout: RunLayout, machines_output: int) -> None:
    Path(layout.agent_output("node1")).write_text("of another start\n")
    name_output(layout, "node1", machines_output)
    name_output(layout, "cn7", machines_output)
    assert Path(layout.agent_output("node1")).read_text() == "of another start\n"
    assert not os.path.islink(layout.agent_output("cn7"))


def test_an_output_elsewhere_gets_no_name(layout: RunLayout, tmp_path: Path) -> None:
    with open(tmp_path / "elsewhere.out", "w") as file:
        name_output(layout, "node1", file.fileno())
    reads, writes = os.pipe()
    name_output(layout, "node1", writes)
    os.close(reads)
    os.close(writes)
    assert os.listdir(layout.agents) == []
