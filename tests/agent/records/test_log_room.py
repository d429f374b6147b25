"""Room for an agent's last words."""

from __future__ import annotations

import os
from pathlib import Path

from hpc_elastic.agent.records.log_room import reserve_room


def test_room_is_set_aside_behind_the_end_and_the_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "node1.out"
    path.write_text("a line\n")
    with path.open("a") as file:
        assert reserve_room(file.fileno(), 64 * 1024)
        file.write("another one\n")
    assert path.read_text() == "a line\nanother one\n"
    assert path.stat().st_blocks * 512 >= 64 * 1024


def test_what_is_no_file_does_without_room() -> None:
    reading, writing = os.pipe()
    try:
        assert not reserve_room(writing)
        assert not reserve_room(-1)
    finally:
        os.close(reading)
        os.close(writing)
