"""A fork has what a fresh `python script.py` has, as far as it can be counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.worker.forking import collect, fork_server

if TYPE_CHECKING:
    from tests.worker.conftest import Runner

# What an import may leave behind in the server, besides what the standard library itself leaves.
PRELOAD = """
import logging, multiprocessing.process, os, random, signal, tempfile, threading, time
tempfile.gettempdir()
handler = logging.StreamHandler()
os.environ["SET_BY_IMPORT"] = "1"
os.putenv("BEHIND_PYTHON", "1")
signal.signal(signal.SIGUSR2, print)
random.seed(1)
"""
STATE = """
import json, logging, multiprocessing.process, os, random, signal, subprocess, sys, tempfile, threading, time
import preloaded

def describe(file):
    kinds = (type(file), type(file.buffer), type(getattr(file.buffer, "raw", None)))
    text = (file.name, file.mode, file.encoding, file.errors, file.line_buffering, file.write_through, file.newlines)
    return [str(value) for value in (*kinds, *text, file.buffer.mode, file.buffer.closed, file is sys.__stdout__)]

status = dict(line.split(":", 1) for line in open("/proc/self/status"))
fatal = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)  # a worker has a fault handler
caught = int(status["SigCgt"], 16) & ~sum(1 << (number - 1) for number in fatal)
print(json.dumps({
    "files": [describe(file) for file in (sys.stdin, sys.stdout, sys.stderr)],
    "stdin": [os.readlink("/proc/self/fd/0"), sys.stdin.read()],
    "flags": [__import__("fcntl").fcntl(number, 3) for number in range(3)],
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "inheritable": [os.get_inheritable(number) for number in range(3)],
    "handler": preloaded.handler.stream is sys.stderr,
    "signals": {name: status[name].strip() for name in ("SigBlk", "SigIgn", "SigPnd", "ShdPnd")},
    "caught": caught,
    "handlers": {
        str(number): str(signal.getsignal(number)).split(" at ")[0]
        for number in set(signal.valid_signals()) - set(fatal)
    },
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "threads": [threading.current_thread().name, threading.main_thread().native_id == os.getpid()],
    "umask": status["Umask"],
    "name": status["Name"],
    "temporary": tempfile.gettempdir(),
    "multiprocessing": [multiprocessing.process.ORIGINAL_DIR, len(multiprocessing.process.current_process().authkey)],
    "zone": [os.environ.get("TZ"), time.tzname, time.localtime(0).tm_hour],
    "environment": dict(os.environ),
    "C": sorted(subprocess.run(["env"], capture_output=True, text=True).stdout.splitlines()),
    "group": [os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid()],
    "path": sys.path[:2],
    "orig_argv": sys.orig_argv[1:],
}))
"""
SEEDS = """
import json, multiprocessing.process, random, tempfile, time, logging
print(json.dumps([
    random.random(), multiprocessing.process.current_process().authkey.hex(), next(tempfile._get_candidate_names())
]))
"""


def run_plain(runner: Runner, *options: str, **environment: str) -> Any:
    with open(runner.directory / "plain.out", "ab") as out, open(runner.directory / "plain.err", "ab") as err:
        exit_code = subprocess.run(
            [sys.executable, *options, "./script.py", "a"],
            cwd=runner.directory,
            env={**runner.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        ).returncode
    assert (exit_code, (runner.directory / "plain.err").read_text()) == (0, "")
    return json.loads((runner.directory / "plain.out").read_text())


def run_forked(
    runner: Runner, *options: str, forks: int = 1, ignored: Collection[signal.Signals] = (), **environment: str
) -> list[Any]:
    """What the script says in forks of a server that was started in another folder, zone and terminal."""
    results = []
    (runner.directory / "elsewhere").mkdir()
    preload = ("--preload", "preloaded")
    python = [sys.executable, *options]
    folder = runner.directory / "elsewhere"
    with fork_server(folder, runner.environment, *preload, python=python, ignored=ignored) as server:
        for number in range(forks):
            paths = [runner.directory / f"fork{number}.{name}" for name in ("out", "err")]
            answer = server.fork_worker(
                "script",
                "./script.py",
                "a",
                directory=runner.directory,
                environment={**runner.environment, **environment},
                stdout=paths[0],
                stderr=paths[1],
            )
            assert (collect(answer["pid"]), paths[1].read_text()) == (0, "")
            results.append(json.loads(paths[0].read_text()))
    return results


@pytest.fixture
def prepared(runner: Runner) -> Runner:
    runner.write("site/torch.py", "")
    runner.write("site/preloaded.py", PRELOAD)
    runner.environment["PYTHONPATH"] = str(runner.directory / "site")
    return runner


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["-u"], ["-X", "utf8"]], ids=" ".join)
def test_fork_is_what_a_fresh_process_is(prepared: Runner, options: list[str]) -> None:
    prepared.write("script.py", STATE)
    (prepared.directory / "temporary").mkdir()
    environment = {"TZ": "Asia/Tokyo", "TMPDIR": str(prepared.directory / "temporary")}
    (forked,) = run_forked(prepared, *options, forks=1, ignored=(), **environment)
    assert forked == run_plain(prepared, *options, **environment)


@pytest.mark.long
def test_fork_keeps_what_was_ignored_and_blocked_before_the_server(
    prepared: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under nohup; a fork is to die of no signal of which a spawned worker would not."""
    prepared.write("script.py", STATE)
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
    try:
        (forked,) = run_forked(prepared, ignored=[signal.SIGHUP])
        plain = run_plain(prepared)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGHUP, handler)
    assert forked["signals"] == plain["signals"]
    assert forked["handlers"] == plain["handlers"]
    assert forked["mask"] == [signal.SIGWINCH]


