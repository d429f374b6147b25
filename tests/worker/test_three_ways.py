"""A worker is indistinguishable from `python script.py`: a corpus of programs run plainly, spawned and forked.

Compared are the exit code, the output, the files left, and all that `three_ways/state.py` sees of the process.
"""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import variants
from tests.worker.forking import Server, fork_server
from tests.worker.ways import WAYS, F, Outcome, P, Place, Run, base_environment

CORPUS = Path(__file__).parent / "three_ways"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program: by default the script of this name, `beside` are the files that it needs."""

    name: str
    script: str = ""
    arguments: tuple[str, ...] = ()
    module: str = ""
    beside: tuple[str, ...] = ()
    written: Mapping[str, str | bytes] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    make: Callable[[Path], object] | None = None

    def __str__(self) -> str:
        return self.name

    def lay_out(self, directory: Path) -> Run:
        """Writes what the program consists of into the folder."""
        names = [] if self.written or self.module else [self.script]
        for name in ("state.py", *names, *self.beside):
            (directory / name).parent.mkdir(exist_ok=True)
            shutil.copy(CORPUS / name, directory / name)
        for name, text in self.written.items():
            (directory / name).parent.mkdir(exist_ok=True, parents=True)
            (directory / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        if self.make:
            self.make(directory)
        return Run(
            target=self.module or self.script,
            kind="module" if self.module else "script",
            arguments=self.arguments,
            environment=self.environment,
        )


# Workers write their stack, unasked, when a fault of their own ends them; plain Python has to be told to.
FAULTS = ("aborts", "crashes", "dumps_stacks")


def scripts(*names: str) -> list[Case]:
    return [Case(name=name, script=f"{name}.py", environment=_asked(name)) for name in names]


def _asked(name: str) -> Mapping[str, str]:
    return {"PYTHONFAULTHANDLER": "1"} if name in FAULTS else {}


def script(name: str, *arguments: str, beside: tuple[str, ...] = (), **environment: str) -> Case:
    shown = "-".join([name, *(argument for argument in arguments if argument.isascii()), *environment])
    environment = {**_asked(name), **environment}
    return Case(name=shown, script=f"{name}.py", arguments=arguments, beside=beside, environment=environment)


def module(name: str, *arguments: str, written: Mapping[str, str | bytes] | None = None) -> Case:
    files = ("package/__init__.py", "package/__main__.py", "package/script.py", "package/child.py", "neighbour.py")
    return Case(
        name="-".join(["-m", name, *arguments]), module=name, arguments=arguments, beside=files, written=written or {}
    )


def source(name: str, text: str | bytes, *, path: str = "script.py", written: Mapping[str, str] | None = None) -> Case:
    return Case(name=name, script=path, written={path: text, **(written or {})})


STATES = [
    *scripts("state_from_start_to_end", "state_of_children", "imports_what_is_imported"),
    script("executes_another", beside=("executed.py",)),
    module("package"),
]
COMMAND_LINES = [
    *scripts("attributes", "working_directory", "changes_environment", "changes_umask", "uses_locale"),
    script("command_line", "--", "-x", "a b", "", "$HOME", "\u00e4"),
    script("uses_locale", TZ="Asia/Tokyo"),
    source("path_with_spaces", (CORPUS / "attributes.py").read_bytes(), path="a folder/gr\u00fc\u00dfe 1.py"),
    source("path_not_normal", "raise ValueError(__file__, __import__('sys').path[0])", path="x/../x/./script.py"),
]
MODULES = [
    module("package.script", "fork"),
    module("package.script", "spawn"),
    module("package.missing"),
    module("package.bad", written={"package/bad.py": "def f(:\n"}),
    module("package.child.more"),
    module("neighbour"),
    module("pdb", "-c", "continue", "neighbour.py"),
    module("trace", "--trace", "neighbour.py"),
    module("unittest", "neighbour"),
]
EXITS = [
    *(
        script("exits", how)
        for how in ("None", "0", "300", "-1", "True", "1.5", "(1, 2)", "'text'", "''", "b''", "class", "bare")
    ),
    script("exits", "SystemExit(4)"),
    *scripts(
        "exits_at_once",
        "destructors_in_cycle",
        "destructors_after_error",
        "atexit_order",
        "atexit_raises",
        "atexit_leaves",
    ),
    script("destructors", beside=("destructors_neighbour.py",)),
    *scripts("waits_for_thread", "leaves_daemon_thread", "leaves_children", "forks", "forks_and_child_raises"),
]
# From 3.12 on CPython trips later over the error that it makes of these itself.
ODD_EXITS = [script("exits", how) for how in ("2**70", "-(2**70)", "Unprintable()")]
EXCEPTIONS = [
    *scripts("raises", "raises_chained", "raises_group", "raises_base_exception", "raises_group_of_exits"),
    *scripts("raises_with_suggestion", "raises_recursion_error", "raises_syntax_error_of_text"),
    *scripts("raises_without_stderr", "raises_with_stderr_none", "raises_with_excepthook", "raises_in_thread"),
    *scripts("raises_with_broken_excepthook", "raises_with_excepthook_that_exits", "raises_unraisable"),
    *scripts("interrupted", "interrupted_by_raise", "deletes_itself"),
    script("raises_in_import", beside=("broken_neighbour.py",)),
]
SOURCES = [
    source("empty", ""),
    source("syntax_error", "def f(:\n    pass\n"),
    source("indented_wrongly", "if True:\nprint(1)\n"),
    source("not_utf8", b"print('\xff')\n"),
    source("declares_its_encoding", b"# coding: latin-1\nprint('\xfc')\n"),
    source("begins_with_a_mark", b"\xef\xbb\xbfprint('bom')\n"),
    source("null_byte", b"print(1)\0\n"),
    source("future", "from __future__ import annotations\ndef f(x: undefined): pass\nprint(f.__annotations__)\n"),
    source("import_of_syntax_error", "import neighbour\n", written={"neighbour.py": "a = (\n"}),
]
OUTPUTS = [
    *scripts("prints_without_newline", "prints_then_is_killed", "prints_lines_then_is_killed", "prints_unencodable"),
    *scripts("closes_stdout", "closes_descriptor_1", "closes_descriptors", "writes_to_full_device"),
    *scripts("writes_to_full_device_at_error", "replaces_stdout", "reconfigures_stdout", "reads_stdin", "warns"),
    *scripts("logs", "logs_to_memory", "measures_itself", "uses_ctypes"),
]
SIGNALS = [
    *scripts("handles_signals", "writes_to_broken_pipe", "aborts"),
    *(
        script("dies_of_signal", name)
        for name in ("TERM", "INT", "HUP", "USR1", "USR2", "ALRM", "KILL", "PIPE", "XFSZ")
    ),
]
CHILDREN = [
    *scripts("uses_pools", "starts_children", "runs_asyncio", "uses_executors"),
    *(script("uses_multiprocessing", method) for method in ("fork", "spawn", "forkserver")),
]
INSPECTION = [
    *scripts(
        "pickles", "reads_its_source", "traces", "collects", "recurses", "draws_with_seed", "debugs_with_commands"
    ),
    *scripts("dumps_stacks", "crashes", "breaks", "tests_itself"),
    *(script("crashes", "faulthandler"), script("breaks", "closed"), script("breaks", PYTHONBREAKPOINT="0")),
    *(script("reloads", beside=("neighbour.py",)), script("runs_another", beside=("neighbour.py",))),
    script("parses_arguments", "--size", "4"),
    Case(
        name="imports_namesake",
        script="imports_namesake.py",
        written={
            "imports_namesake.py": (CORPUS / "imports_namesake.py").read_bytes(),
            **dict.fromkeys(("networkx.py", "profile.py", "sympy/__init__.py", "filelock/own.py"), "value = 1\n"),
        },
    ),
]
PROGRAM = "import neighbour, sys; print(sys.argv, sys.path[0], __file__, __spec__, neighbour.__file__); sys.exit(4)"


def made(name: str, target: str, make: Callable[[Path], object]) -> Case:
    files = {"folder/__main__.py": PROGRAM, "folder/neighbour.py": ""}
    return Case(name=name, script=target, arguments=("a",), written=files, beside=(), make=make)


def make_pyc(directory: Path) -> None:
    py_compile.compile(str(directory / "folder/__main__.py"), str(directory / "folder/program.pyc"), dfile="program.py")


TARGETS = [
    made("folder", "folder", lambda directory: None),
    made("archive", "program.zip", lambda directory: zip_folder(directory / "folder", directory / "program.zip")),
    made("compiled", "folder/program.pyc", make_pyc),
    made("link", "link.py", lambda directory: (directory / "link.py").symlink_to("folder/__main__.py")),
    made("link_that_dangles", "link.py", lambda directory: (directory / "link.py").symlink_to("nowhere")),
    made("missing", "missing.py", lambda directory: None),
    made("folder_without_main", "empty", lambda directory: (directory / "empty").mkdir()),
    made("no_permission", "folder/__main__.py/below.py", lambda directory: None),
]
TORCH = scripts("state_with_torch")
MORE_TORCH = [
    *scripts("torch_loads_data", "torch_starts_processes", "torch_saves"),
    # Without it gloo looks for this machine's own name, and where that cannot be resolved warns with the time of day.
    script("torch_trains", GLOO_SOCKET_IFNAME="lo"),
]

CASES = [
    *(*STATES, *COMMAND_LINES, *MODULES, *TARGETS, *EXITS, *EXCEPTIONS, *SOURCES, *OUTPUTS, *SIGNALS, *CHILDREN),
    *INSPECTION,
]


# What make test runs.
FIRST = (
    *("state_from_start_to_end", "state_of_children", "-m-package", "raises", "exits-'text'", "atexit_order", "forks"),
    *("handles_signals", "prints_then_is_killed", "pickles", "imports_namesake", "destructors", "leaves_daemon_thread"),
)


def every_other_python(cases: Sequence[Case]) -> list[Any]:
    """All cases, of which `make test` runs the first."""
    first, more = in_tiers(cases)
    return [*first, *variants(*more, of="test_a_worker_is_what_plain_python_is_if_python_is_another_version")]


def marked(cases: Sequence[Case]) -> list[Any]:
    first, more = in_tiers(cases)
    marks = (pytest.mark.local, pytest.mark.variant(of="test_a_worker_is_what_plain_python_is"))
    return [*first, *(pytest.param(case, marks=marks) for case in more)]


def in_tiers(cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """The first, one or two of each kind, and the others."""
    return [case for case in cases if case.name in FIRST], [case for case in cases if case.name not in FIRST]


def other_pythons() -> list[str]:
    """Every other Python from 3.10 on, from PATH or pyenv."""
    minors = [minor for minor in range(10, 15) if minor != sys.version_info.minor]
    versions = Path(os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))) / "versions"
    found = []
    for minor in minors:
        installed = [str(path / "bin" / "python") for path in sorted(versions.glob(f"3.{minor}.*"))]
        on_path = shutil.which(f"python3.{minor}")
        found += installed[-1:] or ([on_path] if on_path else [])
    return found


def oldest_and_newest_first(pythons: Sequence[str]) -> list[Any]:
    """Other Pythons, of which `make test` runs the oldest and the newest."""
    names = [Path(python).parents[1].name for python in pythons]
    between = variants(
        *pythons[1:-1], of="test_a_worker_is_what_plain_python_is_if_python_is_another_version", ids=names[1:-1]
    )
    ends = [
        pytest.param(python, id=name)
        for python, name in zip(pythons, names, strict=True)
        if python not in pythons[1:-1]
    ]
    return [*ends, *between]


def zip_folder(folder: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w") as file:
        for path in folder.iterdir():
            file.write(path, path.name)


STATE = STATES[0]
# Options by variables, which a server has as its workers have: each takes a server of its own.
ENVIRONMENTS = [
    {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "error,ignore::ImportWarning", "PYTHONHASHSEED": "5"},
]
MORE_ENVIRONMENTS = [
    {"PYTHONDEVMODE": "1", "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    {"PYTHONOPTIMIZE": "2", "PYTHONIOENCODING": "latin-1:replace", "PYTHONFAULTHANDLER": "1", "PYTHONNOUSERSITE": "1"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
]
UNDER_OPTIONS = [
    *(STATE, module("package"), script("command_line", "x"), script("executes_another", beside=("executed.py",))),
    *scripts(
        "prints_then_is_killed", "prints_lines_then_is_killed", "prints_unencodable", "warns", "crashes", "raises"
    ),
    *scripts("exits_at_once", "forks", "uses_pools", "closes_stdout"),
    script("uses_multiprocessing", "spawn"),
]

# What cannot be the same, by the way of starting and the item of `state.py`.
INHERENT = {
    "spawn": {
        "prctl.death_signal": "a worker dies with its agent",
        "cmdline": "ps shows the bootstrap's command line",
    },
    "fork": {
        "prctl.death_signal": "a worker dies with its agent",
    },
}
# What those modules changed that a fork has imported before its time; more of these, and nothing less, is allowed.
MORE_IF_FORKED = {"warnings": "filters of torch and sympy, for their own warnings"}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One fork server, and what it and all processes beside it have in common."""

    server: Server
    environment: Mapping[str, str]
    python: Sequence[str]

    def run(self, case: Case, above: Path, ways: Sequence[str] = WAYS) -> dict[str, Outcome]:
        """Runs a program in several ways at the same time."""
        places = [Place(way, above, self.python) for way in ways]
        started = [place.start(case.lay_out(place.directory), self.environment, self.server) for place in places]
        return {place.way: place.collect(pid) for place, pid in zip(places, started, strict=True)}

    def compare(self, case: Case, above: Path) -> None:
        outcomes = self.run(case, above)
        plain = outcomes.pop(P)
        differences = [line for way in outcomes for line in find_differences(plain, outcomes[way], way)]
        assert not differences, "\n".join(differences)


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path: multiprocessing makes sockets below it, whose names may have 107 characters."""
    return tmp_path_factory.mktemp("w")


@contextmanager
def prepare_bench(directory: Path, *python: str, **environment: str) -> Iterator[Bench]:
    common = {**base_environment(), "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"), **environment}
    with fork_server(directory, common, python=python or (sys.executable,)) as server:
        yield Bench(server=server, environment=common, python=python or (sys.executable,))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with prepare_bench(tmp_path_factory.mktemp("server")) as bench:
        yield bench


@pytest.fixture(scope="module", params=oldest_and_newest_first(other_pythons()))
def other_bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with prepare_bench(tmp_path_factory.mktemp("server"), request.param) as bench:
        yield bench


def find_differences(plain: Outcome, other: Outcome, way: str) -> list[str]:
    found = []
    for name in ("exit_code", "stdout", "stderr", "files"):
        one, two = getattr(plain, name), getattr(other, name)
        if one != two:
            found.append(f"{way}: {name} is\n{two}\nand of plain Python\n{one}")
    if len(plain.states) != len(other.states):
        found.append(f"{way}: {len(other.states)} looks, {len(plain.states)} of plain Python")
    for one, two in zip(plain.states, other.states, strict=False):
        found += [
            f"{way}, {two['at']}: {item} is {second!r}, of plain Python {first!r}"
            for item, first, second in find_different_items(one, two)
            if item not in INHERENT[way] and not (way == F and item in MORE_IF_FORKED and is_part(first, second))
        ]
    return found


def is_part(part: list[str], whole: list[str]) -> bool:
    return [entry for entry in whole if entry in part] == part


def find_different_items(one: Any, two: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(two, dict):
        for name in sorted({*one, *two}):
            yield from find_different_items(one.get(name), two.get(name), f"{prefix}.{name}" if prefix else name)
    elif one != two:
        yield prefix, one, two


@pytest.mark.long
@pytest.mark.parametrize("case", marked([*CASES, *(ODD_EXITS if sys.version_info < (3, 12) else [])]), ids=str)
def test_a_worker_is_what_plain_python_is(case: Case, tmp_path: Path, bench: Bench) -> None:
    bench.compare(case, tmp_path)


@pytest.mark.local
@pytest.mark.parametrize(
    "case", [*TORCH, *variants(*MORE_TORCH, of="test_a_worker_is_what_plain_python_is_if_it_uses_torch")], ids=str
)
def test_a_worker_is_what_plain_python_is_if_it_uses_torch(case: Case, tmp_path: Path, bench: Bench) -> None:
    bench.compare(case, tmp_path)


@pytest.mark.variant(of="test_a_worker_is_what_plain_python_is")
@pytest.mark.local
@pytest.mark.parametrize(
    "environment",
    [
        *ENVIRONMENTS,
        *variants(*MORE_ENVIRONMENTS, of="test_a_worker_is_what_plain_python_is"),
    ],
    ids=lambda each: "-".join(each),
)
def test_a_worker_is_what_plain_python_is_if_variables_set_pythons_options(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    with prepare_bench(tmp_path, **environment) as bench:
        for number, case in enumerate(UNDER_OPTIONS):
            (tmp_path / str(number)).mkdir()
            bench.compare(case, tmp_path / str(number))


@pytest.mark.local
@pytest.mark.parametrize("case", every_other_python(CASES), ids=str)
def test_a_worker_is_what_plain_python_is_if_python_is_another_version(
    case: Case, tmp_path: Path, other_bench: Bench
) -> None:
    other_bench.compare(case, tmp_path)


@pytest.mark.long
def test_what_nobody_gave_a_seed_differs_from_fork_to_fork(tmp_path: Path, bench: Bench) -> None:
    pytest.importorskip("torch")
    drawn = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        outcome = bench.run(scripts("draws")[0], tmp_path / str(number), [F])[F]
        assert outcome.exit_code == 0, outcome.stderr
        drawn.append(json.loads(outcome.stdout))
    assert [name for name in drawn[0] if drawn[0][name] == drawn[1][name]] == []
    assert len(drawn[0]) == 11


@pytest.mark.long
def test_every_script_of_the_corpus_is_run() -> None:
    used = {name for case in [*CASES, *TORCH, *MORE_TORCH] for name in (case.script, *case.beside)}
    assert {path.name for path in CORPUS.glob("*.py")} - used == {"state.py", "draws.py"}
    assert set(FIRST) <= {case.name for case in CASES}
