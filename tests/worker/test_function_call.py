"""A worker that calls a function: what it is while it runs, what is kept, and what is said where that cannot be."""

from __future__ import annotations

import functools
import json
import os
import pickle
import platform
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from hpc_elastic.api.functions import pickle_function
from hpc_elastic.rundir.function_file import (
    FunctionHeader,
    dump_function,
    package_mismatches,
    python_mismatch,
    read_function,
)
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.worker import function_call

PACKAGE = Path(function_call.__file__).parents[1]
BOOTSTRAP = ("hpc_elastic.worker.bootstrap",)


@dataclass
class Called:
    """A worker process that has called a function."""

    layout: RunLayout
    exit_code: int
    stdout: str
    stderr: str

    def value(self) -> Any:
        return pickle.loads(Path(self.layout.return_value(1, 3)).read_bytes())

    def error(self) -> str:
        return str(json.loads(Path(self.layout.error(1, 3)).read_text())["message"]["message"])


def call(content: bytes, folder: Path) -> Called:
    layout = RunLayout(str(folder))
    os.makedirs(layout.rank(1, 3), exist_ok=True)
    Path(layout.function).write_bytes(content)
    variables = {"HPC_ELASTIC_RUN_DIR": layout.root, "HPC_ELASTIC_ATTEMPT": "1", "RANK": "3"}
    done = subprocess.run(
        [sys.executable, str(PACKAGE / "launch.py"), *BOOTSTRAP, "--parent", "0", "--function", layout.function, "--"],
        env={**os.environ, **variables, "TORCHELASTIC_ERROR_FILE": layout.error(1, 3)},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return Called(layout, done.returncode, done.stdout, done.stderr)


def called(function: Callable[..., Any], folder: Path, *arguments: Any) -> Called:
    return call(pickle_function(function, arguments), folder)


@pytest.mark.long
def test_what_a_function_returns_is_kept(tmp_path: Path) -> None:
    def add(a: int, b: int) -> dict[str, Any]:
        return {"sum": a + b, "later": lambda: a}

    done = called(add, tmp_path, 1, 2)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.value()["sum"] == 3
    assert done.value()["later"]() == 1


@pytest.mark.long
def test_a_function_finds_an_empty_main_and_no_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as `python -m` has it, and pytest as a program not

    def look() -> Any:
        import sys

        main = sys.modules["__main__"]
        return sys.argv, getattr(main, "__file__", None), main.__spec__, sys.path[0]

    assert called(look, tmp_path).value() == (["-c"], None, None, "")


@pytest.mark.long
def test_a_function_of_a_module_is_found_where_it_was_submitted_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "made_for_this_test.py").write_text("def where():\n    return __file__\n")
    monkeypatch.syspath_prepend(str(tmp_path / "scripts"))
    module = __import__("made_for_this_test")
    try:
        done = called(module.where, tmp_path)
    finally:
        del sys.modules["made_for_this_test"]
    assert done.value() == str(tmp_path / "scripts" / "made_for_this_test.py")


def test_the_path_of_the_submission_goes_around_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/lib", "/site"])
    function_call.extend_path(["/scripts", "/lib", "/site", "/more"])
    assert sys.path == ["/scripts", "", "/lib", "/site", "/more"]


@pytest.mark.long
@pytest.mark.parametrize("code", [None, 0, False])
def test_a_function_that_leaves_by_sys_exit_returns_none(code: int | None, tmp_path: Path) -> None:
    done = called(lambda: sys.exit(code), tmp_path)
    assert (done.exit_code, done.value()) == (0, None)


@pytest.mark.long
@pytest.mark.parametrize(("code", "expected"), [(3, 3), ("no", 1), (0.0, 1)])
def test_a_function_that_leaves_with_a_failure_returns_nothing(code: object, expected: int, tmp_path: Path) -> None:
    done = called(lambda: sys.exit(code), tmp_path)  # type: ignore[arg-type]
    assert done.exit_code == expected
    assert not os.path.exists(done.layout.return_value(1, 3))


@pytest.mark.long
def test_a_child_that_the_function_forks_keeps_nothing(tmp_path: Path) -> None:
    def fork() -> str:
        import os

        child = os.fork()
        if child == 0:
            return "the child's"
        os.waitpid(child, 0)
        return "the rank's"

    assert called(fork, tmp_path).value() == "the rank's"


