"""Workers as forks of a process that has torch imported: real torch, on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from hpc_elastic.agent.net.listener import FILES_A_WORKER, FILES_BESIDE, UNAUTHENTICATED
from hpc_elastic.rundir.store import read_lines
from tests.integration.conftest import Door, Run
from tests.integration.test_local_stops import is_alive, script_pid
from tests.slurm_sandbox.cluster import wait_until
from tests.tiers import variants
from tests.without_torch import hide_compiler

pytestmark = pytest.mark.local

FORKED = re.compile(r"workers are forks of a process that has torch \S+ imported \(\d+\.\d s, [\d,]+ modules\)")
# Trains a step or two, says what was loaded before it, and fails in as many attempts as it is told.
TRAINS = """
import os, resource, sys
loaded = sorted({"torch", "torch.optim", "sortedcontainers"} & {*sys.modules})
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
total = torch.ones(1)
dist.all_reduce(total)
files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
print("sum", int(total), "threads", torch.get_num_threads(), "files", files, *loaded, flush=True)
dist.all_reduce(total)  # both have said it: who fails next has the other one stopped
if int(os.environ["HPC_ELASTIC_ATTEMPT"]) <= int(sys.argv[1]):
    raise RuntimeError("asked for")
dist.destroy_process_group()
"""
# Works until it is told to finish, without torch.
WORKS = """
import os, sys, time
print("at work", flush=True)
while not os.path.exists("finish"):
    time.sleep(0.02)
"""
# Every Python with this on its path says when it imports torch.
WITNESS = """
import importlib.abc, os, sys

