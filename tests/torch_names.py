"""The names of torch.distributed.elastic, read from the installed torch's source without an import of it."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# The files whose every name has a row in the reference, below torch/distributed/elastic.
FILES = (
    *("agent/server/api.py", "agent/server/local_elastic_agent.py", "agent/server/health_check_server.py"),
    *("events/__init__.py", "events/api.py", "events/handlers.py", "metrics/__init__.py", "metrics/api.py"),
    *("multiprocessing/__init__.py", "multiprocessing/api.py", "multiprocessing/redirects.py"),
    *("multiprocessing/tail_log.py", "multiprocessing/errors/__init__.py"),
    *("multiprocessing/errors/error_handler.py", "multiprocessing/errors/handlers.py"),
    *("multiprocessing/subprocess_handler/handlers.py", "multiprocessing/subprocess_handler/subprocess_handler.py"),
    *("rendezvous/api.py", "rendezvous/registry.py", "launcher/api.py", "utils/store.py", "utils/distributed.py"),
)
AGENT = "agent/server/api.py"
TRIVIAL = frozenset({"logger", "log", "_R", "_P"})
READS_ENVIRONMENT = re.compile(r'(?:environ\.get|getenv|environ\[)\(?\s*"([A-Z_]+)"')


def torch_is_installed() -> bool:
    return importlib.util.find_spec("torch") is not None


@cache
def source(name: str) -> str:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    distributed = Path(spec.submodule_search_locations[0]) / "distributed"
    is_outside = name in ("run.py", "launcher/api.py")
    return (distributed / name if is_outside else distributed / "elastic" / name).read_text()


def _arguments(function: ast.FunctionDef) -> str:
    own = function.args
    starred = [argument for argument in (own.vararg, own.kwarg) if argument is not None]
    names = [argument.arg for argument in [*own.posonlyargs, *own.args, *own.kwonlyargs, *starred]]
    return ", ".join(name for name in names if name not in ("self", "cls"))


def _function(function: ast.FunctionDef, prefix: str) -> Iterator[str]:
    decorators = {ast.unparse(decorator) for decorator in function.decorator_list}
    if function.name == "__init__":
        yield f"{prefix[:-1]}({_arguments(function)})"
    elif "property" in decorators:
        yield prefix + function.name
    elif not function.name.startswith("__"):
        yield f"{prefix}{function.name}({_arguments(function)})"


def _assigned(node: ast.Assign | ast.AnnAssign, prefix: str) -> Iterator[str]:
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, ast.Name) and target.id == "__slots__" and node.value is not None:
            yield from (prefix + name for name in ast.literal_eval(node.value))
        elif isinstance(target, ast.Name) and not target.id.startswith("__"):
            yield prefix + target.id


def _names(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, (ast.If, ast.Try)):
            yield from _names(node.body, prefix)
        elif isinstance(node, ast.FunctionDef):
            yield from _function(node, prefix)
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name
            yield from _names(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            yield from _assigned(node, prefix)


def names_of(file: str) -> set[str]:
    """Classes, fields, enum members, constants, and functions with the names of their arguments."""
    return set(_names(ast.parse(source(file)).body)) - TRIVIAL


def public_names_of(file: str) -> set[str]:
    """Return the names that `__all__` lists."""
    for node in ast.parse(source(file)).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def torchrun_options() -> set[str]:
    """Options in their spelling with dashes, and the positional arguments."""
    words = re.findall(
        r'parser\.add_argument\(\s*((?:"[^"]+",?\s*)+)', source("run.py").partition("def get_args_parser")[2]
    )
    options = {option for group in words for option in re.findall(r'"([^"]+)"', group)}
    return {option for option in options if not option.startswith("--") or "_" not in option}


def event_keys() -> set[str]:
    """The metadata of an event, and what is in its key `metadata` again."""
    body = source(AGENT).partition("def _construct_event")[2].partition("    def ")[0]
    found = re.finditer(r'^ {12}"(\w+)": |md\["(\w+)"\]', body, re.M)
    return {key[1] or key[2] for key in found}


def rendezvous_parameters() -> set[str]:
    """The keys of `--rdzv-conf` for the c10d back end."""
    text = source("rendezvous/dynamic_rendezvous.py") + source("rendezvous/c10d_rendezvous_backend.py")
    timeouts = re.findall(r'_get_timeout\(params, "(\w+)"\)', text)
    return {*(f"{name}_timeout" for name in timeouts), *re.findall(r'params\.get(?:_as_\w+)?\("(\w+)"', text)}


def run_metrics() -> set[str]:
    text = source(AGENT)
    conditional = re.findall(r'_record_metric_with_condition\(\s*"(\w+)"', text)
    return {*conditional, *re.findall(r'put_metric\(f"workers\.\{(?:spec\.)?role\}\.(\w+)"', text)}


def environment_variables() -> set[str]:
    """Return the variables that the agent gives to workers, and those that it reads."""
    agent = "agent/server/local_elastic_agent.py"
    others = ("run.py", "control_plane.py", "rendezvous/dynamic_rendezvous.py", "rendezvous/etcd_server.py")
    files = (*FILES, *others, "utils/distributed.py", "utils/logging.py")
    read = {name for file in files for name in READS_ENVIRONMENT.findall(source(file))}
    given = set(re.findall(r'^ {16}"([A-Z_]+)": ', source(agent), re.M))
    return given | read | set(re.findall(r'worker_env\["([A-Z_]+)"\]', source(agent)))
