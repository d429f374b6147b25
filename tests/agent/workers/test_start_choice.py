"""Whether workers are forks or spawned, and what is said of it."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from hpc_elastic.agent.node.node_environment import NOWHERE, NodeEnvironment, node_environment
from hpc_elastic.agent.workers.start_choice import ServerReport, describe_forks, why_no_fork, why_no_server
from hpc_elastic.scheduler.allocation import Allocation
from tests.plans import make_role, make_run_plan

READY = ServerReport(torch="2.13.0", seconds=1.94, imported=1800)


def common(base: dict[str, str] | None = None, *, nodes: int = 1, **changes: Any) -> NodeEnvironment:
    plan = make_run_plan("/runs/run", **{"workers_per_node": 2, **changes})
    names = tuple(f"node{number}" for number in range(nodes))
    place = Allocation(job_id="1", restart_count=0, array_task=None, node_id=0, nodes=names, is_local=False)
    return node_environment({"PATH": "/bin"} if base is None else base, plan, place)


def test_the_server_has_what_is_set_before_torch_is_imported() -> None:
    found = common({"PATH": "/bin", "SLURM_PROCID": "0", "SLURM_JOB_ID": "4"}, env={"MKL_NUM_THREADS": "2", "X": "a"})
    assert dict(found.variables) == {
        "PATH": "/bin",
        "SLURM_JOB_ID": "4",
        "OMP_NUM_THREADS": "1",
        "RES_OPTIONS": "timeout:1 attempts:1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "MKL_NUM_THREADS": "2",
        "X": "a",
    }


def test_the_server_carries_no_worker_of_this_run_or_of_another_in_its_environment() -> None:
    outer = {"HPC_ELASTIC_ATTEMPT": "1", "HPC_ELASTIC_RUN_DIR": "/other", "RANK": "3", "HPC_ELASTIC_LOCAL_NODE_ID": "0"}
    assert not {*outer} & {*common(outer).variables}


def test_a_roles_env_is_in_it() -> None:
    role = make_role("reader", env={"TORCH_LOGS": "all"}, workers_per_node=1)
    assert common(roles=(role,)).variables["TORCH_LOGS"] == "all"


@pytest.mark.parametrize(
    "name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "HPC_ELASTIC_ATTEMPT", "ROLE_RANK"]
)
def test_what_depends_on_the_world_varies(name: str) -> None:
    found = common(env={"MINE": f"a-${{{name}}}"})
    assert "MINE" not in found.variables
    assert found.varying == {"MINE"}


def test_the_only_worker_of_a_node_has_the_same_local_rank_in_every_world() -> None:
    assert common(env={"OMP_NUM_THREADS": "${LOCAL_RANK}"}, workers_per_node=1).variables["OMP_NUM_THREADS"] == "0"


def test_a_workdir_of_each_ranks_own_is_not_the_servers() -> None:
    assert common(workdir="/data/${PATH}").directory == "/data//bin"
    assert common(workdir="/data/${RANK}").directory == NOWHERE


@pytest.mark.parametrize(
    ("kind", "why"), [("script", None), ("module", None), ("command", "the entrypoint is a command")]
)
def test_only_python_is_forked(kind: Literal["script", "module", "command"], why: str | None) -> None:
    assert why_no_server("auto", kind, common()) == why
    assert why_no_server("fork", kind, common()) == why
    assert why_no_server("spawn", kind, common()) == "start is spawn"


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "PYTHONHASHSEED", "LD_PRELOAD", "LANG", "MKL_DYNAMIC", "TORCH_LOGS"]
)
def test_a_variable_that_is_read_at_the_start_and_not_the_same_for_all_makes_it_spawn(name: str) -> None:
    why = why_no_server("auto", "script", common(env={name: "${LOCAL_RANK}"}))
    assert why == f"{name}, which is read when Python or a library starts, is not the same for every worker"
    assert why_no_server("auto", "script", common(env={name: "7"})) is None


@pytest.mark.parametrize(
    "name", ["CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME", "TMPDIR", "TZ", "TORCHELASTIC_MINE", "MASTER"]
)
def test_any_other_variable_may_be_each_workers_own(name: str) -> None:
    assert why_no_server("auto", "script", common(env={name: "${LOCAL_RANK}"})) is None


@pytest.mark.parametrize("name", ["COVERAGE_PROCESS_START", "DEBUGPY_RUNNING", "PYTHONPROFILEIMPORTTIME"])
def test_a_tool_that_wants_to_see_the_start_gets_one(name: str) -> None:
    assert why_no_server("auto", "script", common({name: "1"})) == f"{name} is set"


@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"])
def test_threads_that_are_placed_at_the_start_make_workers_spawn_that_are_bound_to_cpus(name: str) -> None:
    why = f"by {name} a library chooses CPUs when it is loaded, and each worker is bound to its own"
    assert why_no_server("auto", "script", common(env={name: "cores"}), is_bound=True) == why
    assert why_no_server("auto", "script", common(env={name: "cores"})) is None
    assert why_no_server("auto", "script", common(env={name: "FALSE"}), is_bound=True) is None


def test_a_server_that_is_not_safe_forks_nothing() -> None:
    assert why_no_fork(ServerReport(unsafe="2 threads run"), {}, []) == "2 threads run"


def test_only_a_torch_that_is_not_there_at_all_can_be_imported_again() -> None:
    missing = "ModuleNotFoundError: No module named 'torch'"
    assert why_no_fork(ServerReport(no_torch=missing), {}, []) is None
    for broken in ("ImportError: libcudart.so.12: cannot open", "ModuleNotFoundError: No module named 'torch._C'"):
        assert why_no_fork(ServerReport(no_torch=broken), {}, []) == f"torch cannot be imported ({broken})"


def test_a_worker_is_no_fork_of_a_server_that_started_with_something_else() -> None:
    server = {"OMP_NUM_THREADS": "1", "X": "1"}
    assert why_no_fork(READY, server, [{"OMP_NUM_THREADS": "1", "X": "2"}]) is None
    for worker in ({"OMP_NUM_THREADS": "2"}, {}):
        why = why_no_fork(READY, server, [server, worker])
        assert why is not None
        assert why.startswith("OMP_NUM_THREADS, which is read when")


def test_one_line_says_what_workers_are_forks_of() -> None:
    assert describe_forks(READY) == (
        "workers are forks of a process that has torch 2.13.0 imported (1.9 s, 1,800 modules)"
    )
    without = ServerReport(no_torch="ModuleNotFoundError: no", seconds=0.04, imported=90)
    assert describe_forks(without) == (
        "workers are forks of a process without torch (ModuleNotFoundError: no; 0.0 s, 90 modules)"
    )
