"""The rules for imports between modules, as tables, and the functions that find violations.

Everything is read from the source with `ast`, so that an import inside a function counts as well.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "hpc_elastic"

# A layer's modules by the longest name that fits, and the layers that it may import. The order is the order of the
# data's way: what a plan is, what a run directory holds, what the user asked, and so on up to the command line.
LAYERS = {
    "hpc_elastic": "base",
    "hpc_elastic.plan": "plan",
    "hpc_elastic.rundir": "rundir",
    "hpc_elastic.hardware": "hardware",
    "hpc_elastic.failures": "failures",
    "hpc_elastic.useful_time": "useful_time",
    "hpc_elastic.job": "job",
    "hpc_elastic.site": "site",
    "hpc_elastic.moving_in": "moving_in",
    "hpc_elastic.resolve": "resolve",
    "hpc_elastic.render": "render",
    "hpc_elastic.scheduler": "scheduler",
    "hpc_elastic.elastic": "elastic",
    "hpc_elastic.membership": "membership",
    "hpc_elastic.agent": "agent",
    "hpc_elastic.worker": "worker",
    "hpc_elastic.memory": "worker",
    "hpc_elastic.observe": "observe",
    "hpc_elastic.doctor.probes": "doctor_probes",
    "hpc_elastic.doctor.node": "doctor_node",
    "hpc_elastic.api": "api",
    "hpc_elastic.doctor": "doctor",
    "hpc_elastic.integrations": "integrations",
    "hpc_elastic.cli": "cli",
    "hpc_elastic.__main__": "main",
}
MAY_IMPORT = {
    "base": "",
    "plan": "base",
    "rundir": "base plan",
    "hardware": "base",
    "failures": "base rundir",
    "useful_time": "base rundir",
    "job": "base plan",
    "site": "base plan job",
    "moving_in": "base plan job",
    "resolve": "base plan job site",
    "render": "base plan rundir",
    "scheduler": "base plan rundir",
    "elastic": "base plan rundir",
    "membership": "base plan rundir failures elastic",
    # The scheduler: whether an older allocation still lives.
    "agent": "base plan rundir hardware failures useful_time scheduler elastic membership",
    "worker": "base plan rundir failures",
    "observe": "base plan rundir failures useful_time scheduler",
    "api": "base plan rundir failures useful_time job site resolve render scheduler observe",
    # What `doctor` starts on each node, by file path as agents are; and what it does where it is called.
    "doctor_probes": "base plan",
    "doctor_node": "base plan rundir failures scheduler elastic membership agent doctor_probes",
    "doctor": "base plan rundir job site resolve render scheduler observe api doctor_probes",
    "integrations": (
        "base plan rundir failures useful_time job site resolve render scheduler elastic membership agent worker "
        "observe api"
    ),
    "cli": (
        "base plan rundir hardware failures useful_time job site moving_in resolve render scheduler observe api doctor"
    ),
    "main": "cli",
}
PATCHES = ("setattr", "patch", "object")  # of pytest's monkeypatch, and of unittest.mock
TIME = re.compile(r"_*[A-Z][A-Z0-9_]*_S")  # the name of a constant that is a number of seconds
# The floors inside the agent, from the bottom up, and which of the others each may import. What is in none of them, as
# the programs are (`main`, `conclude`, `survivors`), stands above all.
AGENT_FLOORS = {
    "system": "",
    "policy": "",
    "node": "system",
    "guard": "system",
    "health": "system node",
    "records": "system node",
    "net": "system node",
    "keeper": "system node",
    "workers": "system node records keeper",
    "rendezvous": "system node records net",
    "drivers": "system policy node health records net workers rendezvous",
}
# Where a package from elsewhere may be imported: everything else is standard library.
THIRD_PARTY = {
    "torch": ("hpc_elastic.worker", "hpc_elastic.integrations"),
    "numpy": ("hpc_elastic.worker", "hpc_elastic.integrations"),
    "submitit": ("hpc_elastic.integrations",),
    "lightning": ("hpc_elastic.integrations.lightning",),
    "transformers": ("hpc_elastic.integrations.transformers",),
    "cloudpickle": ("hpc_elastic.api", "hpc_elastic.worker"),
    "yaml": ("hpc_elastic.job", "hpc_elastic.site"),
    "pydantic": ("hpc_elastic.job", "hpc_elastic.site", "hpc_elastic.observe.schemas"),
    "jinja2": ("hpc_elastic.render",),
    "plotly": ("hpc_elastic.observe.report",),
    "rich": ("hpc_elastic.observe", "hpc_elastic.cli"),
}
# Modules and, below them, what they must never load, by whatever way.
NEVER_LOADS = {
    "hpc_elastic.observe": "agent membership worker job site resolve render integrations",
    "hpc_elastic.cli.status": "agent membership worker job site resolve render integrations",
    "hpc_elastic.cli.explain": "agent membership worker job site resolve render integrations",
    "hpc_elastic.cli.logs": "agent membership worker job site resolve render integrations",
    "hpc_elastic.cli.list_runs": "agent membership worker job site resolve render integrations",
    "hpc_elastic.elastic": "job site resolve render observe cli torch yaml pydantic jinja2 rich submitit agent",
    "hpc_elastic.agent": "job site resolve render observe cli torch yaml pydantic jinja2 rich submitit",
    "hpc_elastic.worker": "job site resolve render observe cli scheduler yaml pydantic jinja2 rich submitit",
    "hpc_elastic.cli": "torch submitit agent membership worker",
    "hpc_elastic.doctor.node": "job site resolve render observe api cli torch yaml pydantic jinja2 rich submitit",
}
# Arguments in, value out: no clock, environment, files, sockets, processes. So are modules whose first line says it.
PURE = (
    *("hpc_elastic.errors", "hpc_elastic.units", "hpc_elastic.hostlist", "hpc_elastic.codec"),
    *("hpc_elastic.job_ids", "hpc_elastic.rank_set", "hpc_elastic.printable", "hpc_elastic.failures"),
    *("hpc_elastic.moving_in", "hpc_elastic.plan", "hpc_elastic.resolve", "hpc_elastic.rundir.layout"),
    *("hpc_elastic.rundir.records", "hpc_elastic.rundir.states"),
    *("hpc_elastic.rundir.submissions", "hpc_elastic.useful_time.division", "hpc_elastic.useful_time.history"),
    *(
        "hpc_elastic.job.parameters",
        "hpc_elastic.job.spec",
        "hpc_elastic.render.directives",
        "hpc_elastic.render.quoting",
    ),
    *("hpc_elastic.doctor.results", "hpc_elastic.doctor.draft", "hpc_elastic.doctor.present"),
    *("hpc_elastic.doctor.judge_slurm", "hpc_elastic.doctor.judge_nodes", "hpc_elastic.doctor.judge_network"),
    *("hpc_elastic.doctor.judge_software", "hpc_elastic.doctor.told"),
    "hpc_elastic.doctor.probes.answers",
    *("hpc_elastic.hardware.binding_map", "hpc_elastic.hardware.device_lists", "hpc_elastic.hardware.placement"),
    *("hpc_elastic.render.array", "hpc_elastic.render.lint", "hpc_elastic.render.script", "hpc_elastic.render.values"),
    *(
        "hpc_elastic.scheduler.slurm.commands",
        "hpc_elastic.scheduler.slurm.output",
        "hpc_elastic.scheduler.slurm.words",
    ),
    *(
        "hpc_elastic.elastic",
        "hpc_elastic.membership",
        "hpc_elastic.scheduler.allocation",
        "hpc_elastic.scheduler.local.step",
        "hpc_elastic.scheduler.slurm.step",
        "hpc_elastic.agent.policy",
        "hpc_elastic.observe.diagnosis",
        "hpc_elastic.observe.explain",
        "hpc_elastic.observe.explain_facts",
    ),
)
_IMPURE_MODULES = (
    "asyncio fcntl getpass glob io logging multiprocessing pathlib platform pwd queue random secrets select "
    "selectors shutil socket ssl subprocess sys tempfile threading time urllib uuid"
)
IMPURE_MODULES = frozenset(_IMPURE_MODULES.split())
# What a pure module may use of these. RunLayout makes its root absolute, once; what a plan says is absolute already.
_PURE_PARTS = {
    "os": re.compile("path|fspath|PathLike|sep"),
    "os.path": re.compile("abspath|basename|commonpath|dirname|isabs|join|normpath|relpath|split|splitext"),
    "signal": re.compile("SIG[A-Z0-9]+|Signals"),
}
IMPURE_OWN = ("hpc_elastic.clock", "hpc_elastic.memory", "hpc_elastic.processes")
CLOCKS = frozenset({"now", "utcnow", "today"})
SLURMS_VARIABLE = re.compile(r"(SLURMD?_[A-Z_]+)=?")
# Slurm's own language, besides its folder: what a shell passes on, old scripts, messages, and programs for Slurm alone.
NAME_SLURMS_VARIABLES = (
    *("hpc_elastic.scheduler", "hpc_elastic.job_ids", "hpc_elastic.plan.container", "hpc_elastic.moving_in"),
    *("hpc_elastic.api.template_lint", "hpc_elastic.integrations.submitit"),
)
TIMING = "hpc_elastic.membership.timing"
# How often people are told something, when a save has to end, and how far apart clocks that people read may be.
TIMES_WITHOUT_SAFETY = {
    "hpc_elastic.membership.admission": ("CLOCKS_DIFFER_S",),
    "hpc_elastic.membership.barriers": ("SAY_WAITING_EVERY_S",),
    "hpc_elastic.membership.gathering": ("SAY_MISSING_EVERY_S",),
    "hpc_elastic.membership.node_news": ("CROWD_S",),
    "hpc_elastic.membership.requeue": ("LEAST_RESERVE_S", "MOST_RESERVE_S"),
}

LONG_MODULE = 450  # a warning
LONGEST_MODULE = 700
LONGEST_FUNCTION = 60


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    tree: ast.Module
    lines: int
    is_package: bool = False
    imports: Mapping[str, int] = field(default_factory=dict)  # dotted name -> line


def parse_module(name: str, source: str, *, is_package: bool = False) -> Module:
    tree = ast.parse(source)
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.setdefault(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".") if is_package else name.split(".")[:-1]
            base = ".".join([*above[: len(above) - node.level + 1], *filter(None, [node.module])])
            absolute = base if node.level else node.module or ""
            for alias in node.names:
                found.setdefault(f"{absolute}.{alias.name}", node.lineno)
    return Module(name, tree, len(source.splitlines()), is_package, found)


@cache
def read_package(root: Path) -> Mapping[str, Module]:
    """Return every module of a package by its dotted name; read once for all tests that ask."""
    modules = {}
    with no_garbage_looked_for():
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            modules[name] = parse_module(name, path.read_text(encoding="utf-8"), is_package=is_package)
    return modules


@contextlib.contextmanager
def no_garbage_looked_for() -> Iterator[None]:
    """Half a million nodes of trees, none of them garbage: the collector would go through them for most of the time.

    It does not later either, where a test, or what it runs, collects all garbage: that took a second each time.
    """
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if is_on:
            gc.enable()


def imported_modules(module: Module, modules: Mapping[str, Module]) -> Iterator[tuple[str, int]]:
    """Return the modules of this package that one imports: `from a import b` means a.b if that is a module, else a."""
    found: dict[str, int] = {}
    for name, line in module.imports.items():
        imported = name if name in modules else name.rpartition(".")[0]
        if imported in modules and imported != module.name:
            found.setdefault(imported, line)
    yield from found.items()


def layer_of(name: str) -> str:
    """Return the layer of a module; empty for one of a package that has no row in LAYERS."""
    row = name
    while row not in LAYERS:
        row = row.rpartition(".")[0]
    return "" if LAYERS[row] == "base" and name.count(".") > 1 else LAYERS[row]


def is_below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def reached(start: str, modules: Mapping[str, Module]) -> dict[str, str]:
    """Return every module that is loaded with a module, its packages included, with the module that imports it."""
    by: dict[str, str] = {start: start}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        parents = [name.rpartition(".")[0]] if "." in name else []
        for other in [*(other for other, _ in imported_modules(modules[name], modules)), *parents]:
            if other not in by:
                by[other] = name
                waiting.append(other)
    return by


def find_unplaced(modules: Mapping[str, Module]) -> Iterator[str]:
    """Yield the packages that no table here has a place for, so that no rule on imports would hold them."""
    for module in modules.values():
        if not module.is_package or module.name == "hpc_elastic":
            continue
        if module.name.count(".") == 1 and module.name not in LAYERS:
            yield f"{module.name} is in no layer: give it a row in LAYERS and one in MAY_IMPORT"
        if module.name.startswith("hpc_elastic.agent.") and _agent_floor(module.name) not in AGENT_FLOORS:
            yield f"{module.name} is on no floor of the agent: give it a row in AGENT_FLOORS"


def find_layer_breaks(modules: Mapping[str, Module]) -> Iterator[str]:
    for module in modules.values():
        layer = layer_of(module.name)
        if not layer:  # `find_unplaced` names its package
            continue
        allowed = {layer, *MAY_IMPORT[layer].split()}
        for other, line in imported_modules(module, modules):
            if other != "hpc_elastic" and layer_of(other) not in allowed:
                only = f"{MAY_IMPORT[layer]} only" if MAY_IMPORT[layer] else "nothing of the package"
                yield f"{module.name}:{line} imports {other}: {layer} may import {only}"


def find_floor_breaks(modules: Mapping[str, Module]) -> Iterator[str]:
    for module in modules.values():
        floor = _agent_floor(module.name)
        if floor not in AGENT_FLOORS:
            continue
        for other, line in imported_modules(module, modules):
            if _agent_floor(other) not in {"", floor, *AGENT_FLOORS[floor].split()}:
                only = f"{AGENT_FLOORS[floor]} only" if AGENT_FLOORS[floor] else "nothing of the agent"
                yield f"{module.name}:{line} imports {other}: agent.{floor} may import {only}"


def _agent_floor(name: str) -> str:
    return name.removeprefix("hpc_elastic.agent.").split(".")[0] if name.startswith("hpc_elastic.agent.") else ""


def find_strangers(modules: Mapping[str, Module]) -> Iterator[str]:
    for module in modules.values():
        for name, line in module.imports.items():
            top = name.split(".")[0]
            if top in sys.stdlib_module_names or top == "hpc_elastic":
                continue
            places = THIRD_PARTY.get(top, ())
            if not any(is_below(module.name, place) for place in places):
                yield f"{module.name}:{line} imports {top}: only {', '.join(places) or 'nothing'} may"


def find_wrong_loads(modules: Mapping[str, Module]) -> Iterator[str]:
    """Yield each import that makes modules load what they never do, once, however many do by it."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for prefix, words in NEVER_LOADS.items():
        forbidden = set(words.split())
        for start in (name for name in modules if is_below(name, prefix)):
            by = reached(start, modules)
            for name, importer in by.items():
                strangers = {imported.split(".")[0] for imported in modules[name].imports}
                for word in sorted(forbidden & {layer_of(name), *strangers}):
                    found.setdefault((prefix, name, importer, word), []).append(start)
    for (prefix, name, importer, word), starts in found.items():
        more = f" and {len(starts) - 1} more" if len(starts) > 1 else ""
        yield f"{starts[0]}{more} loads {name} (through {importer}), and with it {word}, which {prefix} never loads"


