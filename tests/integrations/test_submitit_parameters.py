"""What `update_parameters` was told, as a job file."""

from __future__ import annotations

import platform
import warnings
from pathlib import Path
from typing import Any

import pytest
import submitit
from submitit.slurm import slurm

from hpc_elastic.errors import JobError
from hpc_elastic.integrations.submitit import HpcElasticExecutor
from hpc_elastic.integrations.submitit.parameters import (
    _REFUSED,
    JOB_KEYS,
    SLURM_NAMES,
    ParameterNames,
    check_names,
    job_of,
)
from hpc_elastic.job.parse import parse_job
from hpc_elastic.job.spec import JobSpec
from tests.integration.submitit_plugin import declare_plugin

SMALLEST = {"name": "submitit", "nodes": 1, "workers_per_node": 1}


def job(**parameters: Any) -> dict[str, Any]:
    """The job without what every job has."""
    made = job_of(check_names(parameters))
    return {key: value for key, value in made.items() if SMALLEST.get(key) != value}


def test_every_key_of_a_job_file_is_a_parameter_or_is_refused() -> None:
    assert set(JobSpec.model_fields) == JOB_KEYS | (set(_REFUSED) & set(JobSpec.model_fields))


def test_every_parameter_of_submitits_slurm_executor_is_known_or_is_refused() -> None:
    names = set(slurm._get_default_parameters())
    generic = {"nodes", "cpus_per_task", "gpus_per_node", "stderr_to_stdout"}
    assert names - generic - {*_REFUSED} <= SLURM_NAMES
    assert SLURM_NAMES - names == set()


@pytest.mark.parametrize("name", ["timeout_min", "slurm_time", "mem_gb", "slurm_signal_delay_s"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1])
def test_a_duration_or_a_size_that_is_no_number_or_negative_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^the parameter {name} is {value!r}, expected a number, 0 or more$"):
        check_names({name: value})


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, {}),
        ({"nodes": 2, "tasks_per_node": 4, "name": "x"}, {"nodes": 2, "workers_per_node": 4, "name": "x"}),
        ({"timeout_min": 90}, {"time": "5400s"}),
        ({"time": 90}, {"time": "5400s"}),
        ({"time": "2h"}, {"time": "2h"}),
        ({"timeout_min": 5, "time": "2h"}, {"time": "2h"}),
        ({"mem_gb": 1.5}, {"resources": {"memory_per_node": "1536M"}}),
        ({"mem": "64GB", "mem_gb": 1}, {"resources": {"memory_per_node": "64GB"}}),
        ({"mem": 4096}, {"resources": {"memory_per_node": "4096M"}}),
        ({"gpus_per_node": 4, "cpus_per_task": 8}, {"resources": {"gpus_per_node": 4, "cpus_per_worker": 8}}),
        ({"ntasks_per_node": 3, "job_name": "y"}, {"workers_per_node": 3, "name": "y"}),
        ({"tasks_per_node": 3, "workers_per_node": "auto"}, {"workers_per_node": "auto"}),
        ({"partition": "gpu", "mail_type": "END"}, {"sbatch": {"partition": "gpu", "mail-type": "END"}}),
        ({"slurm_partition": "gpu", "hpcelastic_spares": 1}, {"sbatch": {"partition": "gpu"}, "spares": 1}),
        ({"additional_parameters": {"reservation": "r"}}, {"sbatch": {"reservation": "r"}}),
        ({"exclusive": True}, {"resources": {"exclusive": True}}),
        ({"exclusive": "user"}, {"sbatch": {"exclusive": "user"}}),
        ({"partition": "a", "sbatch": {"partition": "b", "qos": None}}, {"sbatch": {"partition": "b", "qos": None}}),
        (
            {"gpus_per_node": 4, "resources": {"gpus_per_node": 2, "exclusive": True}},
            {"resources": {"gpus_per_node": 2, "exclusive": True}},
        ),
        ({"setup": ["module load cuda"], "restart": {"max_restarts": 5}},) * 2,
        ({"nodes": {"min": 3, "max": 4}}, {"nodes": {"min": 3, "max": 4}}),
        ({"use_srun": True, "partition": None, "signal_delay_s": 30, "array_parallelism": 4}, {}),
    ],
)
def test_parameters_become_keys_of_a_job_file(parameters: dict[str, Any], expected: dict[str, Any]) -> None:
    assert job(**parameters) == expected


@pytest.mark.parametrize("name", sorted(_REFUSED))
def test_a_parameter_without_meaning_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ValueError, match=f"the parameter hpcelastic_{name} means nothing to the executor hpcelastic: "):
        check_names({f"hpcelastic_{name}": []})


