"""The server says that no fork may be made, and why, after an import that forbids it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.tiers import first_of
from tests.worker.forking import fork_server

if TYPE_CHECKING:
    from tests.worker.conftest import Runner

THREAD = """
import threading
threading.Thread(target=threading.Event().wait, name="prefetcher", daemon=True).start()
"""
# A thread that does not outlive a fork, as OpenBLAS's.
STOPS_AT_FORK = """
import os, threading
go = threading.Event()
thread = threading.Thread(target=go.wait)
thread.start()
os.register_at_fork(before=lambda: (go.set(), thread.join()))
"""
DANGERS = {
    "thread": (THREAD, "an import has left 1 more threads running: prefetcher"),
    "process": ("import subprocess; process = subprocess.Popen(['true'])", "an import has started a process"),
    "trace": ("import sys; sys.settrace(lambda *_: None)", "a debugger, profiler or coverage tool"),
    "profile": ("import sys; sys.setprofile(lambda *_: None)", "a debugger, profiler or coverage tool"),
    "cuda": ("import ctypes; ctypes.CDLL(DRIVER)", "an import has initialised the CUDA driver"),
    "crash": ("import os; os.register_at_fork(after_in_child=os.abort)", "a fork of it was killed by signal 6"),
}


def preload(runner: Runner, source: str) -> str | None:
    """What the server says about forks after it has imported `source`, which can be imported."""
    return unsafe_after(runner, source, failed=[])


def unsafe_after(runner: Runner, source: str, *options: str, failed: list[list[str]] | None = None) -> str | None:
    """What the server says about forks after it has tried to import `source`."""
    runner.write("site/torch.py", "__version__ = '9.9'")
    runner.write("site/dangerous.py", source)
    environment = {**runner.environment, "PYTHONPATH": str(runner.directory / "site")}
    with fork_server(runner.directory, environment, "--preload", "dangerous", *options) as server:
        assert failed is None or server.ready["failed_preloads"] == failed
        unsafe: str | None = server.ready["unsafe"]
        return unsafe


@pytest.mark.long
@pytest.mark.parametrize(("source", "reason"), first_of(DANGERS, 2))
def test_server_is_unsafe_if_an_import_leaves_something_that_no_fork_survives(
    runner: Runner, source: str, reason: str
) -> None:
    library = next(line.split()[5] for line in Path("/proc/self/maps").read_text().splitlines() if "/libm" in line)
    driver = shutil.copy(library, runner.directory / "libcuda.so.1")
    assert (preload(runner, source.replace("DRIVER", repr(str(driver)))) or "").startswith(reason)


# What CUDA's driver answers before and after cuInit: CUDA_ERROR_NOT_INITIALIZED, and CUDA_SUCCESS.
@pytest.mark.long
@pytest.mark.parametrize(
    ("answer", "unsafe"),
    [(3, None), (0, "an import has initialised the CUDA driver, which does not survive a fork")],
    ids=["not initialised", "initialised"],
)
def test_server_is_safe_with_a_cuda_driver_that_is_loaded_and_not_initialised(
    runner: Runner, answer: int, unsafe: str | None
) -> None:
    """As `import torch` leaves it in builds for CUDA 13."""
    source = runner.write("driver.c", f"int cuDeviceGetCount(int *count) {{ *count = 1; return {answer}; }}\n")
    driver = runner.directory / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-nostdlib", "-o", driver, source], check=True)
    assert preload(runner, f"import ctypes; ctypes.CDLL({str(driver)!r})") == unsafe


@pytest.mark.long
def test_server_is_safe_if_a_thread_ends_at_the_first_fork(runner: Runner) -> None:
    assert preload(runner, STOPS_AT_FORK) is None


ASKS = {
    "get": ("import os; RANK = int(os.environ.get('RANK', 0))", "RANK"),
    "getenv": ("import os; WORLD = os.getenv('WORLD_SIZE')", "WORLD_SIZE"),
    "in": ("import os; IS_ALONE = 'LOCAL_RANK' not in os.environ", "LOCAL_RANK"),
    "caught": ("import os\ntry: MASTER = os.environ['MASTER_ADDR']\nexcept KeyError: pass", "MASTER_ADDR"),
    "and fails": ("import os; MASTER = os.environ['MASTER_PORT']", "MASTER_PORT"),
}


@pytest.mark.long
@pytest.mark.parametrize(("source", "name"), ASKS.values(), ids=ASKS)
def test_server_is_unsafe_if_an_import_asks_for_what_only_workers_have(runner: Runner, source: str, name: str) -> None:
    del runner.environment["RANK"], runner.environment["LOCAL_RANK"]
    runner.write("site/settings.py", source)
    why = f"an import (settings) has read {name}, which only workers have"
    assert unsafe_after(runner, "import settings") == why


@pytest.mark.long
def test_server_is_unsafe_if_an_import_asks_for_what_the_job_gives_each_worker(runner: Runner) -> None:
    source = "import os; GPU = os.environ.get('GPU')"
    assert unsafe_after(runner, source) is None
    why = "an import (dangerous) has read GPU, which only workers have"
    assert unsafe_after(runner, source, "--own", "GPU") == why


@pytest.mark.long
def test_server_is_safe_if_an_import_looks_at_all_variables_there_are(runner: Runner) -> None:
    del runner.environment["RANK"], runner.environment["LOCAL_RANK"]
    runner.environment["COLOUR"] = "red"
    source = "import os; ALL = dict(os.environ); assert os.environ.copy()['COLOUR'] == os.environ['COLOUR'] == 'red'"
    assert unsafe_after(runner, source) is None


@pytest.mark.long
def test_server_is_unsafe_if_torch_breaks_off_in_the_middle(runner: Runner) -> None:
    """A second import of what is left in `sys.modules` would fail in other words than the first."""
    runner.write("site/torch/__init__.py", "from torch import half; import nowhere")
    runner.write("site/torch/half.py", "")
    environment = {**runner.environment, "PYTHONPATH": str(runner.directory / "site")}
    with fork_server(runner.directory, environment) as server:
        assert server.ready["no_torch"] == "ModuleNotFoundError: No module named 'nowhere'"
        assert server.ready["unsafe"] == "the import of torch broke off half way"
