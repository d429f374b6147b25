"""Dumps of torch's flight recorder on a node: which are read, and what comes of a bad one."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.agent.workers import flight_records
from hpc_elastic.agent.workers.flight_records import keep_flight_records
from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.rundir.layout import RunLayout

DUMP = {
    "version": "2.10",
    "entries": [
        {
            "frames": [{"name": "step", "filename": "train.py", "line": 88}],
            "process_group": ("0", "default_pg"),
            "collective_seq_id": 7,
            "profiling_name": "nccl:all_reduce",
            "state": "started",
            "retired": False,
            "is_p2p": False,
        }
    ],
}


class Harm:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def order(folder: Path, **environment: str) -> WorkerOrder:
    return WorkerOrder(
        rank=3,
        local_rank=1,
        attempt=2,
        kind="script",
        target="train.py",
        arguments=(),
        environment=environment,
        directory=str(folder),
    )


@pytest.mark.parametrize("variable", flight_records.PREFIXES)
def test_a_dump_of_this_attempt_is_kept_as_plain_values(tmp_path: Path, variable: str) -> None:
    (tmp_path / "trace_3").write_bytes(pickle.dumps(DUMP))
    layout = RunLayout(str(tmp_path / "run"))
    os.mkdir(layout.root)
    keep_flight_records(layout, [order(tmp_path, **{variable: "trace_"})], time.time() - 60)
    found = json.loads(Path(layout.flight_record(2, 3)).read_text())
    assert (found["rank"], found["called"]) == (3, {"default_pg": 7})
    assert found["pending"][0]["operation"] == "all_reduce"


def test_a_dump_of_an_earlier_attempt_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "trace_3").write_bytes(pickle.dumps(DUMP))
    layout = RunLayout(str(tmp_path / "run"))
    keep_flight_records(layout, [order(tmp_path, TORCH_FR_DUMP_TEMP_FILE="trace_")], time.time() + 60)
    assert not os.path.exists(layout.flight_record(2, 3))


def test_a_dump_cannot_run_code(tmp_path: Path) -> None:
    (tmp_path / "trace_3").write_bytes(pickle.dumps({"entries": DUMP["entries"], "x": Harm(tmp_path / "harm")}))
    layout = RunLayout(str(tmp_path / "run"))
    keep_flight_records(layout, [order(tmp_path, TORCH_FR_DUMP_TEMP_FILE="trace_")], 0)
    assert not (tmp_path / "harm").exists()
    assert not os.path.exists(layout.flight_record(2, 3))


@pytest.mark.parametrize("content", [b"", b"x", pickle.dumps(DUMP)[:-9], b"\x80\x04" + b"]" * 100, pickle.dumps([1])])
def test_a_file_that_is_no_dump_leaves_no_record(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "trace_3").write_bytes(content)
    layout = RunLayout(str(tmp_path / "run"))
    keep_flight_records(layout, [order(tmp_path, TORCH_FR_DUMP_TEMP_FILE="trace_")], 0)
    assert not os.path.exists(layout.flight_record(2, 3))


def test_a_pipe_in_the_place_of_a_dump_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace_3")
    layout = RunLayout(str(tmp_path / "run"))
    keep_flight_records(layout, [order(tmp_path, TORCH_FR_DUMP_TEMP_FILE="trace_")], 0)
    assert not os.path.exists(layout.flight_record(2, 3))
