"""What an agent finds out about its node and its job before it joins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.agent.node.preparation import JobTies, examine_job, examine_node
from hpc_elastic.plan.launch_plan import StatePlan
from hpc_elastic.plan.roles import EntrypointPlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.allocation import Allocation
from tests.plans import make_run_plan


def a_place(node_id: int, *, nodes: int = 512, is_local: bool = False) -> Allocation:
    names = tuple(f"node{number}" for number in range(nodes))
    return Allocation(job_id="7", restart_count=0, array_task=None, node_id=node_id, nodes=names, is_local=is_local)


def test_of_512_agents_four_ask_the_controller_and_not_the_batch_scripts() -> None:
    asked: list[int] = []

    def can_end_job(number: int) -> bool:
        asked.append(number)
        return True

    ties = [
        examine_job(a_place(number), {}, can_end_job=lambda _, number=number: can_end_job(number))  # type: ignore[misc]
        for number in range(512)
    ]
    assert asked == [1, 2, 3, 4]
    assert [number for number, each in enumerate(ties) if each.can_end_job] == asked


@pytest.mark.parametrize(
    ("addresses", "node_id", "launch_node"),
    [
        (("10.9.0.1", "192.0.2.7"), 1, "node0"),
        (("10.9.0.1",), 1, ""),  # it runs on a login node
        ((), 1, ""),  # the name server is silent
        (("192.0.2.7",), 5, ""),  # thousands do not ask a name server at once
    ],
)
def test_few_agents_find_out_whether_srun_runs_on_the_first_node(
    addresses: tuple[str, ...], node_id: int, launch_node: str
) -> None:
    """Should it be lost before its agent has joined, nobody else could tell that the batch script is lost."""
    environ = {"SLURM_LAUNCH_NODE_IPADDR": "192.0.2.7"}
    names: list[str] = []

    def find(name: str) -> tuple[str, ...]:
        names.append(name)
        return addresses

    ties = examine_job(a_place(node_id), environ, can_end_job=lambda _: False, find_addresses=find)
    assert ties == JobTies(launch_node=launch_node)
    assert names == ["node0"] * (node_id == 1)


@pytest.mark.parametrize("node_id", [0, 1])
def test_on_this_machine_nobody_asks(node_id: int) -> None:
    def fail(_: str) -> bool:
        raise AssertionError("there is nobody to ask")

    assert examine_job(a_place(node_id, nodes=2, is_local=True), {}, can_end_job=fail) == JobTies()


def test_a_node_without_the_directory_of_the_run_to_begin_with_cannot_take_part_before_the_first_attempt(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").touch()
    entrypoint = EntrypointPlan(kind="script", target=str(tmp_path / "train.py"), args=())
    other = tmp_path / "other"
    plan = make_run_plan(str(tmp_path / "run"), entrypoint=entrypoint, workdir=str(tmp_path))
    plan = replace(plan, state=StatePlan(load_from=str(other)))

    def problem() -> str | None:
        return examine_node(plan, a_place(0, nodes=1, is_local=True), {}).problem

    assert problem() == f"state.load_from {other} is not a directory on this node"
    other.mkdir()
    assert problem() is None
    other.rmdir()
    claim = Path(RunLayout(plan.run_dir).claim(1))
    claim.parent.mkdir(parents=True)
    claim.touch()
    assert problem() is None, "the run goes on with its own states"
