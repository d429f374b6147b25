from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hpc_elastic.errors import JobError
from hpc_elastic.job import schema
from hpc_elastic.job.check import key_paths
from hpc_elastic.job.document import Document
from hpc_elastic.job.parse import parse_job
from hpc_elastic.job.schema import default_of, job_schema
from hpc_elastic.job.spec import JobSpec

SCHEMA = job_schema()
SCRIPT = "entrypoint: {script: train.py}\n"
ROLES = "roles:\n  - {name: a, entrypoint: {script: a.py}}\n  - name: b\n    entrypoint: {script: a.py}\n"


def accepts(text: str) -> tuple[bool, bool]:
    """What the schema says, and what the parser says."""
    document = Document(file="job.yaml")
    document.read(text)
    by_schema = jsonschema.Draft202012Validator(SCHEMA).is_valid(document.data)
    try:
        parse_job(text, file="job.yaml")
    except JobError:
        return by_schema, False
    return by_schema, True


def test_the_shipped_schema_is_that_of_the_models() -> None:
    """If it is not: `hpc-elastic schema > hpc_elastic/job/job.schema.json`."""
    shipped = Path(schema.__file__).with_name("job.schema.json")
    assert json.loads(shipped.read_text(encoding="utf-8")) == SCHEMA


@pytest.mark.parametrize(
    "text",
    [
        SCRIPT,
        "entrypoint: {module: torch.utils.collect_env, script: null}",
        "entrypoint: {command: ./a.out, args: [on, 12:00:00, 012345, 1.10, 1e-3, true, null]}",
        SCRIPT + "nodes: 4\nworkers_per_node: [2, 1, 1, 1]",
        SCRIPT + "nodes: {min: 3, max: 4}\nworkers_per_node: auto",
        SCRIPT + "resources: {gpus_per_node: 4, memory_per_node: 64G, exclusive: true}",
        SCRIPT + "resources: {memory_per_node: 0}\ntime: 12:00:00",
        SCRIPT + "time: 1-12\nsignals: {grace: 45s}\nrestart: {backoff: {first: 0.5s, factor: 1.5}}",
        SCRIPT + "name: 012345\nsetup: [true, module load cuda]\nstage:\ncontainer: {}\nhealth: {}",
        SCRIPT + "env: {A: 1, B: on, C: null, D: 1.10}\nsbatch: {account: 0123, -p: gpu, qos: null, contiguous: true}",
        SCRIPT + "logs: {tee: [0, 7]}\nprogress: {file: 'ckpt/*.pt'}\nrole: trainer\nstart: spawn",
        "roles: [{name: a, entrypoint: {script: a.py}}]",
        ROLES
        + "    nodes: {min: 1, max: 2}\n    workers_per_node: [2, 1]\n    restart: ignore\n    env: {A: 1, B: null}",
        ROLES + "entrypoint: null\nnodes: null",
        SCRIPT + "logs: {tee: [], redirects: 3, local_ranks_filter: [0], prefix: '', duplicate_stdout_filters: [1.10]}",
        SCRIPT + "logs: {tee: '0:3,11:err', redirects: {0: both, 1: 2, 2: '0'}, prefix: '$$ ${rank}$node'}",
        SCRIPT + "logs: {tee: none, redirects: '3', duplicate_stderr_filters: [], local_ranks_filter: null}",
    ],
)
def test_schema_and_parser_accept_the_same(text: str) -> None:
    assert accepts(text) == (True, True)


