"""What a worker sees: its whole environment and its command line."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Literal

import pytest

from hpc_elastic.agent.node.environment import (
    NodeFacts,
    worker_directory,
    worker_environment,
    worker_target,
    world_variables,
)
from hpc_elastic.agent.system.processes import agent_id
from hpc_elastic.cpu_binding import CPUS_VARIABLE
from hpc_elastic.errors import AllocationError
from hpc_elastic.membership.messages import Assign
from hpc_elastic.plan.launch_plan import LaunchPlan, NetworkPlan, ResourcesPlan
from hpc_elastic.plan.roles import EntrypointPlan
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.worker.own_variables import OWN
from tests.plans import make_role, make_run_plan

FACTS = NodeFacts(node="node2", role=make_role(), gloo_interface="eth0")
ASSIGN = Assign(
    attempt=3,
    group_rank=1,
    group_world_size=2,
    first_rank=4,
    workers=4,
    world_size=8,
    role="default",
    first_role_rank=2,
    role_world_size=6,
    master=Endpoint(address="10.0.0.1", port=25000),
    serves_store=False,
    is_failure_ignored=False,
    world_digest="d",
    head="node1",
)
STEP = {
    "PATH": "/usr/bin",
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_ARRAY_TASK_ID": "7",
    "SLURM_SUBMIT_DIR": "/home/ada",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_TASKS_PER_NODE": "1(x2)",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
    "SRUN_CPUS_PER_TASK": "4",
    "PMI_RANK": "1",
    "PMIX_RANK": "1",
    "PMI2_RANK": "1",
}


def plan(**changes: Any) -> LaunchPlan:
    return make_run_plan("/runs/my run", **changes)


def environment(plan_: LaunchPlan | None = None, base: dict[str, str] | None = None, local: int = 1) -> dict[str, str]:
    asked = plan_ or plan()
    facts = replace(FACTS, role=asked.roles[0])
    return worker_environment(base or {"PATH": "/usr/bin"}, asked, ASSIGN, facts, local)


def test_a_worker_sees_all_that_torchrun_sets_and_ours() -> None:
    assert environment(plan(role="trainer", run="run-1")) == {
        "PATH": "/usr/bin",
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "trainer",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "6",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "25000",
        "TORCHELASTIC_RUN_ID": "run-1",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_ERROR_FILE": "/runs/my run/attempts/0003/ranks/00005/error.json",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
        "RES_OPTIONS": "timeout:1 attempts:1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "HPC_ELASTIC_RUN_DIR": "/runs/my run",
        "HPC_ELASTIC_ATTEMPT": "3",
        "HPC_ELASTIC_NODE": "node2",
        "HPC_ELASTIC_AGENT": agent_id(os.getpid()),
    }


def test_with_virtual_local_rank_a_worker_has_local_rank_0_and_one_gpu() -> None:
    virtual = plan(virtual_local_rank=True)
    changed = {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "1", "HPC_ELASTIC_LOCAL_RANK": "1"}
    assert environment(virtual) == environment() | changed
    seen = {"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b,GPU-c,GPU-d"}
    assert environment(virtual, base=seen)["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    asked = plan(virtual_local_rank=True, env={"CUDA_VISIBLE_DEVICES": "4,5,6,7", "MINE": "${LOCAL_RANK}"})
    assert (environment(asked, local=3)["CUDA_VISIBLE_DEVICES"], environment(asked, local=3)["MINE"]) == ("7", "3")


def test_virtual_local_rank_takes_from_amds_own_list_which_hides_cudas() -> None:
    both = {"HIP_VISIBLE_DEVICES": "4,5,6,7", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    seen = environment(plan(virtual_local_rank=True), base=both, local=2)
    assert (seen["HIP_VISIBLE_DEVICES"], seen["LOCAL_RANK"]) == ("6", "0")


def test_the_local_rank_in_arguments_is_the_real_one_with_virtual_local_rank() -> None:
    role = make_role(entrypoint=EntrypointPlan(kind="command", target="a", args=("${LOCAL_RANK}",)))
    asked = plan(virtual_local_rank=True, roles=(role,))
    assert worker_target(asked, role, environment(asked, local=3), is_restart=False) == ("a", ["3"])


def test_virtual_local_rank_rejects_fewer_gpus_than_workers() -> None:
    with pytest.raises(AllocationError, match="CUDA_VISIBLE_DEVICES is '0,1': none for local rank 3"):
        environment(plan(virtual_local_rank=True), base={"CUDA_VISIBLE_DEVICES": "0,1"}, local=3)


def test_the_step_of_srun_python_keeps_its_own_local_ids_with_virtual_local_rank() -> None:
    asked = plan(virtual_local_rank=True, worker_env_slurm="rank")
    assert environment(asked, base=STEP, local=3)["SLURM_LOCALID"] == "3"


def test_a_worker_is_told_its_own_cpus_and_never_another_runs() -> None:
    facts = replace(FACTS, cpus=("0-1", "2-3", "4-5", "6-7"))
    assert worker_environment({}, plan(), ASSIGN, facts, 2)["HPC_ELASTIC_CPUS"] == "4-5"
    outer = {"HPC_ELASTIC_CPUS": "0", "HPC_ELASTIC_LOCAL_RANK": "5"}
    assert not outer.keys() & environment(base=outer).keys()


@pytest.mark.parametrize(("cpus", "workers", "threads"), [(8, 4, "8"), (None, 4, "1"), (None, 1, None), (2, 1, "2")])
def test_threads_are_the_workers_cpus_else_one_if_there_are_several(
    cpus: int | None, workers: int, threads: str | None
) -> None:
    assign = replace(ASSIGN, workers=workers)
    asked = plan(resources=ResourcesPlan(cpus_per_worker=cpus))
    assert worker_environment({}, asked, assign, FACTS, 0).get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "RES_OPTIONS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"]
)
def test_the_users_value_wins_over_a_default(name: str) -> None:
    assert environment(base={name: "mine"})[name] == "mine"  # a setup line exported it
    assert environment(plan(env={name: "mine"}))[name] == "mine"
    assert environment(plan(env={name: "env"}), base={name: "setup"})[name] == "env"


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT"])
def test_nobody_sets_what_makes_a_worker_part_of_its_world(name: str) -> None:
    expected = environment()[name]
    assert environment(base={name: "99"})[name] == expected
    assert environment(plan(env={name: "99"}))[name] == expected


def test_hide_takes_what_slurm_says_of_the_task_and_keeps_what_it_says_of_the_job() -> None:
    left = {name for name in environment(base=STEP) if name.startswith(("SLURM", "SRUN", "PMI"))}
    assert left == {"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_ARRAY_TASK_ID", "SLURM_SUBMIT_DIR"}


def test_keep_leaves_all_of_slurms() -> None:
    assert STEP.items() <= environment(plan(worker_env_slurm="keep"), base=STEP).items()


def test_rank_says_what_srun_would_have_said() -> None:
    seen = environment(plan(worker_env_slurm="rank"), base=STEP)
    assert (seen["SLURM_PROCID"], seen["SLURM_LOCALID"], seen["SLURM_NTASKS"]) == ("5", "1", "8")
    assert (seen["SLURM_NODEID"], seen["SLURM_NNODES"]) == ("1", "2")
    assert "SLURM_STEP_ID" not in seen


def test_what_the_local_backend_tells_the_agents_stays_with_them() -> None:
    for name in ("HPC_ELASTIC_LOCAL_NODE_ID", "HPC_ELASTIC_ARRAY_MARK"):
        assert name not in environment(base={name: "1"})


def test_nccl_gets_an_interface_only_if_the_site_says_one() -> None:
    assert "NCCL_SOCKET_IFNAME" not in environment()
    site = NetworkPlan(nccl_socket_ifname="ib0,ib1")
    assert environment(plan(network=site))["NCCL_SOCKET_IFNAME"] == "ib0,ib1"


def test_a_fork_server_watches_every_variable_that_differs_from_worker_to_worker_or_in_the_next_attempt() -> None:
    """What it keeps of one at an import, every fork would have."""
    facts = replace(FACTS, cpus=("0-1", "2-3", "4-5", "6-7"))
    moved = replace(
        ASSIGN,
        attempt=4,
        group_rank=0,
        group_world_size=3,
        first_rank=0,
        workers=3,
        world_size=9,
        first_role_rank=0,
        role_world_size=9,
        master=Endpoint(address="10.0.0.2", port=25001),
    )
    one, other = world_variables(plan(), ASSIGN, facts, 1), world_variables(plan(), moved, facts, 2)
    differ = {name for name in one if one[name] != other[name]}
    assert differ - {CPUS_VARIABLE} == OWN, "what binds a worker is ours, and read before anything is imported"


def test_debug_sets_torchs_own_variables() -> None:
    debug = environment(plan(log_level="debug"))
    assert (debug["TORCH_CPP_LOG_LEVEL"], debug["TORCH_DISTRIBUTED_DEBUG"]) == ("INFO", "DETAIL")
    assert "TORCH_DISTRIBUTED_DEBUG" not in environment()


def test_env_expands_variables_of_the_node_and_of_the_world() -> None:
    env = {"PATH": "/opt/bin:${PATH}", "TAG": "r${RANK} of $${WORLD_SIZE}"}
    seen = environment(plan(env=env))
    assert (seen["PATH"], seen["TAG"]) == ("/opt/bin:/usr/bin", "r5 of ${WORLD_SIZE}")


def test_env_rejects_a_variable_that_is_not_set() -> None:
    with pytest.raises(AllocationError, match=r"env\.DATA: \$\{SCRATCH\} is not set on this node"):
        environment(plan(env={"DATA": "${SCRATCH}/x"}))


def test_a_roles_env_stands_on_top_of_the_jobs_and_null_takes_one_away() -> None:
    trainer, reader = make_role("trainer"), make_role("reader", env={"A": "2", "B": None})
    asked = plan(roles=(trainer, reader), env={"A": "1", "B": "1", "C": "${A}"})
    found = worker_environment({"A": "0"}, asked, ASSIGN, replace(FACTS, role=reader), 0)
    assert (found["A"], found.get("B"), found["ROLE_NAME"]) == ("2", None, "reader")
    assert worker_environment({"A": "0"}, asked, ASSIGN, replace(FACTS, role=trainer), 0)["B"] == "1"


def test_what_is_wrong_with_a_role_names_its_place_in_the_list() -> None:
    bad = make_role("bad", entrypoint=EntrypointPlan(kind="script", target="a.py", args=("${NO}",)), env={"A": "${B}"})
    asked = plan(roles=(make_role("good"), bad))
    with pytest.raises(AllocationError, match=r"^roles\[1\]\.env\.A: \$\{B\} is not set"):
        worker_environment({}, asked, ASSIGN, replace(FACTS, role=bad), 0)
    with pytest.raises(AllocationError, match=r"^roles\[1\]\.entrypoint\.args\[0\]: \$\{NO\} is not set"):
        worker_target(asked, bad, {}, is_restart=False)


def target(
    kind: Literal["script", "module", "command"],
    name: str,
    *args: str,
    restart_args: tuple[str, ...] = (),
    is_restart: bool = False,
    **changes: Any,
) -> tuple[str, list[str]]:
    entrypoint = EntrypointPlan(kind=kind, target=name, args=args, restart_args=restart_args)
    asked = plan(entrypoint=entrypoint, **changes)
    return worker_target(asked, asked.roles[0], environment(asked), is_restart=is_restart)


def test_a_script_is_in_its_workdir_and_its_arguments_are_expanded() -> None:
    found = target("script", "train.py", "--rank", "${RANK}", "a $$b", workdir="/home/${HPC_ELASTIC_NODE}")
    assert found == ("/home/node2/train.py", ["--rank", "5", "a $b"])


@pytest.mark.parametrize(("kind", "name"), [("module", "pkg.train"), ("command", "./run.sh"), ("script", "/a/b.py")])
def test_a_module_a_command_and_an_absolute_script_stay_as_they_are(
    kind: Literal["script", "module", "command"], name: str
) -> None:
    assert target(kind, name) == (name, [])


def test_an_argument_rejects_a_variable_that_is_not_set() -> None:
    with pytest.raises(AllocationError, match=r"entrypoint\.args\[1\]"):
        target("script", "train.py", "a", "${NOPE}")


@pytest.mark.parametrize("kind", ["script", "module", "command"])
def test_restart_arguments_stand_behind_the_others_after_a_restart_only(
    kind: Literal["script", "module", "command"],
) -> None:
    more = ("--resume=${HPC_ELASTIC_RUN_DIR}", "$$")
    assert target(kind, "/a", "--x", restart_args=more)[1] == ["--x"]
    assert target(kind, "/a", "--x", restart_args=more, is_restart=True)[1] == ["--x", "--resume=/runs/my run", "$"]


def test_a_restart_argument_that_cannot_be_expanded_is_named() -> None:
    with pytest.raises(AllocationError, match=r"^entrypoint\.restart_args\[1\]: \$\{NOPE\} is not set"):
        target("script", "train.py", "a", restart_args=("b", "${NOPE}"), is_restart=True)


def test_the_workdir_expands_and_a_dollar_of_the_file_system_stays() -> None:
    assert worker_directory(plan(workdir="/data/$$ada/${X}"), {"X": "y"}) == "/data/$ada/y"
