"""What workers see on the real Slurm: ranks, GPUs, Slurm's variables, the interface of the network."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Door, Run
from tests.integration.slurm_jobs import assert_over, only_run, script_output, write_job
from tests.slurm_sandbox.cluster import Cluster
from tests.tiers import variants

pytestmark = pytest.mark.slurm

SHOWS = "import json, os\nprint(json.dumps(dict(os.environ)))\n"
# Lists what CUDA_VISIBLE_DEVICES names, as the vendor's tool does for a step.
NVIDIA_SMI = """\
#!/bin/bash
IFS=, read -r -a devices <<<"${CUDA_VISIBLE_DEVICES-0,1}"
for device in "${devices[@]:0:@LIMIT@}"; do echo "GPU $device: NVIDIA H100 (UUID: GPU-$device)"; done
"""


def environments(door: Door, *, ranks: int, exit_code: int = 0, **options: str) -> list[dict[str, str]]:
    """Submits a job and gives what each rank saw."""
    write_job(door, SHOWS, **options)
    run = door.submit("job.yaml", wait=True, exit_code=exit_code)
    assert_over(run, "SUCCEEDED", 0)
    return [json.loads(run.stdout(1, rank)) for rank in range(ranks)]


def columns(shown: list[dict[str, str]], *names: str) -> list[Any]:
    return [" ".join(one.get(name, "-") for name in names) for one in shown]


def give_gpus(door: Door, limit: int) -> None:
    """Puts a vendor's tool that shows at most `limit` GPUs on the job's PATH."""
    folder = door.folder / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(NVIDIA_SMI.replace("@LIMIT@", str(limit)))
    (folder / "nvidia-smi").chmod(0o755)
    door.environ["PATH"] = f"{folder}:{door.environ['PATH']}"


def submit_with_gpus(door: Door, exit_code: int) -> Run:
    more = "resources: {cpus_per_worker: 1, gpus_per_node: 2}\nbinding: nearest"
    write_job(door, SHOWS, nodes="2", workers="auto")
    text = (door.folder / "job.yaml").read_text().replace("resources: {cpus_per_worker: 1}", more)
    door.write("job.yaml", text)
    return door.submit("job.yaml", wait=True, exit_code=exit_code)


def test_auto_starts_a_worker_for_each_gpu_and_each_sees_all_of_its_node(slurm_door: Door) -> None:
    give_gpus(slurm_door, 2)
    run = submit_with_gpus(slurm_door, 0)
    shown = [json.loads(run.stdout(1, rank)) for rank in range(4)]
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
    assert columns(shown, *names) == ["0 0 2 0,1", "1 1 2 0,1", "2 0 2 0,1", "3 1 2 0,1"]
    assert_bound(slurm_door, run, shown)


def assert_bound(door: Door, run: Run, shown: list[dict[str, str]]) -> None:
    """The workers of a node share its CPUs, for nobody knows where these GPUs are; the map says what they have."""
    cpus = columns(shown, "HPC_ELASTIC_CPUS")
    assert cpus[:2] == cpus[2:]
    told = [f"local rank {number}: CPUs {cpus[number]} (" for number in range(2)]
    lines = door.run("binding", run.layout.root).stdout.splitlines()
    assert lines[0] == "2 nodes (node1, node2): nearest, 2 workers, 1 thread each"
    assert [line.strip().startswith(text) for line, text in zip(lines[1:], told, strict=True)] == [True, True]


@pytest.mark.mirrored
def test_too_few_gpus_end_the_run_with_the_nodes_that_have_them(slurm_door: Door) -> None:
    give_gpus(slurm_door, 1)
    run = submit_with_gpus(slurm_door, 3)
    result = assert_over(run, "FAILED", 3)
    assert "the step sees 1 GPUs, the job asked for gpus_per_node: 2" in result["cause"]
    assert result["cause"].startswith("node1, node2: ")
    assert "Slurm gave it 2 GPUs [0,1]" in result["cause"]
    assert result["cause"] in script_output(run)


def test_nodes_have_ranks_in_their_order_with_different_numbers_of_workers(slurm_door: Door) -> None:
    shown = environments(slurm_door, ranks=5, workers="[2, 1, 1, 1]")
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "HPC_ELASTIC_NODE")
    expected = ["0 0 0 2 5 node1", "1 1 0 2 5 node1", "2 0 1 1 5 node2", "3 0 2 1 5 node3", "4 0 3 1 5 node4"]
    assert columns(shown, *names) == expected


def test_gloo_gets_the_interface_of_the_address_that_the_agents_published(slurm_door: Door, slurm: Cluster) -> None:
    shown = environments(slurm_door, ranks=2, nodes="2", workers="1")
    for one in shown:
        address = slurm.layout.address(one["HPC_ELASTIC_NODE"])
        listed = json.loads(slurm.run_on(one["HPC_ELASTIC_NODE"], "ip", "-j", "address"))
        holders = {link["ifname"] for link in listed for entry in link["addr_info"] if entry["local"] == address}
        assert {one["GLOO_SOCKET_IFNAME"]} == holders
        assert one["GLOO_SOCKET_IFNAME"] != "lo"
        assert "NCCL_SOCKET_IFNAME" not in one
    assert {one["MASTER_ADDR"] for one in shown} == {slurm.layout.address("node1")}
    assert ipaddress.ip_address(shown[0]["MASTER_ADDR"]).is_private
    assert len({one["MASTER_PORT"] for one in shown}) == 1


@contextlib.contextmanager
def dead_networks(slurm: Cluster, folder: Path, *nodes: str) -> Iterator[None]:
    """Give nodes a second network, whose addresses their names resolve to first, and over which nobody is reached."""
    names = "".join(f"10.99.0.{number} {node}\n" for number, node in enumerate(nodes, 1))
    hosts = folder / "hosts"
    with contextlib.ExitStack() as stack:
        for number, node in enumerate(nodes, 1):
            hosts.write_text(names + slurm.run_on(node, "cat", "/etc/hosts"))
            stack.enter_context(slurm.mounted(node, hosts, "/etc/hosts"))
            for command in (
                "link add second type veth peer name nowhere",
                f"address add 10.99.0.{number}/24 dev second",
                "link set second up",
                "link set nowhere up",
            ):
                slurm.run_on(node, "ip", *command.split(" "))
            stack.callback(slurm.run_on, node, "ip", "link", "delete", "second")
        yield


def test_workers_get_the_network_that_works_if_names_lead_to_another_one_first(
    slurm_door: Door, slurm: Cluster, tmp_path: Path
) -> None:
    with dead_networks(slurm, tmp_path, "node1", "node2"):
        shown = environments(slurm_door, ranks=2, nodes="2", workers="1")
    assert {one["MASTER_ADDR"] for one in shown} == {slurm.layout.address("node1")}
    assert "second" not in {one["GLOO_SOCKET_IFNAME"] for one in shown}


TASK_LEVEL = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NODEID", "SLURM_NNODES", "SLURM_STEP_NUM_TASKS")


@pytest.mark.mirrored
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("hide", ["- - - - - -"] * 4),
        *variants(
            ("keep", ["0 0 2 0 2 2", "0 0 2 0 2 2", "1 0 2 1 2 2", "1 0 2 1 2 2"]),
            ("rank", ["0 0 4 0 2 -", "1 1 4 0 2 -", "2 0 4 1 2 -", "3 1 4 1 2 -"]),
            of="test_slurms_variables_are_those_of",
        ),
    ],
)
def test_slurms_variables_are_those_of(slurm_door: Door, mode: str, expected: list[str]) -> None:
    shown = environments(slurm_door, ranks=4, nodes="2", more=f"worker_env: {{slurm: {mode}}}")
    assert columns(shown, *TASK_LEVEL) == expected
    assert len({one["SLURM_JOB_ID"] for one in shown}) == 1


@pytest.mark.variant(of="test_nodes_that_see_different_numbers_of_gpus_are_named_in_one_line_before_workers_start")
def test_nodes_to_which_slurm_gives_different_numbers_of_gpus_are_named(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, SHOWS, nodes="2", workers="1")
    command = ("salloc", "--nodes=2", "--gpus=3", "--time=5", *slurm_door.command, "run", "job.yaml")
    slurm.run(*command, environment=slurm_door.environ, cwd=slurm_door.folder)
    story = only_run(slurm_door, "").story()
    assert re.search("nodes see different numbers of GPUs: 2 on node[12], 1 on node[12]", story), story


@pytest.mark.variant(of="test_what_is_odd_about_many_nodes_is_one_line_and_told_once")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_agents_that_are_bound_to_fewer_cpus_than_their_steps_are_told_of_in_one_line(slurm_door: Door) -> None:
    one = min(os.sched_getaffinity(0))
    slurm_door.write("narrow", f'#!/bin/bash\nexec taskset -c {one} {sys.executable} "$@"\n').chmod(0o755)
    narrow = f"python: {slurm_door.folder / 'narrow'}\nhealth: {{cpus: false}}"
    shown = environments(slurm_door, ranks=4, nodes="2", workers="2", more=narrow)
    assert columns(shown, "OMP_NUM_THREADS") == ["1"] * 4
    story = only_run(slurm_door, "").story()
    assert "node1, node2: the agent may use 1 of the 2 CPUs that its step has" in story
