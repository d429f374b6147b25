"""What a job asks for against what its site, partition and QOS allow."""

from __future__ import annotations

import dataclasses

import pytest

from hpc_elastic.errors import ExitCode, JobError
from tests.resolve.test_launch_plan import CONTEXT, resolve

PAGE = "https://example.org/partitions"
PARTITIONS = f"""\
url: https://example.org
partitions:
  gpu_p13: {{page: {PAGE}, max_time: 20h, nodes: {{min: 2, max: 8}}, default_time: 10m}}
  batch: {{max_time: 12h, max_time_by_nodes: [{{max_nodes: 91, max_time: 2h}}, {{max_nodes: 183, max_time: 6h}}]}}
  acc: {{gpus_per_node: {{min: 1, max: 4}}, cpus_per_gpu: {{min: 20, max: 20}}, memory_per_node: 500G}}
  small: {{gpus_per_node: 2, cpus_per_gpu: 16, cpus_per_node: 40}}
qos:
  debug: {{max_time: 30m, nodes: 4}}
"""
GIB_PER_CPU = "memory_request: mem-per-cpu\n"


def problems_of(job: str, site: str = PARTITIONS, **shell_options: str) -> list[str]:
    """The lines of the refusal; none if the job is accepted."""
    try:
        resolve(job, site, context=dataclasses.replace(CONTEXT, shell_options=shell_options))
    except JobError as error:
        return list(error.problems)
    return []


def test_a_refusal_is_an_error_of_the_job() -> None:
    with pytest.raises(JobError) as caught:
        resolve("nodes: 9\nsbatch: {partition: gpu_p13}", PARTITIONS)
    assert caught.value.exit_code is ExitCode.SETUP


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        (
            "nodes: 2\ntime: 30h\nsbatch: {partition: gpu_p13}",
            f"time: partition gpu_p13 allows 20 h ({PAGE}), the job asks 30 h",
        ),
        (
            "nodes: 9\nsbatch: {partition: gpu_p13}",
            f"nodes: partition gpu_p13 allows 2 to 8 nodes ({PAGE}), the job asks 9",
        ),
        (
            "nodes: {min: 1, max: 4}\nsbatch: {partition: gpu_p13}",
            f"nodes: partition gpu_p13 allows 2 to 8 nodes ({PAGE}), the job asks 1",
        ),
        (
            "nodes: 7\nspares: 2\nsbatch: {partition: gpu_p13}",
            f"nodes: partition gpu_p13 allows 2 to 8 nodes ({PAGE}), the job asks 9",
        ),
        (
            "nodes: 91\ntime: 3h\nsbatch: {partition: batch}",
            "time: partition batch allows 2 h to at most 91 nodes (https://example.org), the job asks 3 h for 91",
        ),
        (
            "nodes: {min: 183, max: 300}\ntime: 7h\nsbatch: {partition: batch}",
            "time: partition batch allows 6 h to at most 183 nodes (https://example.org), the job asks 7 h for 183",
        ),
        (
            "nodes: 184\ntime: 13h\nsbatch: {partition: batch}",
            "time: partition batch allows 12 h (https://example.org), the job asks 13 h",
        ),
        (
            "sbatch: {partition: acc}",
            (
                "resources.gpus_per_node: partition acc allows 1 to 4 GPUs a node (https://example.org),"
                " the job asks for none"
            ),
        ),
        (
            "resources: {gpus_per_node: 4, cpus_per_worker: 16}\nsbatch: {partition: acc}",
            (
                "resources.cpus_per_worker: partition acc allows exactly 20 CPUs for each GPU (https://example.org),"
                " the job asks 64 for 4"
            ),
        ),
        (
            "resources: {gpus_per_node: 4}\nsbatch: {partition: acc}",
            (
                "resources.cpus_per_worker: partition acc allows exactly 20 CPUs for each GPU (https://example.org),"
                " the job asks for no CPUs"
            ),
        ),
        (
            "resources: {gpus_per_node: 1, cpus_per_worker: 20, memory_per_node: 512G}\nsbatch: {partition: acc}",
            "resources.memory_per_node: partition acc allows at most 500G (https://example.org), the job asks 512G",
        ),
        (
            "resources: {gpus_per_node: 2, cpus_per_worker: 17}\nsbatch: {partition: small}",
            (
                "resources.cpus_per_worker: partition small allows at most 16 CPUs for each GPU (https://example.org),"
                " the job asks 34 for 2"
            ),
        ),
        (
            "workers_per_node: 41\nresources: {cpus_per_worker: 1}\nsbatch: {partition: small}",
            (
                "resources.cpus_per_worker: partition small allows at most 40 CPUs a node (https://example.org),"
                " the job asks 41"
            ),
        ),
        ("time: 31m\nsbatch: {qos: debug}", "time: QOS debug allows 30 min (https://example.org), the job asks 31 min"),
    ],
)
def test_a_job_is_refused_if_it_asks_for_more_than_is_allowed(job: str, problem: str) -> None:
    assert problems_of(job) == [problem]