def says_it_is_pure(module: Module) -> bool:
    """Return whether the first line of a module's docstring says so."""
    return re.search(r"\bpure\b", (ast.get_docstring(module.tree) or "").partition("\n")[0]) is not None


def find_impurities(module: Module) -> Iterator[str]:
    for name, line in module.imports.items():
        owner, _, part = name.rpartition(".")
        is_impure = name.split(".")[0] in IMPURE_MODULES or any(is_below(name, each) for each in IMPURE_OWN)
        if is_impure or (owner in _PURE_PARTS and not _PURE_PARTS[owner].fullmatch(part)):
            yield f"{module.name}:{line} imports {name}: the module is pure"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            function = node.func
            called = function.id if isinstance(function, ast.Name) else ""
            if called in ("open", "input", "print"):
                yield f"{module.name}:{node.lineno} calls {called}: the module is pure"
            elif isinstance(function, ast.Attribute) and function.attr in CLOCKS:
                yield f"{module.name}:{node.lineno} reads the clock: the module is pure"
        elif isinstance(node, ast.Attribute) and (owner := ast.unparse(node.value)) in _PURE_PARTS:
            part = node.attr
            if not _PURE_PARTS[owner].fullmatch(part):
                yield f"{module.name}:{node.lineno} uses {owner}.{part}: the module is pure"


