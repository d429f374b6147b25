"""`hpc-elastic binding`: the maps of a run's nodes, and that of this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.cli.main import main
from hpc_elastic.rundir.store import append_line
from tests.observe.builders import RunBuilder

Capture = pytest.CaptureFixture[str]
NEAR = {"local_rank": 0, "cpus": "49-55", "cores": 7, "numa_nodes": "3", "gpu": "GPU 0 (0000:c1:00.0)"}
FAR = {"local_rank": 0, "cpus": "1-7", "cores": 7, "numa_nodes": "0", "gpu": None}


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    return RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)


def tell(run: RunBuilder, node: str, *workers: dict[str, Any], threads: Any = 7) -> None:
    metadata = {"node": node, "binding": "nearest", "threads": threads, "workers": list(workers)}
    Path(run.layout.events(node)).parent.mkdir(parents=True, exist_ok=True)
    append_line(run.layout.events(node), {"name": "node.bound", "metadata": metadata})


def test_nodes_that_are_alike_share_a_map_and_the_latest_start_counts(run: RunBuilder, capsys: Capture) -> None:
    tell(run, "node1", FAR)
    for node in ("node1", "node2"):
        tell(run, node, NEAR)
    tell(run, "node3", FAR)
    assert main(["binding", run.layout.root]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2 nodes (node1, node2): nearest, 1 worker, 7 threads each",
        "  local rank 0: CPUs 49-55 (7 cores of NUMA node 3), GPU 0 (0000:c1:00.0)",
        "1 node (node3): nearest, 1 worker, 7 threads each",
        "  local rank 0: CPUs 1-7 (7 cores of NUMA node 0)",
    ]
    assert main(["binding", "--json", run.layout.root]) == 0
    found = json.loads(capsys.readouterr().out)["nodes"]
    assert [(each["nodes"], each["threads"]) for each in found] == [(["node1", "node2"], 7), (["node3"], 7)]


def test_records_of_another_kind_stop_nothing(run: RunBuilder, capsys: Capture) -> None:
    tell(run, "node1", NEAR, threads="many")
    with open(run.layout.events("node1"), "a", encoding="utf-8") as file:
        file.write('{"name": "node.bound", "metadata": {"workers": 7}}\n["node.bound"]\n{"name": "node.bound", ')
    assert main(["binding", run.layout.root]) == 0
    assert "1 node (node1): nearest, 1 worker\n" in capsys.readouterr().out


def test_a_run_that_binds_nothing_says_which_key_would(run: RunBuilder, capsys: Capture) -> None:
    assert main(["binding", run.layout.root]) == 5
    assert "`binding: nearest`" in capsys.readouterr().err


def test_this_machine_says_what_its_workers_would_have(capsys: Capture) -> None:
    assert main(["binding", "--here", "--workers", "1", "--binding", "cores"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"CPUs: {len(os.sched_getaffinity(0))} in ")
    assert "binding: cores, 1 worker, OMP_NUM_THREADS " in out
    assert main(["binding", "--here", "--workers", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workers"][0]["local_rank"] == 0


@pytest.mark.parametrize(
    "arguments", [["--workers", "2"], ["--here", "run"], ["--here", "--workers", "0"], ["--here", "--workers", "-3"]]
)
def test_it_rejects_options_that_contradict_each_other(arguments: list[str]) -> None:
    assert main(["binding", *arguments]) == 2


def test_more_workers_than_cores_are_refused_with_cores(capsys: Capture) -> None:
    workers = str(len(os.sched_getaffinity(0)) + 1)
    assert main(["binding", "--here", "--binding", "cores", "--workers", workers]) == 3
    assert "wants a core for each worker" in capsys.readouterr().err