@pytest.mark.long
def test_fork_keeps_its_own_value_of_a_variable_that_an_import_set(prepared: Runner) -> None:
    prepared.write("script.py", "import json, os; print(json.dumps(os.environ['SET_BY_IMPORT']))")
    assert run_forked(prepared, SET_BY_IMPORT="mine") == ["mine"]


@pytest.mark.long
def test_forks_draw_seeds_of_their_own(prepared: Runner) -> None:
    prepared.write("script.py", SEEDS)
    forked = run_forked(prepared, forks=3)
    for drawn in zip(*forked, strict=True):
        assert len(set(drawn)) == 3


@pytest.mark.long
def test_fork_seeds_numpy_if_it_is_loaded(prepared: Runner) -> None:
    """By a stand-in: numpy draws its first seed when it is imported, so all forks would share it."""
    prepared.write("site/numpy/__init__.py", "")
    prepared.write("site/numpy/random.py", "import os\ndef seed():\n    global state\n    state = os.getpid()")
    prepared.write("site/preloaded.py", "import numpy.random")
    prepared.write("script.py", "import json, numpy.random, os; print(json.dumps(numpy.random.state == os.getpid()))")
    assert run_forked(prepared) == [True]


@pytest.mark.long
def test_fork_has_its_own_rank_in_lightning_although_that_asks_while_it_is_imported(prepared: Runner) -> None:
    """By a stand-in for what lightning 2.6 does; tests/compat has the real one."""
    for package in ("lightning", "lightning/fabric", "lightning/fabric/utilities", "lightning_utilities/core"):
        prepared.write(f"site/{package}/__init__.py", "")
    prepared.write("site/lightning_utilities/core/rank_zero.py", "def rank_zero_only(function): return function")
    only = "from lightning_utilities.core.rank_zero import rank_zero_only"
    prepared.write(
        "site/lightning/fabric/utilities/rank_zero.py",
        f"import os\n{only}\nrank_zero_only.rank = int(os.environ.get('RANK') or 0)",
    )
    prepared.write("site/preloaded.py", "import lightning.fabric.utilities.rank_zero")
    prepared.write("script.py", f"import json\n{only}\nprint(json.dumps(rank_zero_only.rank))")
    del prepared.environment["RANK"]
    with fork_server(prepared.directory, prepared.environment, "--preload", "preloaded") as server:
        assert (server.ready["failed_preloads"], server.ready["unsafe"]) == ([], None)
    assert run_forked(prepared, RANK="5") == [5]


@pytest.mark.long
def test_fork_sees_modules_that_came_after_the_server_looked(prepared: Runner) -> None:
    site = prepared.directory / "site"
    prepared.write("site/preloaded.py", "import importlib.util; importlib.util.find_spec('late')")
    prepared.write("script.py", "import late, json; print(json.dumps(late.value))")
    before = os.stat(site)
    with fork_server(prepared.directory, prepared.environment, "--preload", "preloaded") as server:
        prepared.write("site/late.py", "value = 5")
        os.utime(site, ns=(before.st_atime_ns, before.st_mtime_ns))  # as on a file system with coarse times
        out = prepared.directory / "out"
        script = str(prepared.directory / "script.py")
        answer = server.fork_worker(
            "script", script, directory=prepared.directory, environment=prepared.environment, stdout=out
        )
        assert collect(answer["pid"]) == 0
    assert Path(out).read_text() == "5\n"
