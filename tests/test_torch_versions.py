"""What of ours uses torch holds from the oldest torch that it claims: against stubs of its API, by version.

Only the torch of `constraints.txt` is run for real. `tests/torch_stubs/README.md` says where each name came from.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.integrations.torchrun.entry import OLDEST_TORCH, check_version
from hpc_elastic.worker.store_host import takes_listener_with_libuv
from tests.tiers import variants

REPOSITORY = Path(__file__).parents[1]
STUBS = Path(__file__).parent / "torch_stubs"
VERSIONS = tuple(f"2.{minor}" for minor in range(2, 15))
AT_ITS_FLOOR = ("2.4", "2.5")  # the last one that the rendezvous backend refuses, and the first one that it takes
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="there is no torch")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def use(what: str, version: str) -> subprocess.CompletedProcess[str]:
    """Runs one of `uses.py` with the stub of a version as `torch`."""
    return run_with_stub(version, str(STUBS / "uses.py"), what)


def run_with_stub(version: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "HPC_ELASTIC_"))}
    environ |= {"STUB_TORCH": version, "PYTHONPATH": os.pathsep.join((str(STUBS), str(REPOSITORY)))}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)


def test_the_oldest_version_that_is_tried_is_the_one_that_the_project_claims() -> None:
    assert f'"torch>={VERSIONS[0]}"' in (REPOSITORY / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    "version",
    [VERSIONS[0], VERSIONS[-1], *variants(*VERSIONS[1:-1], of="test_workers_and_converters_use_what_this_torch_has")],
)
def test_workers_and_converters_use_what_this_torch_has(version: str) -> None:
    done = use("workers", version)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "version",
    [
        *(VERSIONS[0], *AT_ITS_FLOOR, VERSIONS[-1]),
        *variants(
            *(version for version in VERSIONS[1:-1] if version not in AT_ITS_FLOOR),
            of="test_the_rendezvous_backend_uses_what_this_torch_has_or_refuses_it",
        ),
    ],
)
def test_the_rendezvous_backend_uses_what_this_torch_has_or_refuses_it(version: str) -> None:
    done = use("handler", version)
    if numbers(version) >= OLDEST_TORCH:
        assert done.returncode == 0, done.stderr
    else:
        assert numbers(version) <= numbers(AT_ITS_FLOOR[0])
        oldest = ".".join(map(str, OLDEST_TORCH))
        assert f"needs torch {oldest} or newer, and this one is {version}.0+stub: upgrade torch" in done.stderr


def test_an_error_for_an_old_torch_names_what_works_with_it() -> None:
    with pytest.raises(RuntimeError, match=r"hpc-elastic run.*which need torch 2\.2"):
        check_version("2.4.1+cu121")
    check_version("2.5.0a0+872d972e41.nv24.08")
    check_version("built here")


@pytest.mark.parametrize(
    ("version", "takes"),
    [("2.2.0", False), ("2.7.1+cu128", False), ("2.8.0", True), ("2.10.0a0+git1", True), ("3.0", True), ("mine", True)],
)
def test_a_torch_whose_libuv_store_takes_no_listener_serves_the_older_store(version: str, takes: bool) -> None:
    assert takes_listener_with_libuv(version) is takes


# Every use, also in lines that nothing above runs.


def imports(path: Path) -> Iterator[tuple[str, str, str]]:
    """Of a file: the module of torch, the name that is imported from it, and the name that it has in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            yield from ((node.module or "", alias.name, alias.asname or alias.name) for alias in node.names)


def users() -> list[Path]:
    return sorted(path for path in (REPOSITORY / "hpc_elastic").rglob("*.py") if list(imports(path)))


def attributes(path: Path, name: str) -> set[str]:
    """What a file reads of something that it has under this name."""
    found = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute))
    return {node.attr for node in found if isinstance(node.value, ast.Name) and node.value.id == name}


def named(path: Path) -> list[str]:
    """Every name of torch's that a file uses."""
    said = []
    for module, name, here in imports(path):
        is_module = (STUBS / module.replace(".", "/") / f"{name}.py").exists()
        said += [f"{module}.{name}.{attribute}" for attribute in attributes(path, here)] if is_module else []
        said.append(f"{module}.{name}")
    return said


LOOK = """
import importlib, sys
for dotted in sys.argv[1:]:
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part, None)
        if found is None:
            print(dotted)
        break
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "version",
    [VERSIONS[0], VERSIONS[-1], *variants(*VERSIONS[1:-1], of="test_no_name_is_used_that_this_torch_lacks")],
)
def test_no_name_is_used_that_this_torch_lacks(version: str) -> None:
    floors = {"integrations/torchrun": OLDEST_TORCH, "integrations/torch_checkpoint": (2, 4)}
    wanted = set()
    for path in users():
        module = path.relative_to(REPOSITORY / "hpc_elastic").with_suffix("").as_posix()
        floor = max((floors[start] for start in floors if module.startswith(start)), default=(2, 2))
        if numbers(version) >= floor:
            wanted |= set(named(path))
    assert {"torch.distributed.TCPStore", "torch.distributed.elastic.agent.server.api.WorkerState"} <= wanted
    done = run_with_stub(version, "-c", LOOK, *sorted(wanted))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_name_that_a_version_lacks_is_found() -> None:
    lacks = "torch.distributed.elastic.rendezvous.api.RendezvousInfo"
    assert run_with_stub("2.3", "-c", LOOK, lacks, "torch.distributed.Store").stdout == f"{lacks}\n"


# The stubs against the torch that is here.


@needs_torch
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("agent.server.api", "Worker"),
        ("agent.server.api", "RunResult"),
        ("events.api", "Event"),
        ("metrics.api", "MetricData"),
        ("multiprocessing.errors", "ProcessFailure"),
        ("multiprocessing.errors", "ChildFailedError"),
        ("rendezvous.api", "RendezvousInfo"),
        ("rendezvous.api", "RendezvousStoreInfo"),
        ("rendezvous.api", "RendezvousParameters"),
    ],
)
def test_a_stub_has_the_parameters_of_the_installed_torch(module: str, name: str) -> None:
    theirs = getattr(importlib.import_module(f"torch.distributed.elastic.{module}"), name)
    code = (
        f"import importlib, inspect\nfound = getattr(importlib.import_module('torch.distributed.elastic.{module}'), "
        f"'{name}')\nprint(*inspect.signature(found).parameters)"
    )
    done = run_with_stub(VERSIONS[-1], "-c", code)
    assert done.stdout.split() == list(inspect.signature(theirs).parameters)


@needs_torch
def test_the_stub_of_the_store_has_the_parameters_of_the_installed_torch() -> None:
    from torch.distributed import TCPStore

    said = re.findall(r"(\w+): ", (TCPStore.__init__.__doc__ or "").partition("->")[0].partition("TCPStore, ")[2])
    (stub,) = [
        node
        for node in ast.walk(ast.parse((STUBS / "torch/distributed/__init__.py").read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    assert [argument.arg for argument in stub.args.args][1:] == said
