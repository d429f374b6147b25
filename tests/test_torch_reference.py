"""docs/reference/torch-elastic.md is held against the installed torch on one side and this package on the other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests import torch_names
from tests.architecture import PACKAGE, Module, read_package
from tests.torch_claims import CLAIMS, Claim

REPOSITORY = PACKAGE.parent
REFERENCE = REPOSITORY / "docs/reference/torch-elastic.md"
TOKEN = re.compile(r"`([^`]+)`")
# Files whose implementation has no rows, by the heading that has the rest.
PARTLY = {
    "rendezvous/dynamic_rendezvous.py": (
        "rendezvous/dynamic_rendezvous.py",
        "rendezvous/c10d_rendezvous_backend.py",
    ),
    "Other files of rendezvous": (
        *("rendezvous/static_tcp_rendezvous.py", "rendezvous/etcd_rendezvous.py", "rendezvous/utils.py"),
        *("rendezvous/etcd_rendezvous_backend.py", "rendezvous/etcd_store.py", "rendezvous/etcd_server.py"),
    ),
    "timer and control_plane.py": (
        *("timer/api.py", "timer/local_timer.py", "timer/file_based_local_timer.py"),
        *("timer/debug_info_logging.py", "control_plane.py"),
    ),
}
needs_torch = pytest.mark.skipif(not torch_names.torch_is_installed(), reason="torch is not installed")


@dataclass(frozen=True)
class Row:
    torch: tuple[str, ...]
    ours: str
    difference: str


@cache
def sections() -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for part in re.split(r"^## ", REFERENCE.read_text(), flags=re.M)[1:]:
        title, _, body = part.partition("\n")
        rows = [line.strip("|").split("|") for line in body.splitlines() if line.startswith("| ")][1:]
        assert all(len(row) == 3 for row in rows), title
        found[title.replace("\\", "")] = [
            Row(tuple(TOKEN.findall(row[0])), row[1].strip(), row[2].strip()) for row in rows
        ]
    return found


def torch_side(title: str) -> list[str]:
    return [token for row in sections()[title] for token in row.torch]


@needs_torch
@pytest.mark.parametrize("file", torch_names.FILES)
def test_every_name_of_torch_has_one_row(file: str) -> None:
    rows = torch_side(file)
    assert sorted(rows) == sorted(torch_names.names_of(file))


@needs_torch
@pytest.mark.parametrize("file", ["agent/server/api.py", "events/api.py", "multiprocessing/api.py"])
def test_every_exported_name_of_torch_has_a_row(file: str) -> None:
    exported = torch_names.public_names_of(file)
    assert exported
    assert exported <= {row.partition("(")[0] for row in torch_side(file)}


@needs_torch
def test_every_option_of_torchrun_has_a_row() -> None:
    options = torch_names.torchrun_options()
    assert {"--nnodes", "--max-restarts", "-m", "training_script"} <= options
    assert set(torch_side("Options of torchrun")) == options


@needs_torch
def test_every_parameter_of_a_rendezvous_has_a_row() -> None:
    parameters = torch_names.rendezvous_parameters()
    assert {"join_timeout", "keep_alive_interval", "store_type"} <= parameters
    assert set(torch_side("Parameters of a rendezvous")) == parameters


@needs_torch
@pytest.mark.parametrize("title", PARTLY)
def test_every_row_of_a_file_that_is_listed_in_part_is_torchs(title: str) -> None:
    names = {name for file in PARTLY[title] for name in torch_names.names_of(file)}
    assert torch_side(title)
    assert set(torch_side(title)) <= names


@needs_torch
def test_every_public_class_of_the_dynamic_rendezvous_has_a_row() -> None:
    file = "rendezvous/dynamic_rendezvous.py"
    public = {name for name in torch_names.names_of(file) if name.isalpha()}
    assert {"RendezvousTimeout", "DynamicRendezvousHandler"} <= public
    assert public <= set(torch_side(file))


@needs_torch
def test_every_key_of_torchs_events_has_a_row() -> None:
    keys = torch_names.event_keys()
    assert len(keys) == 20
    assert set(torch_side("Event metadata")) == keys


@needs_torch
def test_every_metric_of_torchs_agent_has_a_row() -> None:
    named = {row.rpartition(".")[2] for row in torch_side("Metric names")}
    assert named == torch_names.run_metrics() | {"<state>"}


@needs_torch
def test_every_environment_variable_of_torchs_agent_has_a_row() -> None:
    everywhere = {token for title in sections() for token in torch_side(title)}
    variables = torch_names.environment_variables()
    assert {"RANK", "MASTER_ADDR", "TORCH_ELASTIC_WORKER_IDENTICAL", "TORCHELASTIC_RUN_ID"} <= variables
    assert variables <= everywhere
    assert set(torch_side("Environment variables")) <= variables


@needs_torch
def test_names_of_older_versions_are_in_no_file_of_the_installed_torch() -> None:
    today = {
        name.partition("(")[0].rpartition(".")[2] for file in torch_names.FILES for name in torch_names.names_of(file)
    }
    assert torch_side("Names of older versions")
    assert not set(torch_side("Names of older versions")) & today


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.section}: {claim.torch}")
def test_a_row_that_claims_something_names_a_test_of_it(claim: Claim) -> None:
    """Whoever changes the words of such a row has to look at the test that proves them, and the other way round."""
    (row,) = [row for row in sections()[claim.section] if claim.torch in row.torch]
    assert claim.says in f"{row.ours} {row.difference}"
    file, _, name = claim.test.partition("::")
    tree = ast.parse((REPOSITORY / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, claim.test


def test_every_claim_is_of_a_row_of_its_own() -> None:
    assert len({(claim.section, claim.torch, claim.says) for claim in CLAIMS}) == len(CLAIMS)


def ours() -> Iterator[str]:
    for rows in sections().values():
        for row in rows:
            yield from TOKEN.findall(row.ours)
            yield from (token for token in TOKEN.findall(row.difference) if token.startswith("hpc_elastic."))


def modules() -> Mapping[str, Module]:
    return read_package(PACKAGE)


@cache
def members(module: str) -> dict[str, ast.AST]:
    return _members(modules()[module].tree.body)


def _members(body: list[ast.stmt]) -> dict[str, ast.AST]:
    found: dict[str, ast.AST] = {}
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            found[ast.unparse(node.target)] = node
        elif isinstance(node, ast.Assign):
            found.update({ast.unparse(target): node for target in node.targets})
        elif isinstance(node, ast.ImportFrom):
            found.update(
                {alias.asname: ast.alias(f"{node.module}.{alias.name}") for alias in node.names if alias.asname}
            )
    return found


def exists(name: str) -> bool:
    """Whether a dotted name is a module of the package, or something in one, re-exports included."""
    module = name
    while module and module not in modules():
        module = module.rpartition(".")[0]
    if not module:
        return False
    rest = name[len(module) + 1 :].split(".") if name != module else []
    within = members(module)
    for number, part in enumerate(rest):
        found = within.get(part)
        if isinstance(found, ast.alias):
            return exists(".".join([found.name, *rest[number + 1 :]]))
        if found is None:
            return False
        within = _class_members(found, module)
    return True


def _class_members(node: ast.AST, module: str) -> dict[str, ast.AST]:
    if not isinstance(node, ast.ClassDef):
        return {}
    found = _members(node.body)
    for base in (ast.unparse(base) for base in node.bases):
        if base in members(module):
            found = {**_class_members(members(module)[base], module), **found}
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            found.update(dict.fromkeys(re.findall(r"self\.(\w+)\b[^=\n]*= ", ast.unparse(method)), method))
    return found


@cache
def documented() -> str:
    pages = [*(REPOSITORY / "docs/reference").glob("*.md"), REPOSITORY / "README.md"]
    return "\n".join(page.read_text() for page in pages if page != REFERENCE)


@pytest.mark.parametrize("token", sorted(set(ours())))
def test_what_the_table_names_here_exists(token: str) -> None:
    if token.startswith("hpc_elastic."):
        assert exists(token)
    elif token.startswith("hpc-elastic "):
        assert (PACKAGE / "cli" / f"{token.split()[1]}.py").is_file()
    else:
        assert f"`{token}`" in documented()


def test_a_name_that_does_not_exist_is_found() -> None:
    assert exists("hpc_elastic.rundir.states.WorkerState.FAILED")
    assert not exists("hpc_elastic.rundir.states.WorkerState.RUNNING")
    assert not exists("hpc_elastic.nowhere")


def test_a_row_without_a_counterpart_says_why() -> None:
    silent = [row.torch for rows in sections().values() for row in rows if row.ours == "none" and not row.difference]
    assert silent == []


@pytest.mark.parametrize("page", sorted((REPOSITORY / "docs").glob("*/*.md")), ids=lambda page: Path(page).name)
def test_paths_of_the_package_in_prose_exist(page: Path) -> None:
    for path in re.findall(r"`((?:hpc_elastic|tests|templates)/[\w/.]+)`", page.read_text()):
        assert (REPOSITORY / path).exists(), path