class Witness(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            with open(os.environ["IMPORTS"], "a") as file:
                print(os.getpid(), file=file)

sys.meta_path.insert(0, Witness())
"""


@pytest.fixture
def door(door: Door) -> Door:
    """Return the command where every fork server has torch, whatever the scripts import, but not its compiler."""
    door.may_hide_torch = False
    door.environ = hide_compiler(door.environ)
    return door


def write_job(door: Door, *, script: str = TRAINS, fails: int = 0, nodes: int = 1, more: str = "") -> None:
    door.write("train.py", script)
    entrypoint = f"{{script: train.py, args: [{fails}]}}"
    keys = f"nodes: {nodes}\nworkers_per_node: 2\ntime: 10m\nrestart: {{max_restarts: 3}}\n"
    door.write("job.yaml", f"name: warm\nsite: local\n{keys}entrypoint: {entrypoint}\n{more}\n")


def agent_log(run: Run, node: str = "local0") -> str:
    return Path(run.layout.agent_output(node)).read_text()


def how(run: Run, node: str = "local0") -> list[str]:
    """What the agent said of how workers are started."""
    return re.findall(r"workers are (?:forks|spawned).*", agent_log(run, node))


def helpers(run: Run, module: str) -> list[int]:
    """The processes of the run's agents that run this module of ours, by the processes' ancestors."""
    found = []
    agents = {pid for pid, command in run.agents().items() if "hpc_elastic.agent.main" in command}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent in agents and module.encode() in command:
                found.append(int(entry.name))
    return sorted(found)


def fork_server(run: Run) -> int:
    (pid,) = helpers(run, "hpc_elastic.worker.fork_server")
    return pid


def assert_succeeded(run: Run, *, attempts: int = 1) -> None:
    result = run.result()
    assert (result["state"], result["exit_code"], result["attempts"]) == ("SUCCEEDED", 0, attempts), run.story()
    run.assert_nothing_left()
    run.assert_records_valid()


@pytest.mark.variant(of="test_a_node_imports_torch_once_for_all_its_workers_attempts_and_stores")
@pytest.mark.parametrize(
    "start",
    ["fork", *variants("auto", "spawn", of="test_a_node_imports_torch_once_for_all_its_workers_attempts_and_stores")],
)
def test_training_is_the_same_however_workers_start(door: Door, start: str) -> None:
    write_job(door, fails=1, more=f"start: {start}\nsetup: [ulimit -Sn 300]")
    run = door.submit("job.yaml", wait=True)
    assert_succeeded(run, attempts=2)
    loaded = "" if start == "spawn" else " torch torch.optim"
    files = 1 + UNAUTHENTICATED + FILES_BESIDE + 2 * FILES_A_WORKER
    expected = f"sum 2 threads 1 files {files}{loaded}\n"
    assert [run.stdout(attempt, rank) for attempt in (1, 2) for rank in (0, 1)] == [expected] * 4
    (said,) = how(run)
    assert said == "workers are spawned: start is spawn" if start == "spawn" else FORKED.fullmatch(said)
    started = [event for event in read_lines(run.layout.events("local0")) if event["name"] == "workers.started"]
    assert [event["metadata"]["start"] for event in started] == ["spawn" if start == "spawn" else "fork"] * 2
    # Both ranks raise at once, and the first failure ends the other rank, which may not have come to its own.
    errors = [json.loads(path.read_text()) for rank in (0, 1) if (path := Path(run.layout.error(1, rank))).exists()]
    told = {(error["class"], error["message"]["message"]) for error in errors}
    assert told == {("exception", "RuntimeError: asked for")}


def test_a_node_imports_torch_once_for_all_its_workers_attempts_and_stores(door: Door) -> None:
    door.write("sitecustomize.py", WITNESS)
    seen = f'env: {{PYTHONPATH: {door.folder}, IMPORTS: "{door.folder}/imports-${{HPC_ELASTIC_NODE}}"}}'
    write_job(door, fails=3, nodes=2, more=seen)
    run = door.submit("job.yaml", wait=True)
    assert_succeeded(run, attempts=4)
    for node in ("local0", "local1"):
        assert len((door.folder / f"imports-{node}").read_text().splitlines()) == 1
        assert len(how(run, node)) == 1


def test_a_fork_server_that_is_killed_between_attempts_is_replaced(door: Door) -> None:
    write_job(door, script=WORKS)
    run = door.submit("job.yaml")
    run.wait_for_output("at work", rank=1)
    run.wait_until_started()
    server = fork_server(run)
    os.kill(server, signal.SIGKILL)
    again = "the fork server ended (killed by signal 9); starting it again"
    wait_until(lambda: again in agent_log(run), "it is started again", within_s=30, otherwise=run.story)
    os.kill(run.worker_pid(1), signal.SIGKILL)
    run.wait_for_output("at work", rank=1, attempt=2)
    assert fork_server(run) != server
    os.kill(fork_server(run), signal.SIGKILL)  # and together with a worker
    os.kill(run.worker_pid(1, attempt=2), signal.SIGKILL)
    run.wait_for_output("at work", rank=1, attempt=3)
    door.write("finish", "")
    run.wait_until_over()
    assert_succeeded(run, attempts=3)
    assert len(how(run)) == 1


def test_an_agent_that_is_killed_leaves_no_fork_server_and_store_host_behind(door: Door) -> None:
    write_job(door, script=WORKS)
    run = door.submit("job.yaml")
    run.wait_for_output("at work", rank=1)
    run.wait_until_started()
    own = [*helpers(run, "hpc_elastic.worker.fork_server"), *helpers(run, "hpc_elastic.worker.store_host")]
    workers = [run.worker_pid(rank) for rank in (0, 1)]
    assert len(own) == 2
    os.kill(run.agent_pid("local0"), signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, [*own, *workers])), "nothing is left", within_s=10, otherwise=run.story)
    run.assert_nothing_left()
    wait_until(lambda: not is_alive(script_pid(run)), "the script is over", within_s=60, otherwise=run.story)


@pytest.mark.variant(of="test_a_node_imports_torch_once_for_all_its_workers_attempts_and_stores")
def test_a_fork_is_known_by_its_own_command_line_and_variables(door: Door) -> None:
    write_job(door, script=WORKS)
    run = door.submit("job.yaml")
    run.wait_for_output("at work", rank=1)
    run.wait_until_started()
    processes = run.processes()
    assert {*processes} == {run.worker_pid(0), run.worker_pid(1)}
    assert all(command.endswith(f"{door.folder}/train.py 0 ") for command in processes.values()), processes
    door.run("cancel", run.job_id)
    assert run.wait_until_over()["state"] == "CANCELLED"
    run.assert_nothing_left()


def test_a_preload_is_loaded_before_the_script_and_a_missing_one_is_a_warning(door: Door) -> None:
    write_job(door, more="preload: [sortedcontainers, no_such_module]")
    run = door.submit("job.yaml", wait=True)
    assert_succeeded(run)
    assert run.stdout(1, 0).endswith(" sortedcontainers torch torch.optim\n")
    missing = "preload: no_such_module cannot be imported (ModuleNotFoundError: No module named 'no_such_module')"
    assert agent_log(run).count(missing) == 1


def test_a_variable_that_is_read_at_the_start_and_each_workers_own_makes_it_spawn(door: Door) -> None:
    write_job(
        door, script="import os; print(os.environ['OMP_NUM_THREADS'])", more="env: {OMP_NUM_THREADS: '${LOCAL_RANK}'}"
    )
    run = door.submit("job.yaml", wait=True)
    assert_succeeded(run)
    assert [run.stdout(1, rank) for rank in (0, 1)] == ["0\n", "1\n"]
    why = "OMP_NUM_THREADS, which is read when Python or a library starts, is not the same for every worker"
    assert how(run) == [f"workers are spawned: {why}"]
    write_job(door, more="env: {OMP_NUM_THREADS: '${LOCAL_RANK}'}\nstart: fork")
    run = door.submit("job.yaml", wait=True, exit_code=1)
    assert f"start is fork, but workers cannot be forks here: {why}" in run.result()["cause"]
    assert {failure["class"] for failure in run.result()["failures"].values()} == {"start_failed"}


@pytest.mark.variant(of="test_a_fork_server_that_is_killed_between_attempts_is_replaced")
def test_a_working_directory_that_is_gone_fails_the_start_after_three_tries(door: Door) -> None:
    folder = door.folder / "gone"
    folder.mkdir()
    door.write(
        "train.py",
        """
import os, shutil, sys
if os.environ["RANK"] == "0":
    os.chdir("/")
    shutil.rmtree(sys.argv[1])
sys.exit(1)
""",
    )
    door.write(
        "job.yaml",
        f"name: warm\nsite: local\nnodes: 1\nworkers_per_node: 2\ntime: 10m\nworkdir: {folder}\n"
        f"restart: {{max_restarts: 1}}\nentrypoint: {{script: {door.folder}/train.py, args: [{folder}]}}\n",
    )
    run = door.submit("job.yaml", wait=True, exit_code=1)
    failures = run.result()["failures"].values()
    assert {failure["class"] for failure in failures} == {"start_failed"}, run.story()
    assert f"No such file or directory: {folder}" in run.result()["cause"]
    assert [f"try {number} of 3 follows" in agent_log(run) for number in (2, 3, 4)] == [True, True, False]
    assert FORKED.search(agent_log(run))
    run.assert_nothing_left()
