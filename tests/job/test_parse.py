from __future__ import annotations

import json
import pathlib
import sys
from datetime import timedelta
from typing import Any

import pytest

from hpc_elastic.errors import ExitCode, JobError
from hpc_elastic.job.defaults import NOT_BUILT, find_not_built
from hpc_elastic.job.parse import parse_job
from hpc_elastic.job.spec import HealthSpec, JobSpec

NO_UNIT = (
    "expected a duration such as 90m, 2h30m, 45s or 1-12:00:00, found '90'; write 90m for minutes, 90s for seconds"
)
MINIMAL = "entrypoint: {script: train.py}\n"


def problems_of(text: str, *overrides: str, file: str = "job.yaml") -> list[str]:
    with pytest.raises(JobError) as caught:
        parse_job(text, file=file, overrides=overrides)
    assert caught.value.exit_code is ExitCode.SETUP
    assert str(caught.value) == "\n".join(caught.value.problems)
    return list(caught.value.problems)


def parse(text: str, *overrides: str) -> JobSpec:
    return parse_job(MINIMAL + text, file="job.yaml", overrides=overrides)


def test_the_example_of_the_design_is_read_but_for_what_is_not_built() -> None:
    job = parse_job(
        """
        name: digits
        site: generic-slurm
        nodes: {min: 3, max: 4}
        spares: 0
        workers_per_node: auto
        resources: {gpus_per_node: 4, cpus_per_worker: 8, memory_per_node: null, exclusive: false}
        time: 2h
        setup: [module load cuda/12.4, source ~/env/bin/activate]
        entrypoint:
          script: train.py
          args: [--epochs, 20]
        workdir: .
        python: python3
        env: {OMP_NUM_THREADS: 4}
        worker_env: {slurm: hide}
        role: default
        restart:
          max_restarts: 3
          backoff: {first: 0s, factor: 2, max: 60s}
          no_progress_limit: 3
          max_node_losses: 64
        progress: {file: null}
        elastic: {join_timeout: 10m, join_retries: 3, lease: 10s, exit_timeout: null, rejoin: at_restart,
                  after_exit_timeout: fail}
        signals: {notice: USR2, lead: 2m, grace: 60s, restart_grace: 5s}
        stall_timeout: null
        requeue: {max: 5, on: [preempted, time_limit, node_loss]}
        start: auto
        preload: []
        logs: {per: rank, tee: [0], max_size: null}
        log_level: info
        metrics: {textfile: null}
        binding: none
        stage: null
        health: {}
        container: null
        template: null
        sbatch: {account: abc, qos: null}
        """,
        file="job.yaml",
    )
    assert job.nodes is not None
    assert (job.nodes.min, job.nodes.max) == (3, 4)
    assert job.time == timedelta(hours=2)
    assert job.env == {"OMP_NUM_THREADS": "4"}
    assert job.sbatch == {"account": "abc", "qos": None}
    assert job.entrypoint is not None
    assert job.entrypoint.args == ("--epochs", "20")


BAD_FILES = sorted((pathlib.Path(__file__).parent / "bad").glob("*.yaml"))


@pytest.mark.parametrize("path", BAD_FILES, ids=lambda path: path.stem)
def test_a_bad_job_file_gets_the_message_that_it_says_at_its_end(path: pathlib.Path) -> None:
    text = path.read_text()
    expected = [line.removeprefix("# says: ") for line in text.splitlines() if line.startswith("# says: ")]
    assert expected
    assert problems_of(text) == expected


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("name: on", "name", "on"),
        ("name: 012345", "name", "012345"),
        ("name: 1.10", "name", "1.10"),
        ("time: 12:00:00", "time", timedelta(hours=12)),
        ("time: 1-12", "time", timedelta(hours=36)),
        ("env: {DEBUG: no, SEED: 012345}", "env", {"DEBUG": "no", "SEED": "012345"}),
        ("env: {RATE: 1e-3, FLAG: True, NOT: null}", "env", {"RATE": "1e-3", "FLAG": "True", "NOT": None}),
        ("sbatch: {account: 0123, contiguous: True}", "sbatch", {"account": "0123", "contiguous": "true"}),
        ("sbatch: {-p: on, mem_per_cpu: 1G}", "sbatch", {"partition": "on", "mem-per-cpu": "1G"}),
        ("restart: {backoff: {factor: 2}}", "restart.backoff.factor", 2.0),
        ("resources: {memory_per_node: 64GB}", "resources.memory_per_node", "64G"),
        ("resources: {memory_per_node: 0}", "resources.memory_per_node", "0"),
        ("workers_per_node: [2, 1]\nnodes: 2", "workers_per_node", (2, 1)),
        ('setup: ["if x; then\\n\\ty\\nfi"]', "setup", ("if x; then\n\ty\nfi",)),
        ("role: trainer", "role", "trainer"),
        ("start: spawn", "start", "spawn"),
        ("preload: [numpy, my_package.models]", "preload", ("numpy", "my_package.models")),
        ("health: {}\ncontainer: {}\nstage: {source: null}", "health", HealthSpec()),
        ("health: {gpus: 20s, scratch: false}", "health.gpus", timedelta(seconds=20)),
        ("health: {gpus: 20s, scratch: false}", "health.scratch", False),
        ("health: {scratch: true}", "health.scratch", True),
    ],
)
def test_a_job_file_means_what_its_author_typed(text: str, path: str, value: object) -> None:
    found: Any = parse(text)
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value


