"""What a program says becomes the run that a job file would; nothing is submitted here."""

from __future__ import annotations

import functools
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.api.functions import function_name, pickle_function
from hpc_elastic.api.job import Job
from hpc_elastic.api.prepare import PreparedRun
from hpc_elastic.api.submit import prepare
from hpc_elastic.errors import JobError, UsageError
from hpc_elastic.rundir.function_file import read_function, read_header


def add(a: int, b: int) -> int:
    return a + b


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return tmp_path


def script_and_plan(prepared: PreparedRun) -> object:
    role = prepared.plan.roles[0]
    return role.entrypoint, role.nodes, prepared.plan.workdir, prepared.plan.restart, prepared.plan.name


def test_a_path_a_mapping_and_a_job_are_the_same_run(here: Path) -> None:
    (here / "job.yaml").write_text("name: a\nnodes: 2\nentrypoint: {script: train.py}\nrestart: {max_restarts: 1}\n")
    of_file = prepare("job.yaml", site="local")
    of_mapping = prepare(
        {"name": "a", "nodes": 2, "entrypoint": {"script": "train.py"}, "restart": {"max_restarts": 1}}, site="local"
    )
    of_job = prepare(
        Job(name="a", nodes=2, entrypoint={"script": Path("train.py")}, restart={"max_restarts": 1}), site="local"
    )
    assert script_and_plan(of_file) == script_and_plan(of_mapping) == script_and_plan(of_job)


def test_keys_stand_over_what_the_job_says_section_by_section(here: Path) -> None:
    text = "nodes: 2\nentrypoint: {script: train.py}\nrestart: {max_restarts: 1, no_progress_limit: 9}\n"
    (here / "job.yaml").write_text(text)
    keys: dict[str, Any] = {"nodes": {"min": 1, "max": 3}, "restart": {"max_restarts": 7}, "env": {"A": "1.10"}}
    mapping = {"nodes": 2, "entrypoint": {"script": "train.py"}, "restart": {"max_restarts": 1, "no_progress_limit": 9}}
    for job in (here / "job.yaml", mapping):
        plan = prepare(job, site="local", **keys).plan
        assert (plan.nodes.min, plan.nodes.max) == (1, 3)
        assert (plan.restart.max_restarts, plan.restart.no_progress_limit) == (7, 9)
        assert plan.env["A"] == "1.10"


def प्रशिक्षण() -> None:  # noqa: N802  (its script has no case)
    """Its name has vowel signs, which are marks and no letters."""


def _() -> None:
    """Nothing of its name could begin a run's."""


def test_a_function_is_the_entrypoint_and_named_by_itself(here: Path) -> None:
    prepared = prepare(add, 1, 2, site="local", nodes=2)
    role = prepared.plan.roles[0]
    assert (role.entrypoint.kind, role.entrypoint.target) == ("function", f"{__name__}:add")
    assert (prepared.plan.name, prepared.plan.workdir) == ("add", str(here))
    assert prepared.source.function is not None
    (here / "function.pkl").write_bytes(prepared.source.function)
    header, pickled = read_function(str(here / "function.pkl"))
    function, arguments, keywords = pickle.loads(pickled)
    assert function(*arguments, **keywords) == 3
    assert header.packages.keys() >= {"cloudpickle"}


@pytest.mark.parametrize(
    ("function", "name", "run"),
    [
        (add, f"{__name__}:add", "add"),
        (functools.partial(add, 1), f"{__name__}:add", "add"),
        (lambda: 1, f"{__name__}:<lambda>", "lambda"),
        (प्रशिक्षण, f"{__name__}:प्रशिक्षण", "प्रशिक्षण"),
        (_, f"{__name__}:_", "function"),
        (Path.cwd, f"{Path.cwd.__module__}:{Path.cwd.__qualname__}", "cwd"),
    ],
)
def test_a_function_has_a_name_for_people_and_one_for_its_run(function: object, name: str, run: str) -> None:
    assert callable(function)
    assert function_name(function) == name
    assert prepare(function, site="local").plan.name == run


def test_a_function_and_its_arguments_go_by_value_from_a_process_that_multiprocessing_has_spawned(here: Path) -> None:
    (here / "script.py").write_text(
        "import dataclasses, multiprocessing, sys\n"
        "from hpc_elastic.api.functions import pickle_function\n"
        "@dataclasses.dataclass\n"
        "class Setting:\n    value: int\n"
        "def read(setting):\n    return setting.value\n"
        "def keep():\n    open('f', 'wb').write(pickle_function(read, (Setting(7),)))\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=keep)\n"
        "    child.start(); child.join(); sys.exit(child.exitcode)\n"
    )
    subprocess.run([sys.executable, "script.py"], check=True)
    header, pickled = read_function(str(here / "f"))
    assert header.is_by_value
    function, arguments, _ = pickle.loads(pickled)
    assert function(*arguments) == 7