@pytest.mark.parametrize(
    "job",
    [
        "nodes: 8\ntime: 20h\nsbatch: {partition: gpu_p13}",
        "nodes: 2\nsbatch: {partition: gpu_p13}",
        "nodes: 92\ntime: 6h\nsbatch: {partition: batch}",
        "nodes: 184\ntime: 12h\nsbatch: {partition: batch}",
        "resources: {gpus_per_node: 4, cpus_per_worker: 20, memory_per_node: 500G}\nsbatch: {partition: acc}",
        "resources: {gpus_per_node: 2, cpus_per_worker: 16}\nsbatch: {partition: small}",
        "nodes: 1000\ntime: 99h\nsbatch: {partition: another}",
        "nodes: 1000\ntime: 99h",
    ],
)
def test_a_job_is_accepted_if_it_asks_for_what_is_allowed_or_not_known(job: str) -> None:
    assert problems_of(job) == []


def test_a_partition_may_have_a_colon_in_its_name() -> None:
    (problem,) = problems_of(
        "time: 2h\nsbatch: {partition: 'grete:shared'}", "partitions: {'grete:shared': {max_time: 1h}}"
    )
    assert problem == "time: partition grete:shared allows 1 h, the job asks 2 h"


def test_one_of_several_partitions_must_allow_the_job() -> None:
    assert problems_of("nodes: 2\ntime: 12h\nsbatch: {partition: 'batch,gpu_p13'}") == []
    assert problems_of("nodes: 2\ntime: 99h\nsbatch: {partition: 'batch,another'}") == []
    assert len(problems_of("nodes: 2\ntime: 99h\nsbatch: {partition: 'batch,gpu_p13'}")) == 1


def test_partition_and_qos_both_hold() -> None:
    found = problems_of("nodes: 5\ntime: 30h\nsbatch: {partition: gpu_p13, qos: debug}")
    assert [problem.partition(" (")[0] for problem in found] == [
        "time: partition gpu_p13 allows 20 h",
        "time: QOS debug allows 30 min",
        "nodes: QOS debug allows at most 4 nodes",
    ]


def test_memory_by_cpu_counts_for_the_node() -> None:
    job = "resources: {gpus_per_node: 1, cpus_per_worker: 20, memory_per_node: 512G}\nsbatch: {partition: acc}"
    (problem,) = problems_of(job, GIB_PER_CPU + PARTITIONS)
    assert "allows at most 500G" in problem


def test_an_option_of_the_shell_counts_unless_the_job_has_its_own() -> None:
    job = "nodes: 2\ntime: 30h\n"
    assert problems_of(job, partition="gpu_p13") == [f"time: partition gpu_p13 allows 20 h ({PAGE}), the job asks 30 h"]
    assert problems_of(job + "sbatch: {partition: another}", partition="gpu_p13") == []


def test_what_a_site_requires_is_missing_if_nobody_gives_it() -> None:
    site = "required: [account, -C]\n"
    assert problems_of("", site) == [
        f"sbatch.{option}: missing; site here requires it; give it in the job file as `sbatch: {{{option}: ...}}`,"
        f" or as `--set sbatch.{option}=...`"
        for option in ("account", "constraint")
    ]
    assert problems_of("sbatch: {-A: abc, C: gpu}", site) == []
    assert problems_of("sbatch: {-A: abc}", site + "defaults: {sbatch: {constraint: gpu}}") == []
    assert problems_of("sbatch: {constraint: gpu}", site, account="abc") == []
    assert len(problems_of("sbatch: {constraint: null}", site + "defaults: {sbatch: {constraint: g, -A: b}}")) == 1


def test_nothing_is_asked_of_a_partition_inside_an_allocation() -> None:
    job, site = "nodes: 9\nsbatch: {partition: gpu_p13}", PARTITIONS + "required: [account]\n"
    assert len(problems_of(job, site)) == 2
    assert resolve(job, site, context=dataclasses.replace(CONTEXT, is_allocated=True)).nodes.max == 9