def test_args_keep_their_source_text() -> None:
    job = parse_job("entrypoint: {module: m, args: [on, no, 12:00:00, 012345, 1.10, 1e-3, null]}", file="job.yaml")
    assert job.entrypoint is not None
    assert job.entrypoint.args == ("on", "no", "12:00:00", "012345", "1.10", "1e-3", "null")


def test_all_problems_are_told_at_once_and_in_order() -> None:
    text = """\
nodes: {min: 4, max: 3}
time: 90
restart:
  max_restart: 3
  backoff: {first: 2m}
signals: {lead: 30s, grace: 60s}
sbatch:
  -N: 4
  partition: x
  -p: y
name: a
name: b
env: {RANK: 3}
logs: {tee: [0, x]}
"""
    assert problems_of(text) == [
        "job.yaml:1: entrypoint: missing; expected a map with script, module or command",
        "job.yaml:1: nodes.min: expected at most nodes.max, which is 3, found 4",
        f"job.yaml:2: time: {NO_UNIT}",
        "job.yaml:4: restart.max_restart: unknown key; did you mean max_restarts?",
        "job.yaml:5: restart.backoff.first: expected at most restart.backoff.max, which is 1m, found 2m",
        "job.yaml:6: signals.grace: expected at most signals.lead, which is 30s, found 1m",
        "job.yaml:8: sbatch.-N: sbatch's --nodes does not belong here: use the key nodes",
        "job.yaml:10: sbatch.-p: the same option as partition; give one of them",
        "job.yaml:12: name: given twice; first in line 11",
        "job.yaml:13: env.RANK: every worker gets its own value of this variable; leave it out",
        "job.yaml:14: logs.tee[1]: expected a whole number, found 'x'",
    ]


def test_broken_yaml_is_one_problem_and_no_noise_about_keys() -> None:
    (problem,) = problems_of("restart: [\n", "max_restart=3")
    assert problem.startswith("job.yaml:2: not valid YAML: ")


def test_resources_may_stand_beside_a_gres_without_gpus() -> None:
    assert parse("sbatch: {gres: 'lscratch:10'}\nresources: {gpus_per_node: 2}").resources


def test_set_outranks_the_file_and_the_last_one_counts() -> None:
    job = parse(
        "restart: {max_restarts: 1, no_progress_limit: 2}\nlogs:\n",
        "restart.max_restarts=5",
        "restart.max_restarts=6",
        "logs.tee=[1, 2]",
        "entrypoint.args=[1.10, no]",
        "time=12:00:00",
        "sbatch.account=007",
        "env.URL=a=b",
    )
    assert job.restart is not None
    assert (job.restart.max_restarts, job.restart.no_progress_limit) == (6, 2)
    assert job.logs is not None
    assert job.logs.tee == (1, 2)
    assert job.entrypoint is not None
    assert job.entrypoint.args == ("1.10", "no")
    assert job.time == timedelta(hours=12)
    assert job.sbatch == {"account": "007"}
    assert job.env == {"URL": "a=b"}


def test_set_rejects_what_the_file_may_not_say_and_names_itself() -> None:
    assert problems_of(
        MINIMAL + "nodes: 4\n",
        "restart.max_restarts=many",
        "restart.max_restart=5",
        "restrt.max=1",
        "time=90",
        "nodes.min=2",
        "sbatch.mem=[",
        "signals={grace: 1s, grace: 2s}",
        "nonsense",
        "=3",
    ) == [
        "--set nodes.min: nodes is not a map here, so that it has no min",
        "--set sbatch.mem: not valid YAML: expected the node content, but found '<stream end>'",
        "--set signals.grace: given twice",
        "--set nonsense: expected key.path=value, such as restart.max_restarts=5",
        "--set =3: expected key.path=value, such as restart.max_restarts=5",
        f"--set time: {NO_UNIT}",
        "--set restart.max_restarts: expected a whole number, found 'many'",
        "--set restart.max_restart: unknown key; did you mean max_restarts?",
        "--set restrt: unknown key; did you mean restart?",
    ]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("partition", "sbatch.partition"),
        ("queue", "sbatch.partition"),
        ("account", "sbatch.account"),
        ("qos", "sbatch.qos"),
        ("gres", "sbatch.gres, or resources.gpus_per_node for GPUs"),
        ("mem", "resources.memory_per_node"),
        ("cpus", "resources.cpus_per_worker"),
        ("gpus", "resources.gpus_per_node"),
        ("modules", "setup: [module load ...]"),
        ("walltime", "time"),
        ("tasks-per-node", "workers_per_node"),
        ("workers", "workers_per_node"),
    ],
)
def test_key_that_people_know_by_another_name_is_answered_with_ours(key: str, meant: str) -> None:
    problem = f"unknown key; did you mean {meant}?"
    assert problems_of(f"{MINIMAL}{key}: 4\n") == [f"job.yaml:2: {key}: {problem}"]
    assert problems_of(f"{MINIMAL}resources: {{{key}: 4}}\n") == [f"job.yaml:2: resources.{key}: {problem}"]
    assert problems_of(MINIMAL, f"{key}=4") == [f"--set {key}: {problem}"]


