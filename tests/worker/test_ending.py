"""With torch loaded a worker leaves before the interpreter takes itself apart, and misses nothing that matters."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from tests.tiers import first_of
from tests.worker.forking import collect, fork_server

if TYPE_CHECKING:
    from tests.worker.conftest import Runner

# The rule goes by the name of a loaded module; the real torch costs a second a process.
TORCH = "torch.py"

# Held by another module than __main__, so that only the interpreter's teardown drops it.
DROPPED_LATE = """
import os, sys, types
class Late:
    def __del__(self, write=os.write):
        write(1, b"taken apart\\n")
sys.modules["keeper"] = keeper = types.ModuleType("keeper")
keeper.late = Late()
del keeper
"""

ENDINGS = {
    "last line": "print('done')",
    "exit code": "import sys; sys.exit(3)",
    "negative exit code": "import sys; sys.exit(-1)",
    "exit text": "import sys; sys.exit('no more')",
    "exit none": "import sys; sys.exit()",
    "exception": "raise ValueError('on purpose')",
    "interrupt": "raise KeyboardInterrupt",
    "atexit": "import atexit; atexit.register(print, 'atexit'); print('last line')",
    "no descriptor": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); raise ValueError('last')",
    "failing atexit": "import atexit; atexit.register(lambda: 1 / 0)",
    "thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
    "open file": "f = open('out.txt', 'w'); f.write('kept'); import atexit",
    "file of another module": "import holder; holder.file.write('kept')",
    "temporary file": "import tempfile; f = tempfile.NamedTemporaryFile(dir='.', suffix='.tmp')",
    "destructor": "class A:\n    def __del__(self): print('destructor')\na = A()",
    "cycle": "class A:\n    def __del__(self): print('destructor')\na = A(); a.a = a",
    "text without end": "print('no newline', end='')",
    "C's own buffer": "import ctypes; ctypes.CDLL(None).printf(b'from C')",
    "closed output": "import sys; sys.stdout.close()",
    "lazy object": """
import holder, os
class Lazy:
    __class__ = property(lambda self, write=os.write: write(1, b"asked"))
holder.lazy = Lazy()""",
    "full output": "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); print('lost')",
}


@pytest.mark.long
@pytest.mark.parametrize("source", first_of(ENDINGS, 6))
def test_ends_as_plain_python_does(runner: Runner, source: str) -> None:
    runner.write(TORCH, "")
    runner.write("holder.py", "file = open('held.txt', 'w')")
    script = runner.write("script.py", f"import torch\n{source}\n")
    plain = runner.run([sys.executable, str(script)])
    files = _files_then_remove(runner)
    ours = runner.run_worker("--script", str(script))
    assert (ours.exit_code, ours.stdout) == (plain.exit_code, plain.stdout)
    assert _without_addresses(ours.stderr) == _without_addresses(plain.stderr)
    assert _files_then_remove(runner) == files


@pytest.mark.long
def test_leaves_before_the_interpreter_is_taken_apart_if_torch_is_loaded(runner: Runner) -> None:
    runner.write(TORCH, "")
    assert runner.run_script(DROPPED_LATE).stdout == "taken apart\n"
    assert runner.run_script(f"import torch\n{DROPPED_LATE}").stdout == ""


@pytest.mark.long
def test_a_torch_that_is_installed_elsewhere_is_not_taken_apart(runner: Runner) -> None:
    """A module system puts it on PYTHONPATH; to drop its 1,800 modules takes longer than all of the end."""
    runner.write("apps/torch/__init__.py", DROPPED_LATE.split("sys.modules")[0] + "late = Late()\n")
    path = str(runner.directory / "apps")
    assert runner.run_script("import torch", PYTHONPATH=path).stdout == ""


@pytest.mark.long
def test_torchs_own_finalizers_are_not_called_and_the_users_are(runner: Runner) -> None:
    runner.write("torch/__init__.py", "")
    library = "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, lambda: print('operators'))\n"
    runner.write("torch/library.py", library)
    users = "import weakref\nclass B: pass\nb = B()\nweakref.finalize(b, print, 'mine')\n"
    assert runner.run_script(f"import torch.library\n{users}").stdout == "mine\n"


PROCESS_GROUP = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
class Seen:
    def __del__(self, write=os.write):
        write(1, b"dropped\\n")
seen = Seen()
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=0, world_size=1)
if sys.argv[1:] == ["held"]:
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
dist.destroy_process_group()
"""


@pytest.mark.variant(of="test_ends_as_plain_python_does")
@pytest.mark.long
def test_the_names_stay_while_threads_of_a_process_group_may_wait_for_the_main_thread(runner: Runner) -> None:
    """DistributedDataParallel holds one beyond `destroy_process_group`, whose destructor may never return."""
    script = str(runner.write("script.py", PROCESS_GROUP))
    held, free = (runner.run_worker("--script", script, *words) for words in (["held"], []))
    assert (held.exit_code, held.stdout) == (0, "")
    assert (free.exit_code, free.stdout) == (0, "dropped\n")


@pytest.mark.long
def test_a_file_that_a_preloaded_module_has_open_is_flushed_in_a_fork(runner: Runner) -> None:
    site = runner.write("site/torch.py", "__version__ = '9.9'").parent
    runner.write("site/holder.py", "file = open('held.txt', 'w')")
    runner.environment["PYTHONPATH"] = str(site)
    script = runner.write("script.py", "import holder, torch\nholder.file.write('kept')\n")
    with fork_server(runner.directory, runner.environment, "--preload", "holder") as server:
        answer = server.fork_worker("script", str(script), directory=runner.directory, environment=runner.environment)
        assert collect(answer["pid"]) == 0
    assert (runner.directory / "held.txt").read_text() == "kept"


def _without_addresses(text: str) -> str:
    return re.sub("0x[0-9a-f]+", "0x", text)


def _files_then_remove(runner: Runner) -> dict[str, str]:
    """What a script left in its folder."""
    left = [path for path in runner.directory.iterdir() if path.suffix in (".txt", ".tmp")]
    found = {path.name if path.suffix == ".txt" else "a temporary file": path.read_text() for path in left}
    for path in left:
        path.unlink()
    return found