@pytest.mark.long
def test_the_header_says_whether_bytecode_is_in_the_pickle(here: Path) -> None:
    local = 3
    for function, is_by_value in ((lambda: local, True), (shutil.copy, False)):
        (here / "f").write_bytes(pickle_function(function, ()))
        assert read_header(str(here / "f")).is_by_value is is_by_value


def test_a_job_of_python_says_what_is_wrong_without_a_file_and_a_line() -> None:
    with pytest.raises(JobError) as caught:
        prepare(add, nodes="x", restart={"max_restart": 1}, site="local")
    assert caught.value.problems == (
        "nodes: expected a number or a map of min and max, found 'x'",
        "restart.max_restart: unknown key; did you mean max_restarts?",
    )


def test_a_job_file_cannot_name_a_function(here: Path) -> None:
    (here / "job.yaml").write_text("entrypoint: {function: 'a:b'}\n")
    with pytest.raises(JobError, match=r"entrypoint\.function: a function comes from Python"):
        prepare("job.yaml", site="local")


def test_keys_beside_a_job_file_are_refused_if_no_file_can_hold_them(here: Path) -> None:
    (here / "job.yaml").write_text("entrypoint: {script: train.py}\n")
    with pytest.raises(JobError) as caught:
        prepare("job.yaml", site="local", env={"A": b"b"}, time=timedelta(seconds=-1))
    assert caught.value.problems == (
        "env.A: expected text, a number, True, False, None, a list or a mapping, found a bytes",
        "time: expected a duration of at least 0s, found -1 day, 23:59:59",
    )


@pytest.mark.parametrize("key", ["args", "restart_args"])
def test_submit_rejects_a_command_line_for_a_function(key: str, here: Path) -> None:
    with pytest.raises(JobError, match=rf"^entrypoint\.{key}: a function takes no command line"):
        prepare(add, 1, 2, entrypoint={key: ["--resume"]}, site="local")


def test_submit_rejects_arguments_without_a_function_and_what_is_no_job() -> None:
    with pytest.raises(UsageError, match="found 1 arguments after a job that is no function"):
        prepare({"entrypoint": {"script": "train.py"}}, 1)
    with pytest.raises(UsageError, match="found a int as the job"):
        prepare(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"there is no job file none\.yaml"):
        prepare("none.yaml")


def test_submit_rejects_what_cannot_be_pickled() -> None:
    with pytest.raises(UsageError, match="test_submit:add and its arguments cannot be pickled: TypeError"):
        prepare(add, threading.Lock(), site="local")


async def train_async(steps: int) -> None:
    """Train, if somebody awaits it."""


def train_step_by_step(steps: int) -> Iterator[int]:
    yield from range(steps)


async def train_both_ways(steps: int) -> AsyncIterator[int]:
    yield steps


class AsyncTrainer:
    """An object that is called, and whose call is a coroutine."""

    async def __call__(self, steps: int) -> None:
        """Train, if somebody awaits it."""


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (train_async, "an async function"),
        (functools.partial(train_async, 1), "an async function"),
        (AsyncTrainer(), "an async function"),
        (AsyncTrainer().__call__, "an async function"),
        (train_step_by_step, "a generator function"),
        (train_both_ways, "a generator function"),
    ],
)
def test_submit_rejects_a_function_whose_call_runs_nothing(function: Callable[..., Any], kind: str) -> None:
    with pytest.raises(UsageError, match=rf"is {kind}, whose call runs nothing"):
        prepare(function, 1, site="local")


def test_a_class_is_no_async_function_though_its_objects_are(here: Path) -> None:
    assert prepare(AsyncTrainer, site="local").source.function is not None


@pytest.mark.long
def test_the_door_is_light_until_something_is_submitted() -> None:
    heavy = "{'torch', 'yaml', 'pydantic', 'jinja2', 'submitit', 'cloudpickle', 'asyncio', 'rich'}"
    program = f"import sys, hpc_elastic; dir(hpc_elastic); hpc_elastic.__version__; print({heavy} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"
    program = "import sys, hpc_elastic as h; h.submit, h.Run, h.Job, h.RunFailed; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
