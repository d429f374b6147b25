"""The roles of a job file, and `--set` inside of lists."""

from __future__ import annotations

import pytest

from hpc_elastic.errors import JobError
from hpc_elastic.job.parse import parse_job
from hpc_elastic.job.spec import NodesSpec, RoleSpec

ROLES = """\
roles:
  - name: trainer
    entrypoint: {script: train.py, args: [--lr, 1e-3]}
    nodes: {min: 2, max: 3}
    workers_per_node: [2, 1, 1]
  - name: 007
    entrypoint: {module: reader}
    restart: ignore
    env: {DEPTH: 010, DEBUG: null}
"""


def roles_of(text: str, *overrides: str) -> tuple[RoleSpec, ...]:
    roles = parse_job(text, file="job.yaml", overrides=overrides).roles
    assert roles is not None
    return roles


def problems_of(text: str, *overrides: str) -> list[str]:
    with pytest.raises(JobError) as caught:
        parse_job(text, file="job.yaml", overrides=overrides)
    return list(caught.value.problems)


def test_each_role_says_its_own_and_text_is_what_was_typed() -> None:
    trainer, reader = roles_of(ROLES)
    assert trainer.entrypoint is not None
    assert trainer.entrypoint.args == ("--lr", "1e-3")
    assert trainer.nodes == NodesSpec(min=2, max=3)
    assert trainer.workers_per_node == (2, 1, 1)
    assert (reader.name, reader.restart) == ("007", "ignore")
    assert reader.env == {"DEPTH": "010", "DEBUG": None}


def test_set_reaches_a_role_by_its_place() -> None:
    trainer, reader = roles_of(
        ROLES, "roles[1].nodes=2", "roles[0].entrypoint.args[1]=1e-4", "roles[1].env.DEPTH=011", "roles[0].env.A=1"
    )
    assert reader.nodes == NodesSpec(min=2, max=2)
    assert trainer.entrypoint is not None
    assert trainer.entrypoint.args == ("--lr", "1e-4")
    assert reader.env == {"DEPTH": "011", "DEBUG": None}
    assert trainer.env == {"A": "1"}


def test_set_rejects_an_item_that_is_not_there() -> None:
    assert problems_of(
        ROLES,
        "roles[2].nodes=2",
        "roles.trainer.nodes=2",
        "roles[0].nodes[0]=2",
        "roles[0].nodes=two",
        "env[0]=1",
        "roles[].nodes=2",
        "roles[0]x.nodes=2",
    ) == [
        "--set roles[2].nodes: roles has 2 items here, so that it has no [2]",
        "--set roles.trainer.nodes: roles is not a map here, so that it has no trainer",
        "--set roles[0].nodes[0]: roles[0].nodes is not a list here, so that it has no [0]",
        "--set env[0]: env is not a list here, so that it has no [0]",
        "--set roles[].nodes=2: expected key.path=value, such as restart.max_restarts=5",
        "--set roles[0]x.nodes=2: expected key.path=value, such as restart.max_restarts=5",
        "--set roles[0].nodes: expected a number or a map of min and max, found 'two'",
    ]


def test_set_rejects_what_stands_beside_roles() -> None:
    assert problems_of(ROLES, "nodes=2") == ["--set nodes: not beside roles; give it as nodes of each role"]
