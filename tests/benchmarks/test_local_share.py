"""The benchmark of workers that share a machine's cores, run small; its figures are no matter of a test."""

from __future__ import annotations

import pytest

from benchmarks.local_share import NODES, ONE, TORCHRUN, measure, table
from hpc_elastic.agent.node.cpus import cores_of_this_process


@pytest.mark.variant(of="test_a_benchmark_runs_small")
@pytest.mark.local
def test_two_nodes_train_beside_one_process_with_as_many_threads() -> None:
    report = measure(1, 1, accumulate=2, warm_up=1, cases=(ONE, TORCHRUN, NODES))
    half = max(1, cores_of_this_process() // 2)
    assert [(case["case"], case["threads"], case["n"]) for case in report["cases"]] == [
        (ONE, half, 1),
        (TORCHRUN, half, 2),
        (NODES, half, 2),
    ]
    assert len(table(report)) == 5


def test_the_table_has_the_ratio_and_where_it_lies() -> None:
    row = {"case": "two nodes", "threads": 4, "n": 20, "median": 3.144, "least": 3.0, "most": 4.0}
    several = {**row, "to_one_process": [1.094, 1.05, 1.15]}
    assert table({"cases": [several]})[2:] == ["| two nodes | 4 | 20 | 3.14 | 3.00 | 4.00 | 1.09 (1.05 to 1.15) |"]
    few = {**row, "to_one_process": [1.094, None, None]}
    assert table({"cases": [few]})[2:] == ["| two nodes | 4 | 20 | 3.14 | 3.00 | 4.00 | 1.09 |"]
