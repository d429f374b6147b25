"""What an array varies: how it is written, all combinations, and where it goes in a job file."""

from __future__ import annotations

import pytest

from hpc_elastic.errors import UsageError
from hpc_elastic.job.parameters import combine, parse_parameters
from hpc_elastic.job.parse import names_in_job, parse_job

JOB = """\
name: digits
workdir: runs/${lr}
env: {SEED: "${seed}", HOME_OF: "${HOME}", PRICE: $$5}
metrics: {textfile: "${lr}.prom"}
setup: ["echo ${lr}"]
roles:
- {name: one, nodes: 1, entrypoint: {script: a.py, args: ["--lr=${lr}", "$$lr"]}, env: {X: "${seed}"}}
"""


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("lr=1e-3,3e-4", ("1e-3", "3e-4")),
        ("lr=1e-3", ("1e-3",)),
        ("seed=0..3", ("0", "1", "2", "3")),
        ("seed=3..1", ("3", "2", "1")),
        ("seed=-1..1", ("-1", "0", "1")),
        ("seed=0..10..5", ("0", "5", "10")),
        ("seed=0..9..5", ("0", "5")),
        ("seed=9..0..5", ("9", "4")),
        ("seed=0..2,7", ("0", "1", "2", "7")),
        ("x=0.5..1", ("0.5..1",)),  # whole numbers only
        ("x=a=b", ("a=b",)),
        ("env.A=a b , c", ("a b", "c")),
    ],
)
def test_values_are_words_and_ranges(word: str, values: tuple[str, ...]) -> None:
    (parameter,) = parse_parameters([word])
    assert (parameter.name, parameter.values) == (word.partition("=")[0], values)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lr"], "--array takes NAME=VALUES, found 'lr'"),
        (["=1"], "--array takes NAME=VALUES, found '=1'"),
        (["lr="], "gives lr an empty value"),
        (["lr=1,,2"], "gives lr an empty value"),
        (["lr=1,2,1"], "gives lr the value 1 twice"),
        (["seed=0..3,2"], "gives seed the value 2 twice"),
        (["lr=1", "lr=2"], "names lr twice"),
        (["seed=0..3..0"], "a range with step 0"),
        (["seed=0..999999999"], "makes 1000000000 runs, expected at most 10000"),
        (["a=1..200", "b=1..200"], "makes 40000 runs, expected at most 10000"),
    ],
)
def test_parameters_reject(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_parameters(words)
    assert message in raised.value.message


def test_runs_are_all_combinations_and_the_last_parameter_is_the_fastest() -> None:
    combinations = combine(parse_parameters(["lr=1,2", "seed=0..2"]))
    assert [tuple(each.values()) for each in combinations] == [
        *(("1", "0"), ("1", "1"), ("1", "2")),
        *(("2", "0"), ("2", "1"), ("2", "2")),
    ]
    assert list(combinations[0]) == ["lr", "seed"]


def test_a_value_is_put_wherever_a_variable_may_stand() -> None:
    job = parse_job(JOB, file="job.yaml", parameters={"lr": "1e-3", "seed": "4"})
    assert job.workdir == "runs/1e-3"
    assert job.env == {"SEED": "4", "HOME_OF": "${HOME}", "PRICE": "$$5"}
    assert job.metrics is not None
    assert job.metrics.textfile == "1e-3.prom"
    (role,) = job.roles or ()
    assert role.entrypoint is not None
    assert role.entrypoint.args == ("--lr=1e-3", "$$lr")
    assert role.env == {"X": "4"}
    assert job.setup == ("echo ${lr}",)  # the shell's


def test_a_value_is_never_expanded_itself() -> None:
    job = parse_job(JOB, file="job.yaml", parameters={"lr": "${seed} $5", "seed": "4"})
    assert job.workdir == "runs/$${seed} $$5"


def test_the_names_in_a_job_are_those_that_expand() -> None:
    assert names_in_job(JOB, file="job.yaml") == {"lr", "seed", "HOME"}
    assert names_in_job(JOB, file="job.yaml", overrides=["workdir=${x}"]) == {"lr", "seed", "HOME", "x"}
    assert names_in_job("entrypoint: 3\nroles: {a: 1}\nenv: [1]\n", file="job.yaml") == frozenset()
