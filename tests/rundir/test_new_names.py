"""Files that another machine has made since an NFS client looked for them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.rundir.new_names import ask_anew_in, exists, open_anew
from hpc_elastic.rundir.sample_tail import read_latest
from hpc_elastic.rundir.store import find_json, read_json_anew, read_lines
from tests.nfs_client import NfsClient

SAMPLE = {"time_ns": 1}


def opened(path: str) -> bool:
    try:
        os.close(open_anew(path, os.O_RDONLY))
    except FileNotFoundError:
        return False
    return True


def listed(path: str) -> bool:
    ask_anew_in(os.path.dirname(path))
    return os.path.exists(path)


LOOKS: dict[str, Callable[[str], bool]] = {
    "exists": exists,
    "open_anew": opened,
    "ask_anew_in": listed,
    "find_json": lambda path: find_json(path) is not None,
    "read_json_anew": lambda path: read_json_anew(path) is not None,
    "read_lines": lambda path: bool(list(read_lines(path))),
    "read_latest": lambda path: read_latest(path) is not None,
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_file_is_found_that_was_looked_for_before_another_machine_made_it(
    look: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = NfsClient(str(tmp_path), monkeypatch)
    path = tmp_path / "samples.jsonl"
    assert not LOOKS[look](str(path))
    with client.written_elsewhere():
        path.write_text(json.dumps(SAMPLE) + "\n")
    assert not path.exists()
    assert LOOKS[look](str(path))


@pytest.mark.parametrize("look", [exists, opened])
def test_a_file_is_found_whose_folders_were_absent_too(
    look: Callable[[str], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = NfsClient(str(tmp_path), monkeypatch)
    path = tmp_path / "attempts" / "0001" / "ranks" / "00000" / "error.json"
    assert not look(str(path))
    with client.written_elsewhere():
        path.parent.mkdir(parents=True)
        path.touch()
    assert not path.exists()
    assert look(str(path))


def test_a_name_without_a_folder_is_looked_for_where_the_process_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not exists("name")
    (tmp_path / "name").touch()
    assert exists("name")