def test_a_text_that_the_kernel_starts_no_program_with_is_refused() -> None:
    longest = "ä" * (64 * 1024 - 1) + "x"
    assert parse_job(f"{MINIMAL}env: {{A: {longest}}}\n", file="job.yaml").env == {"A": longest}
    says = (
        "expected at most 131071 bytes, found 131072; Linux starts no program with a longer text: "
        "write it to a file, and give its path"
    )
    assert problems_of(f"{MINIMAL}env: {{A: {longest}x}}\n") == [f"job.yaml:2: env.A: {says}"]
    assert problems_of(MINIMAL, f"entrypoint.args=[{longest}x]") == [f"--set entrypoint.args[0]: {says}"]


def test_a_problem_is_one_line_without_control_characters() -> None:
    assert problems_of(MINIMAL + r'"a\n\e[2J": 1') == [r"job.yaml:2: a\n\x1b[2J: unknown key"]


def test_set_repairs_what_is_wrong_in_the_file() -> None:
    assert parse("time: 90", "time=90m").time == timedelta(minutes=90)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("job.yaml", "job"),
        ("/a/b/resnet.v2.yml", "resnet.v2"),
        ("my job (1).yaml", "my-job-1"),
        ("-", "job"),
        ("日本.yaml", "日本"),
        ("gro\u0308\u00dfe 2.yaml", "größe-2"),  # as macOS names it
        ("हिन्दी.yaml", "हिन्दी"),
        ("☃.yaml", "job"),
        ("run-\U0001f600\U00020000.yaml", "run"),
        ("a\u202eb\x1b.yaml", "a-b"),
        ("\udce9t\udce9.yaml", "t"),  # another encoding
        ("日" * 100 + ".yaml", "日" * 64),
        ("a" * 63 + "日.yaml", "a" * 63 + "日"),
    ],
)
def test_the_default_name_is_the_files(file: str, name: str) -> None:
    assert parse_job(MINIMAL, file=file).name == name
    assert parse_job(MINIMAL, file="job.yaml", overrides=[f"name={name}"]).name == name


@pytest.mark.parametrize(("file", "name"), [("日本.yaml", "job"), ("entra\u00c3\u00aenement.yaml", "entra-nement")])
def test_the_default_name_is_ascii_where_files_have_names_of_another_encoding(
    file: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch script is UTF-8: bash would look for a folder that is not there."""
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "iso8859-1")
    assert parse_job(MINIMAL, file=file).name == name


@pytest.mark.parametrize("name", ["a b", "-a", "日/本", "☃", "\U00020000", "a\u202eb", "a\u0085", "日" * 65, "\u0301a"])
def test_a_name_has_only_what_folders_and_slurm_can_have(name: str) -> None:
    with pytest.raises(JobError, match="expected up to 64 letters, digits"):
        parse_job(MINIMAL, file="job.yaml", overrides=[f"name={json.dumps(name)}"])


def test_everything_that_a_job_file_can_say_is_built() -> None:
    """The next key that is not has its name in the list."""
    assert dict(NOT_BUILT) == {}


def test_what_is_not_built_yet_is_found_unless_it_asks_for_what_is_there() -> None:
    job = parse("start: fork\nstage: {source: a}\nelastic: {lease: 20s}")
    not_built: dict[str, tuple[object, ...]] = {"start": ("auto",), "stage.source": (), "elastic.rejoin": ()}
    assert list(find_not_built(job, not_built)) == [("start",), ("stage", "source")]
    assert list(find_not_built(parse("start: auto"), not_built)) == []


def test_a_wrong_value_of_what_is_not_built_yet_is_its_only_problem() -> None:
    assert problems_of(MINIMAL + "stall_timeout: soon") == [
        "job.yaml:2: stall_timeout: expected a duration such as 90m, 2h30m, 45s or 1-12:00:00, found 'soon'"
    ]