class Seen:
    def __del__(self, write: Callable[[int, bytes], int] = os.write) -> None:
        write(1, b"dropped\n")


@pytest.mark.variant(of="test_ends_as_plain_python_does")
@pytest.mark.long
@pytest.mark.parametrize(("is_held", "said"), [(True, ""), (False, "dropped\n")])
def test_variables_of_a_function_stay_while_threads_of_a_process_group_may_wait_for_it(
    tmp_path: Path, is_held: bool, said: str
) -> None:
    """DistributedDataParallel holds one beyond `destroy_process_group`, whose destructor may never return."""
    import torch  # not in the function: torch 2.13 holds the frames of whoever imports it first
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def train() -> str:
        seen = Seen()  # noqa: F841
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        if is_held:
            model = DistributedDataParallel(torch.nn.Linear(1, 1))  # noqa: F841
        dist.destroy_process_group()
        return "trained"

    done = called(train, tmp_path)
    assert (done.exit_code, done.stdout, done.value()) == (0, said, "trained")


def test_the_frame_of_a_call_is_kept_and_profiling_goes_on_as_before() -> None:
    def called(number: int) -> int:
        local = [number]
        return sum(local)

    seen: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        seen.append(f"{event} {frame.f_code.co_name}")

    sys.setprofile(profile)
    try:
        value, frame = function_call.call_keeping_frame(called, (3,), {})
        without = function_call.call_keeping_frame(functools.partial(sum, [1, 2]), (), {})
    finally:
        sys.setprofile(None)
    assert (value, without) == (3, (3, None))
    assert frame is not None
    assert frame.f_locals == {"number": 3, "local": [3]}
    assert "return called" in seen


@pytest.mark.long
def test_the_traceback_of_a_function_shows_the_function_alone(tmp_path: Path) -> None:
    def fails() -> None:
        raise ValueError("no")

    done = called(fails, tmp_path)
    assert (done.exit_code, done.error()) == (1, "ValueError: no")
    assert "in fails" in done.stderr
    assert "hpc_elastic" not in done.stderr.replace(__file__, "")


@pytest.mark.long
def test_a_value_that_cannot_be_pickled_is_a_failure_that_says_so(tmp_path: Path) -> None:
    done = called(threading.Lock, tmp_path)
    assert done.exit_code == 1
    assert "returned a lock that cannot be pickled" in done.error()


@pytest.mark.long
def test_a_function_that_cannot_be_unpickled_names_the_packages_that_differ(tmp_path: Path) -> None:
    header = FunctionHeader(
        function="gone:f",
        python=platform.python_version(),
        is_by_value=False,
        packages={"nowhere": "1.0", "pytest": "0"},
    )
    done = call(dump_function(header, b"cgone\nf\n."), tmp_path)
    assert done.exit_code == 1
    assert "gone:f and its arguments cannot be unpickled: ModuleNotFoundError: No module named 'gone'" in done.error()
    assert "nowhere is not installed here and 1.0 where it was submitted" in done.error()


@pytest.mark.long
def test_another_version_of_a_package_is_said_where_the_function_works_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "first").write_bytes(pickle_function(lambda: 1, ()))
    header, pickled = read_function(str(tmp_path / "first"))
    done = call(dump_function(replace(header, packages={"pytest": "0.1"}), pickled), tmp_path)
    assert done.value() == 1
    assert f"hpc-elastic: pytest is {pytest.__version__} here and 0.1 where it was submitted" in done.stderr


@pytest.mark.parametrize(
    ("is_by_value", "python", "is_refused"),
    [(True, "3.11.9", False), (True, "3.1.1", True), (False, "3.12.0", False), (True, "3.12.0", True)],
)
def test_bytecode_is_for_the_same_minor_version_of_python(is_by_value: bool, python: str, is_refused: bool) -> None:
    header = FunctionHeader(function="m:f", python="3.11.7", is_by_value=is_by_value)
    assert (python_mismatch(header, python) is not None) is is_refused


def test_packages_are_compared_by_what_is_here() -> None:
    header = FunctionHeader(function="m:f", python="3", is_by_value=False, packages={"a": "1", "b": "2", "c": "3"})
    assert package_mismatches(header, {"a": "1", "b": "9"}.get) == [
        "b is 9 here and 2 where it was submitted",
        "c is not installed here and 3 where it was submitted",
    ]
