from __future__ import annotations

import pytest

from hpc_elastic.job.sbatch_options import (
    check_lifted,
    count_gpus,
    count_gres_gpus,
    find_doubles,
    normalize_option,
    read_memory,
    without_gpus,
)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("account", "account"),
        ("--account", "account"),
        ("-A", "account"),
        ("A", "account"),
        ("Account", "account"),
        ("mem_per_cpu", "mem-per-cpu"),
        ("-c", "cpus-per-task"),
        ("-C", "constraint"),
        ("time-min", "time-min"),
        ("wait-all-nodes", "wait-all-nodes"),
        ("exclude", "exclude"),
        ("nodelist", "nodelist"),
    ],
)
def test_an_option_has_one_name_in_every_spelling(name: str, option: str) -> None:
    assert normalize_option(name) == option


@pytest.mark.parametrize(
    ("names", "key"),
    [
        ("nodes --nodes -N N node nod", "the key nodes"),
        ("ntasks -n ntasks-per-node ntasks_per_node tasks-per-node ntasks-per-gpu ntask", "the key workers_per_node"),
        ("time -t tim Time", "the key time"),
        ("job-name -J job_name job", "the key name"),
        ("output -o out error -e err open-mode open_mode open", "the run directory"),
        ("signal --signal sig", "signals.notice"),
        ("array -a arr", "submit --array"),
        ("clusters --clusters -M cluster", "SLURM_CLUSTERS"),
        ("no-kill -k no_kill", "set by hpc_elastic itself"),
        ("requeue no-requeue requ", "the key requeue"),
        ("chdir -D", "the key workdir"),
        ("gpus -G gpus-per-task", "resources.gpus_per_node"),
        ("cpus-per-gpu", "resources.cpus_per_worker"),
        ("hetjob packjob het-group het_group :", "heterogeneous jobs"),
        ("cpus-per-t gre", "the whole name"),
    ],
)
def test_an_option_rejects_what_our_own_keys_say_in_any_spelling(names: str, key: str) -> None:
    for name in names.split():
        with pytest.raises(ValueError, match=key):
            normalize_option(name)


@pytest.mark.parametrize("name", ["", "a b", "a=b", "account\n", "--", "ä", "1"])
def test_an_option_rejects_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="expected the name of an option"):
        normalize_option(name)


def test_two_spellings_of_an_option_are_found() -> None:
    assert list(find_doubles(["-p", "qos", "--partition", "partition", "-N", "-N"])) == [
        ("--partition", "-p"),
        ("partition", "-p"),
    ]


@pytest.mark.parametrize(
    ("gres", "gpus", "rest"),
    [
        ("gpu", 1, None),
        ("gpu:4", 4, None),
        ("gpu:a100", 1, None),
        ("gpu:a100:4(S:0,1),lscratch:100", 4, "lscratch:100"),
        ("lscratch:100,gpu:a100:2,gpu:v100:1", 3, "lscratch:100"),
        ("gres/gpu:2", 2, None),
        ("lscratch:100", None, "lscratch:100"),
        ("gpu_mem:80", None, "gpu_mem:80"),
    ],
)
def test_the_gpus_of_a_gres(gres: str, gpus: int | None, rest: str | None) -> None:
    assert count_gres_gpus(gres) == gpus
    assert without_gpus(gres) == rest


@pytest.mark.parametrize(("text", "gpus"), [("4", 4), ("a100:4", 4), ("a100:2,v100:1", 3)])
def test_the_gpus_of_gpus_per_node(text: str, gpus: int) -> None:
    assert count_gpus(text) == gpus


@pytest.mark.parametrize(
    ("option", "value"), [("cpus-per-task", "0"), ("gpus-per-node", "a100"), ("gres", "gpu:a100:x"), ("mem", "lots")]
)
def test_a_lifted_option_rejects_a_value_that_it_cannot_have(option: str, value: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        check_lifted(option, value)


def test_memory_is_in_slurms_spelling() -> None:
    assert [read_memory(text) for text in ("64000", "64G", "64gb", "0", "1024")] == ["64000M", "64G", "64G", "0", "1G"]
