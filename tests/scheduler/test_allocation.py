"""A node's place, from environments as Slurm 22.05 gives them to a step."""

from __future__ import annotations

import pytest

from hpc_elastic.errors import AllocationError
from hpc_elastic.scheduler.registry import derive_allocation

# Captured with `srun env` on Slurm 22.05.8, 2 nodes of a job of 4; the batch script's variables are there too.
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOBID": "7",
    "SLURM_JOB_NODELIST": "node[1-4]",
    "SLURM_NODELIST": "node[1-4]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_NNODES": "4",
    "SLURM_TASKS_PER_NODE": "1(x4)",
    "SLURM_STEP_NODELIST": "node[2-3]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_LAUNCH_NODE_IPADDR": "10.77.0.1",
}


def test_the_step_decides_not_the_job() -> None:
    place = derive_allocation(STEP)
    assert (place.job_id, place.node_id, place.nodes, place.node) == ("7", 1, ("node2", "node3"), "node3")
    assert (place.restart_count, place.array_task, place.is_local) == (0, None, False)


@pytest.mark.parametrize(
    ("address", "switch"),
    [("", ""), ("node3", ""), ("leaf2.node3", "leaf2"), ("tl[0-1].leaf2.node3", "tl[0-1].leaf2"), ("b01.node3", "b01")],
)
def test_the_switch_is_the_topology_address_without_the_node(address: str, switch: str) -> None:
    step = STEP | ({"SLURM_TOPOLOGY_ADDR": address} if address else {})
    assert derive_allocation(step).switch == switch


def test_one_node_has_no_multiplier() -> None:
    step = {"SLURM_STEP_NODELIST": "node1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
    assert derive_allocation({**STEP, **step, "SLURM_NODEID": "0"}).nodes == ("node1",)


def test_a_requeued_array_task_says_so() -> None:
    array = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}  # the last task to start has the array's number
    place = derive_allocation({**STEP, "SLURM_RESTART_COUNT": "2", **array})
    assert (place.restart_count, place.array_task, place.job_id) == (2, 3, "7_3")


def test_a_task_of_an_array_of_ours_is_named_as_such() -> None:
    array = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3", "HPC_ELASTIC_ARRAY_MARK": "7"}
    place = derive_allocation({**STEP, **array})
    assert place.job_id == "5_3"


def test_a_job_that_was_submitted_inside_of_a_task_is_no_task() -> None:
    """It inherits SLURM_ARRAY_*, and would be taken for the job that submitted it."""
    array = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3", "HPC_ELASTIC_ARRAY_MARK": "6"}
    place = derive_allocation({**STEP, **array})
    assert place.job_id == "7"


@pytest.mark.parametrize(
    ("tasks", "per_node"), [("4", "2(x2)"), ("3", "2,1"), ("2", "2(x1)"), ("1", "1(x2)"), ("4", "1(x2)")]
)
def test_other_than_one_task_a_node_is_rejected(tasks: str, per_node: str) -> None:
    step = {**STEP, "SLURM_STEP_NUM_TASKS": tasks, "SLURM_STEP_TASKS_PER_NODE": per_node}
    with pytest.raises(AllocationError, match=r"tasks on 2 nodes .* expected one a node") as caught:
        derive_allocation(step)
    assert caught.value.tip is not None
    assert "--ntasks-per-node=1" in caught.value.tip


def test_a_batch_script_without_a_step_is_rejected() -> None:
    batch = {name: value for name, value in STEP.items() if "STEP" not in name}
    with pytest.raises(AllocationError, match="not started by srun"):
        derive_allocation(batch)


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("SLURM_NODEID", "2", "SLURM_NODEID is 2, but the step has 2 nodes: node2, node3"),
        ("SLURM_NODEID", "x", "SLURM_NODEID is 'x', expected a number"),
        ("SLURM_NODEID", "-1", "expected a number"),
        ("SLURM_NODEID", "²", "expected a number"),
        ("SLURM_STEP_NODELIST", "node[1-", "SLURM_STEP_NODELIST cannot be read"),
    ],
)
def test_a_damaged_environment_is_rejected(name: str, value: str, match: str) -> None:
    with pytest.raises(AllocationError, match=match):
        derive_allocation({**STEP, name: value})


def test_a_step_without_a_node_id_is_rejected() -> None:
    with pytest.raises(AllocationError, match="SLURM_NODEID is None"):
        derive_allocation({name: value for name, value in STEP.items() if name != "SLURM_NODEID"})


LOCAL = {"HPC_ELASTIC_LOCAL_JOB_ID": "local-1-2", "HPC_ELASTIC_LOCAL_NODE_ID": "1", "HPC_ELASTIC_LOCAL_NODES": "3"}


def test_the_local_backend_names_nodes_and_addresses() -> None:
    place = derive_allocation(LOCAL)
    assert (place.node, place.nodes, place.is_local) == ("local1", ("local0", "local1", "local2"), True)
    assert [place.local_address(number) for number in range(2)] == ["127.0.0.2", "127.0.0.3"]


def test_the_local_backend_inside_a_slurm_allocation_is_local() -> None:
    assert derive_allocation({**STEP, **LOCAL}).is_local


def test_a_local_node_that_is_not_there_is_rejected() -> None:
    with pytest.raises(AllocationError, match="HPC_ELASTIC_LOCAL_NODE_ID is 3, but there are 3 local nodes"):
        derive_allocation({**LOCAL, "HPC_ELASTIC_LOCAL_NODE_ID": "3"})
