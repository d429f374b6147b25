"""A worker prints, and ends with, what `python script.py` does: a corpus of scripts run both ways."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.worker.conftest import Runner

ATEXIT_ORDER = """
import atexit, sys, threading, time
main = sys.modules["__main__"]
release = threading.Event()
def linger():
    release.wait(30)
    print("thread", sys.modules["__main__"] is main, main.__dict__.get("__file__"))
threading.Thread(target=linger).start()
atexit.register(lambda: print("atexit", sys.modules["__main__"] is main, main.__dict__.get("__file__")))
threading._register_atexit(release.set)
print("end of script", main.__file__)
"""

ATTRIBUTES = """
import builtins, sys
names = sorted(name for name in globals() if name.startswith("__"))
print(names, __name__, __doc__, __package__, __spec__, __file__, __cached__, __annotations__, __builtins__ is builtins)
print(type(__loader__).__name__, __loader__.name, __loader__.path, sys.modules["__main__"].__dict__ is globals())
"""

COMMAND_LINE = """
import sys
print(sys.argv, sys.orig_argv[1:], sys.path, sys.flags)
"""

CHAINED = """
class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")
def middle():
    try:
        {}["missing"]
    except KeyError as error:
        raise RuntimeError("caf\\u00e9 \\udcff") from error
try:
    middle()
except RuntimeError:
    raise Unprintable
"""

HOOK = """
import sys, traceback
def hook(kind, value, frames):
    print("hook", kind.__name__, value, sys.last_value is value, sys.last_traceback is frames)
    traceback.print_exception(kind, value, frames)
    print(__file__)
sys.excepthook = hook
raise OSError(5, "told to the hook")
"""

MULTIPROCESSING = """
import multiprocessing, os, sys
class Point:
    def __init__(self, x): self.x = x
def child(queue, point):
    script = os.path.basename(sys.argv[0])
    queue.put((type(point).__module__, point.x, script, sys.path[0], "hpc_elastic" in sys.modules))
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    process = context.Process(target=child, args=(queue, Point(7)))
    process.start()
    answer = queue.get(timeout=30)
    process.join()
    print(answer[:4], process.exitcode, sys.argv[1] != "spawn" or answer[4])
"""

PICKLE = """
import pickle, sys
from dataclasses import dataclass
@dataclass
class Config:
    rate: float
text = pickle.dumps(Config(0.5), protocol=0)
print(text, pickle.loads(text) == Config(0.5), Config.__module__)
"""

WARNINGS = """
import warnings
pattern = "\\d"
warnings.warn("old", DeprecationWarning)
def caller():
    warnings.warn("look above", stacklevel=2)
caller()
"""

UNICODE = """
import sys
print("gr\\u00fc\\u00dfe", sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors)
print("\\udcff")
"""

THREADS = """
import threading
def fail(): raise ValueError("in a thread")
thread = threading.Thread(target=fail, name="worker thread")
thread.start()
thread.join()
print("the script goes on")
"""

FORKED_CHILD = """
import os
child = os.fork()
if child == 0:
    raise ValueError("in a forked child")