def test_an_unknown_parameter_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"Unavailable parameter\(s\): \['partitoin'\](.|\n)*  - partition\n"):
        check_names({"partitoin": "gpu"})


def test_num_gpus_is_deprecated_here_too() -> None:
    with pytest.warns(UserWarning, match="gpus_per_node"):
        assert job(num_gpus=2) == {"resources": {"gpus_per_node": 2}}


def test_bad_values_are_told_all_at_once_and_change_nothing(tmp_path: Path) -> None:
    executor = HpcElasticExecutor(tmp_path / "logs")
    executor.update_parameters(nodes=2)
    with pytest.raises(JobError) as caught:
        executor.update_parameters(nodes=3, restart={"max_restart": 5}, time="soon", env={"RANK": "1"})
    assert {problem.partition(":")[0] for problem in caught.value.problems} == {
        "restart.max_restart",
        "time",
        "env.RANK",
    }
    assert executor.parameters == {"nodes": 2}
    with pytest.raises(JobError, match="sbatch"):
        executor.update_parameters(gpus_per_task=1)


def test_the_job_file_is_one_whatever_the_folder_is_called(tmp_path: Path) -> None:
    executor = HpcElasticExecutor(tmp_path / "$HOME and ${A}: 'x'")
    text = executor._job_text({"env": {"A": "1", "PYTHONUNBUFFERED": ""}, "stderr_to_stdout": True}, pickle="/a$b.pkl")
    spec = parse_job(text, file="")
    assert spec.entrypoint is not None
    assert spec.entrypoint.args == (f"{tmp_path}/$$HOME and $${{A}}: 'x'",)
    assert spec.env == {
        "A": "1",
        "PYTHONUNBUFFERED": "",
        "SUBMITIT_EXECUTOR": "hpcelastic",
        "SUBMITIT_HPCELASTIC_PICKLE": "/a$$b.pkl",
        "SUBMITIT_HPCELASTIC_PYTHON": platform.python_version(),
        "SUBMITIT_STDERR_TO_STDOUT": "1",
    }


@pytest.mark.parametrize(
    ("parameters", "after_s"),
    [({"timeout_min": 60}, "3510"), ({"timeout_min": 60, "signal_delay_s": 600}, "3000"), ({"timeout_min": 1}, "30")],
)
def test_the_signal_is_due_before_the_time_limit(tmp_path: Path, parameters: dict[str, Any], after_s: str) -> None:
    spec = parse_job(HpcElasticExecutor(tmp_path)._job_text(parameters, pickle=""), file="")
    assert (spec.env or {})["SUBMITIT_HPCELASTIC_SIGNAL_AFTER_S"] == after_s


def owners(folder: Path) -> dict[str, str]:
    """Whose the parameters without a prefix are that are not ours."""
    found = submitit.AutoExecutor(folder, cluster="local")._deprecated_args
    return {name: owner for name, owner in found.items() if not owner.startswith("hpcelastic_")}


def test_submitits_own_executors_stay_the_default_and_keep_their_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = owners(tmp_path)
    declare_plugin(tmp_path / "plugin", monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))  # no srun
    assert submitit.AutoExecutor(tmp_path).cluster == "local"
    assert owners(tmp_path) == before


def test_autoexecutor_takes_every_name_with_our_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare_plugin(tmp_path / "plugin", monkeypatch)
    executor = submitit.AutoExecutor(tmp_path / "logs", cluster="hpcelastic", hpcelastic_max_num_timeout=7)
    executor.update_parameters(
        timeout_min=5, hpcelastic_nodes={"min": 1, "max": 2}, hpcelastic_partition="gpu", hpcelastic_time="2h"
    )
    executor.update_parameters(slurm_partition="other", hpcelastic_setup=["true"])
    assert isinstance(executor._executor, HpcElasticExecutor)
    assert executor._executor.max_num_timeout == 7
    assert job_of(executor.parameters) == {
        "name": "submitit",
        "nodes": {"min": 1, "max": 2},
        "workers_per_node": 1,
        "time": "2h",
        "setup": ["true"],
        "sbatch": {"partition": "gpu"},
    }
    with pytest.raises(NameError, match=r"hpcelastic_foo(.|\n)*restart, "):
        executor.update_parameters(hpcelastic_foo=1)
    assert "partition" in ParameterNames()


def test_the_plugin_is_loaded_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from submitit.core import plugins

    declare_plugin(tmp_path / "plugin", monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plugins.get_executors()["hpcelastic"] is HpcElasticExecutor
        assert plugins.get_job_environments()["hpcelastic"].activated() is False