def find_slurms_variables(modules: Mapping[str, Module]) -> Iterator[str]:
    """Yield each place outside of the folders of schedulers that has the name of a variable which Slurm sets."""
    for module in modules.values():
        if any(is_below(module.name, place) for place in NAME_SLURMS_VARIABLES):
            continue
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, (str, bytes)):
                continue
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            if found := SLURMS_VARIABLE.fullmatch(text):
                yield f"{module.name}:{node.lineno} names {found[1]}: what Slurm sets is read in scheduler.slurm"


def find_stray_times(modules: Mapping[str, Module]) -> Iterator[str]:
    """Yield the constants of time of membership outside of its module for them."""
    for module in modules.values():
        if not is_below(module.name, "hpc_elastic.membership") or module.name == TIMING:
            continue
        for node in module.tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for name in (each.id for each in targets if isinstance(each, ast.Name) and TIME.fullmatch(each.id)):
                if name not in TIMES_WITHOUT_SAFETY.get(module.name, ()):
                    yield f"{module.name}:{node.lineno} {name}: a time that safety rests on stands in {TIMING}"


def find_cycle(modules: Mapping[str, Module]) -> list[str] | None:
    """Return the names of modules that import each other in a cycle; empty if there are none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        for other, _ in imported_modules(modules[name], modules):
            if cycle := visit(other, [*path, name]):
                return cycle
        done.add(name)
        return None

    return next((cycle for name in modules if (cycle := visit(name, []))), None)


def find_untold(modules: Mapping[str, Module]) -> Iterator[str]:
    for module in modules.values():
        docstring = ast.get_docstring(module.tree)
        if not docstring:
            yield f"{module.name}: a module opens with one sentence, its responsibility"


def find_long(modules: Mapping[str, Module]) -> Iterator[str]:
    """Return the modules that are so long that they may do more than their first sentence says; a warning only."""
    for module in modules.values():
        if LONG_MODULE < module.lines <= LONGEST_MODULE:
            yield f"{module.name} has {module.lines} lines, more than {LONG_MODULE}: does its sentence still cover it?"


def find_namesakes(modules: Mapping[str, Module]) -> Iterator[str]:
    """Yield the public classes that have the name of a class in another module."""
    first: dict[str, str] = {}
    for module in modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                before = first.setdefault(node.name, module.name)
                if before != module.name:
                    yield f"{module.name}:{node.lineno} {node.name} is also a class of {before}: one name, one meaning"


def find_oversized(modules: Mapping[str, Module]) -> Iterator[str]:
    for module in modules.values():
        if module.lines > LONGEST_MODULE:
            yield f"{module.name} has {module.lines} lines, {LONGEST_MODULE} are allowed: split it by meaning"
        for node in ast.walk(module.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > LONGEST_FUNCTION:
                    yield f"{module.name}:{node.lineno} {node.name} has {lines} lines, {LONGEST_FUNCTION} are allowed"


def find_patched_times(name: str, source: str) -> Iterator[str]:
    """Yield each place of a test where a constant of time is replaced, by `setattr` or by assignment.

    Such a constant is one whose name ends in `_S`. A test passes a time of its own as an argument instead: a patch of
    a constant has no effect where the constant is the default of an argument, and nobody notices.
    """
    if not re.search(r"[A-Z0-9]_S\b", source):  # most tests name none, and to parse them all takes seconds
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some programs of the tests are odd on purpose
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            words = [*node.args, *(keyword.value for keyword in node.keywords)]
            texts = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
            patched = texts if called in PATCHES else []
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            patched = [target.attr for target in targets if isinstance(target, ast.Attribute)]
        else:
            continue
        for text in patched:
            if TIME.fullmatch(text.rpartition(".")[2]):
                yield f"{name}:{node.lineno} replaces {text}: pass the time as an argument"