print(os.waitpid(child, 0)[1], flush=True)
"""


@dataclass(frozen=True)
class Case:
    name: str
    source: str | bytes
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    module: str | None = None

    def __str__(self) -> str:
        return self.name


CORPUS = [
    Case("returns", "print('hello')"),
    Case("exits_with_a_number", "import sys; sys.exit(7)"),
    Case("exits_with_text", "import sys; print('out'); sys.exit('a text')"),
    Case("exits_with_a_large_number", "raise SystemExit(256 + 3)"),
    Case("exits_at_once", "import os; os._exit(9)"),
    Case("raises", "def f():\n    raise ValueError('b\u00f6se')\nf()\n"),
    Case("raises_an_exception_group", "raise BaseException('neither Exception nor group')"),
    Case("raises_a_chain_without_text", CHAINED),
    Case("is_interrupted", "raise KeyboardInterrupt"),
    Case("dies_of_a_signal", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"),
    Case("recurses_without_end", "import sys\nsys.tracebacklimit = 0\ndef f(): f()\nf()"),
    Case("has_an_excepthook", HOOK),
    Case("has_a_broken_excepthook", "import sys; sys.tracebacklimit = 0; sys.excepthook = None; raise ValueError(1)"),
    Case("raises_in_a_thread", THREADS),
    Case("raises_in_a_forked_child", FORKED_CHILD),
    Case("waits_for_threads_then_atexit", ATEXIT_ORDER),
    Case("looks_at_its_attributes", ATTRIBUTES),
    Case("looks_at_its_command_line", COMMAND_LINE, ("--", "-x", "a b", "", "$HOME", "\u00e4")),
    Case("looks_at_its_command_line_isolated", COMMAND_LINE, ("a",), ("-I",)),
    Case("starts_processes_by_spawn", MULTIPROCESSING, ("spawn",)),
    Case("starts_processes_by_fork", MULTIPROCESSING, ("fork",)),
    Case("starts_processes_by_forkserver", MULTIPROCESSING, ("forkserver",)),
    Case("pickles_its_classes", PICKLE),
    Case("warns", WARNINGS),
    Case("warns_of_errors", WARNINGS, (), ("-W", "error")),
    Case("prints_what_cannot_be_encoded", UNICODE),
    Case("reads_stdin", "import sys; print(repr(sys.stdin.read()))"),
    Case("imports_its_neighbour", "import neighbour; print(neighbour.__file__)"),
    Case("has_a_syntax_error", "def f(:\n    pass\n"),
    Case("is_indented_wrongly", "if True:\nprint(1)\n"),
    Case("is_not_utf8", b"print('\xff')\n"),
    Case("declares_its_encoding", b"# coding: latin-1\nprint('\xfc')\n"),
    Case("begins_with_a_mark", b"\xef\xbb\xbfprint('bom')\n"),
    Case("has_a_null_byte", b"print(1)\0\n"),
    Case("is_empty", ""),
    Case("module", COMMAND_LINE, ("a", "-b"), module="package.script"),
    Case(
        "module_that_looks_at_itself", "print(__name__, __package__, __spec__.name, __file__)", module="package.script"
    ),
    Case("module_that_raises", "def f(): 1 / 0\nf()", module="package.script"),
    Case("module_that_starts_processes", MULTIPROCESSING, ("spawn",), module="package.script"),
    Case("module_with_a_syntax_error", "def", module="package.script"),
    Case("module_that_is_missing", "", module="package.nowhere"),
    Case("module_atexit", ATEXIT_ORDER, module="package.script"),
]


def compare(runner: Runner, case: Case, python: str) -> None:
    runner.write("neighbour.py", "")
    runner.write("package/__init__.py", "import sys; print('package', sys.argv)" if case.module else "")
    path = runner.write("package/script.py" if case.module else "script.py", case.source)
    target = ["-m", case.module] if case.module else [f"./{path.name}"]
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
    plain = runner.run([python, *case.options, *target, *case.arguments], **environment)
    kind = "--module" if case.module else "--script"
    worker = runner.run_worker(kind, target[-1], *case.arguments, python=(python, *case.options), **environment)
    assert worker == plain


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


@pytest.mark.parametrize("case", CORPUS, ids=str)
def test_worker_does_what_plain_python_does(runner: Runner, case: Case) -> None:
    compare(runner, case, sys.executable)


@pytest.mark.local
def test_worker_does_what_plain_python_does_if_python_is_another_version(runner: Runner) -> None:
    pythons = other_pythons()
    if not pythons:
        pytest.skip("no Python 3.10 to 3.14 beside the one that runs the tests")
    for python in pythons:
        for case in CORPUS:
            compare(runner, case, python)


@pytest.mark.parametrize("target", ["missing.py", "folder_without_main", "unreadable/script.py"])
def test_worker_says_what_plain_python_says_if_the_script_cannot_be_opened(runner: Runner, target: str) -> None:
    (runner.directory / "folder_without_main").mkdir()
    (runner.directory / "unreadable").symlink_to("unreadable")
    plain = runner.run([sys.executable, target])
    assert runner.run_worker("--script", target) == plain
    assert plain.exit_code != 0


def test_worker_runs_a_folder_and_an_archive_as_plain_python_does(runner: Runner) -> None:
    runner.write("folder/__main__.py", "import sys; print(sys.argv, __spec__, sys.path[0]); sys.exit(4)")
    shutil.make_archive(str(runner.directory / "archive"), "zip", runner.directory / "folder")
    for target in ("folder", "archive.zip"):
        plain = runner.run([sys.executable, target, "a"])
        assert runner.run_worker("--script", target, "a").exit_code == plain.exit_code == 4
        assert not runner.error_file.exists()


def test_worker_reaches_the_real_folder_of_a_script_that_is_a_link(runner: Runner) -> None:
    runner.write("real/neighbour.py", "")
    real = runner.write("real/script.py", "import neighbour, sys; print(sys.argv, __file__, sys.path[0])")
    (runner.directory / "link.py").symlink_to(real)
    plain = runner.run([sys.executable, "link.py"])
    assert runner.run_worker("--script", "link.py") == plain
    assert plain.exit_code == 0


def test_worker_adds_nothing_to_the_environment(runner: Runner) -> None:
    script = str(runner.write("script.py", "import os; print(sorted(os.environ))"))
    assert runner.run_worker("--script", script) == runner.run([sys.executable, script])
