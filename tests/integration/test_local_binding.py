"""What workers are bound to, as the kernel says it in each of them, and which GPU they may see."""

from __future__ import annotations

import json
import os

import pytest

from tests.integration.conftest import Door, Run
from tests.tiers import variants

pytestmark = pytest.mark.local

CPUS = os.sched_getaffinity(0)
# A process that a worker starts is bound as well, and a thread.
SAYS = """
import json, os, subprocess, sys, threading
found = [sorted(os.sched_getaffinity(0))]
child = "import os; print(*sorted(os.sched_getaffinity(0)))"
found.append([int(cpu) for cpu in subprocess.check_output([sys.executable, "-c", child]).split()])
thread = threading.Thread(target=lambda: found.append(sorted(os.sched_getaffinity(0))))
thread.start()
thread.join()
names = ("LOCAL_RANK", "HPC_ELASTIC_LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "HPC_ELASTIC_CPUS")
print(json.dumps([found, *map(os.environ.get, names)]))
"""


def submit(door: Door, more: str, *, entrypoint: str = "{script: train.py}", exit_code: int = 0) -> Run:
    door.write("train.py", SAYS)
    text = f"name: probe\nsite: local\ntime: 10m\nentrypoint: {entrypoint}\nrestart: {{max_restarts: 0}}\n{more}\n"
    door.write("job.yaml", text)
    run = door.submit("job.yaml", wait=True, exit_code=exit_code)
    run.assert_nothing_left()
    return run


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
@pytest.mark.parametrize(
    ("start", "entrypoint"),
    [
        ("fork", "{script: train.py}"),
        *variants(
            ("spawn", "{script: train.py}"),
            ("auto", "{command: python3, args: [train.py]}"),
            of="test_the_kernel_keeps_each_worker_on_cores_of_its_own",
        ),
    ],
)
def test_the_kernel_keeps_each_worker_on_cores_of_its_own(door: Door, start: str, entrypoint: str) -> None:
    more = f"nodes: 2\nworkers_per_node: 1\nbinding: cores\nstart: {start}"
    run = submit(door, more, entrypoint=entrypoint)
    sets = []
    for rank in range(2):
        (own, child, thread), *_, told = json.loads(run.stdout(1, rank))
        assert own == child == thread
        assert told.replace("-", ",").split(",")[0] == str(own[0])
        sets.append(set(own))
    assert all(sets)
    assert not sets[0] & sets[1]
    assert sets[0] | sets[1] == CPUS


def test_workers_of_a_machine_with_one_numa_node_may_use_all_of_it(door: Door) -> None:
    run = submit(door, "nodes: 1\nworkers_per_node: 2\nbinding: numa")
    for rank in range(2):
        (own, *_), *_, told = json.loads(run.stdout(1, rank))
        assert set(own) <= CPUS
        assert told


def test_more_workers_than_cores_end_the_run_before_a_worker_starts(door: Door) -> None:
    run = submit(door, f"nodes: 1\nworkers_per_node: {len(CPUS) + 1}\nbinding: cores", exit_code=3)
    assert "binding: cores wants a core for each worker" in run.result()["cause"]
    assert run.attempts() == []


def test_with_virtual_local_rank_each_worker_sees_one_gpu_as_local_rank_0(door: Door) -> None:
    door.environ["CUDA_VISIBLE_DEVICES"] = "5,7"
    run = submit(door, "nodes: 2\nworkers_per_node: 2\nvirtual_local_rank: true")
    told = [json.loads(run.stdout(1, rank))[1:] for rank in range(4)]
    assert told == [["0", "0", "5", None], ["0", "1", "7", None]] * 2


def test_a_failed_worker_has_its_real_local_rank_in_the_records_with_virtual_local_rank(door: Door) -> None:
    fails = "{command: python3, args: ['-c', 'import os, sys; sys.exit(int(os.environ[\"RANK\"]))']}"
    run = submit(door, "nodes: 1\nworkers_per_node: 2\nvirtual_local_rank: true", entrypoint=fails, exit_code=1)
    assert run.result()["failures"]["1"]["local_rank"] == 1
    assert run.read(run.layout.error(1, 1))["local_rank"] == 1


def test_fewer_gpus_than_workers_end_the_run_before_a_worker_starts(door: Door) -> None:
    door.environ["CUDA_VISIBLE_DEVICES"] = "5"
    run = submit(door, "nodes: 1\nworkers_per_node: 2\nvirtual_local_rank: true", exit_code=3)
    assert "CUDA_VISIBLE_DEVICES is '5': none for local rank 1" in run.result()["cause"]
    assert run.attempts() == []