@pytest.mark.parametrize(
    "text",
    [
        "name: x",
        "entrypoint: train.py",
        "entrypoint:",
        "entrypoint: {args: [x]}",
        "entrypoint: {script: a.py, module: b}",
        SCRIPT + "nodes: 0",
        SCRIPT + "nodes: {min: 3}",
        SCRIPT + "nodes: two",
        SCRIPT + "workers_per_node: []",
        SCRIPT + "workers_per_node: all",
        SCRIPT + "time: 90",
        SCRIPT + "time: soon",
        SCRIPT + "name: my job",
        SCRIPT + "setup: module load cuda",
        SCRIPT + "env: {1A: x}",
        SCRIPT + "env: [A=1]",
        SCRIPT + "sbatch: {nodes: 4}",
        SCRIPT + "sbatch: {partition: [a]}",
        SCRIPT + "log_level: warn",
        SCRIPT + "logs: {tee: all}",
        SCRIPT + "logs: {tee: 4}",
        SCRIPT + "logs: {tee: true}",
        SCRIPT + "logs: {tee: {}}",
        SCRIPT + "logs: {tee: [-1]}",
        SCRIPT + "logs: {redirects: [0]}",
        SCRIPT + "logs: {redirects: {first: both}}",
        SCRIPT + "logs: {redirects: {0: 4}}",
        SCRIPT + "logs: {redirects: '0:3,1'}",
        SCRIPT + "logs: {local_ranks_filter: []}",
        SCRIPT + "logs: {local_ranks_filter: 0}",
        SCRIPT + "logs: {duplicate_stdout_filters: apple}",
        SCRIPT + "restart: {max_restarts: -1}",
        SCRIPT + "restart: {max_restarts: true}",
        SCRIPT + "restart: {backoff: {factor: 0.5}}",
        SCRIPT + "resources: {memory_per_node: 64}",
        SCRIPT + "resources: {exclusive: yes}",
        SCRIPT + "requeue: {on: [bad_luck]}",
        "roles: []",
        "roles: {name: a}",
        "roles: [a]",
        "roles: [{name: a}]",
        "roles: [{name: a, entrypoint:}]",
        "roles: [{entrypoint: {script: a.py}}]",
        ROLES + "    nodes: 0",
        ROLES + "    restart: always",
        ROLES + "    env: {1A: x}",
        ROLES + "    restart: {max_restarts: 1}",
    ],
)
def test_schema_and_parser_reject_the_same(text: str) -> None:
    assert accepts(text) == (False, False)


def maps() -> Iterator[str]:
    paths = list(key_paths(JobSpec))
    yield ""
    yield from (path for path in paths if any(other.startswith(f"{path}.") for other in paths))


@pytest.mark.parametrize("path", list(maps()))
def test_schema_and_parser_reject_an_unknown_key_of_every_map(path: str) -> None:
    entrypoint = {"script": "a.py"}
    document: dict[str, Any] = {"roles": [{"name": "a", "entrypoint": entrypoint}]}
    document = document if path.startswith("roles") else {"entrypoint": entrypoint}
    text = json.dumps(document)
    section = document
    for part in path.split(".") if path else []:
        section = section["roles"][0] if part == "roles[]" else section.setdefault(part, {})
    section["no_such_key"] = 1
    if path.endswith("nodes"):
        section.update(min=1, max=1)
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(document)
    with pytest.raises(JobError, match="no_such_key: unknown key"):
        parse_job(text, file="job.yaml", overrides=[f"{path}.no_such_key=1".lstrip(".").replace("[]", "[0]")])


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_every_key_has_a_description() -> None:
    sections = [SCHEMA, *SCHEMA["$defs"].values()]
    for section in sections:
        for name, key in section["properties"].items():
            assert key.get("description"), name


@pytest.mark.parametrize(
    ("path", "default"),
    [
        ("restart.max_restarts", 3),
        ("restart.backoff.max", "1m"),
        ("elastic.join_timeout", "10m"),
        ("nodes", 1),
        ("roles[].nodes", 1),
        ("roles[].nodes.min", None),
        ("roles[].restart", "restart_all"),
        ("roles[].name", None),
        ("nodes.min", None),
        ("logs.tee", [0]),
        ("logs.redirects", "both"),
        ("requeue.on", ["preempted", "time_limit", "node_loss"]),
        ("restart", None),
        ("python", None),
    ],
)
def test_a_default_is_spelled_as_in_a_job_file(path: str, default: object) -> None:
    assert default_of(path) == default


def test_the_schema_has_defaults() -> None:
    restart = SCHEMA["$defs"]["RestartSpec"]["properties"]
    assert restart["max_restarts"]["default"] == 3
