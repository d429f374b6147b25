"""An exception that ends a worker is in error.json, whatever it is; nothing else is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpc_elastic.failures.traceback_text import parse_traceback
from hpc_elastic.last_word import NAME_VARIABLE, Word, WordKind, name_of, open_receiver, receive_words
from hpc_elastic.rundir.error_file import CALLSTACK_LIMIT, MESSAGE_LIMIT
from hpc_elastic.worker.exception_texts import (
    ExceptionTexts,
    describe,
    format_traceback,
    has_plain_text,
    texts_of,
)
from tests.slurm_sandbox.sandbox import wait_until
from tests.tiers import each_third, longer, variants

if TYPE_CHECKING:
    from tests.worker.conftest import Runner


@pytest.mark.long
def test_uncaught_exception_is_written_in_torchs_format_and_ours(runner: Runner) -> None:
    before = time.time_ns()
    outcome = runner.run_script("def f():\n    raise ValueError('no grad')\nf()\n")
    record = runner.read_error()
    message = record["message"]
    assert message["message"] == "ValueError: no grad"
    assert message["extraInfo"]["py_callstack"] == outcome.stderr
    assert message["extraInfo"]["timestamp"] == str(record["time_ns"] // 10**9)
    assert before <= record["time_ns"] <= time.time_ns()
    expected = {"class": "exception", "exit_code": 1, "signal": None, "rank": 3, "local_rank": 1, "node": "node7"}
    assert expected.items() <= record.items()
    assert record["attempt"] == 2
    assert record["pid"] > 0
    assert os.stat(runner.error_file).st_mode & 0o777 == 0o600
    assert os.listdir(runner.error_file.parent) == ["error.json"]


@pytest.mark.long
@pytest.mark.parametrize(("name", "tail"), [("stderr.log", "a warning of NCCL\n"), ("agent.out", "")])
def test_record_has_the_end_of_standard_error_if_that_is_the_ranks_file(
    runner: Runner, command_of: Callable[..., list[str]], tmp_path: Path, name: str, tail: str
) -> None:
    script = str(runner.write("script.py", "import sys; print('a warning of NCCL', file=sys.stderr); 1 / 0"))
    folder = tmp_path / "attempts" / "0002" / "ranks" / "00003"
    folder.mkdir(parents=True)
    environment = {**runner.environment, "HPC_ELASTIC_RUN_DIR": str(tmp_path)}
    with open(folder / name, "ab") as stderr:
        stderr.write(b"of another worker\n" if name == "agent.out" else b"")
        subprocess.run(command_of("--script", script), env=environment, stderr=stderr, timeout=60)
    assert runner.read_error()["stderr_tail"] == tail


@pytest.mark.long
@pytest.mark.parametrize(
    "source",
    [
        "import sys; sys.exit('text')",
        "import os\nif os.fork() == 0:\n    1 / 0\nos.wait()",
        *longer(
            "import os; os._exit(3)",
            "raise KeyboardInterrupt",
            "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()",
            "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
            "import multiprocessing\nmultiprocessing.get_context('fork').Process(target=lambda: 1 / 0).start()",
        ),
    ],
)
def test_nothing_is_written_if_no_exception_ends_the_worker(runner: Runner, source: str) -> None:
    runner.run_script(source)
    assert not runner.error_file.exists()


HOSTILE = {
    "text_fails": "class E(Exception):\n def __str__(self): raise SystemExit(0)\nraise E",
    "text_is_huge": "raise ValueError('x' * 50_000_000)",
    "text_is_not_unicode": "raise ValueError('\\udcff \\0 \\x1b[31m')",
    "recursion": "def f(): f()\nf()",
    "memory": "raise MemoryError",
    "no_memory": "[0] * (1 << 60)",
    "deep_chain": "e = None\nfor i in range(5000):\n f = ValueError(i)\n f.__cause__ = e\n e = f\nraise e",
    "circular_chain": "a = ValueError('a')\nb = ValueError('b')\na.__context__ = b\nb.__context__ = a\nraise a",
    "base_exception": "raise GeneratorExit('odd')",
    "stderr_is_closed": "import sys; sys.stderr.close(); raise ValueError",
    "modules_are_gone": "import sys; sys.modules.clear(); raise ValueError('bare')",
    "path_is_gone": "import sys, os; sys.path.clear(); os.environ.clear(); raise ValueError('bare')",
    "open_is_gone": "import os, json; os.open = os.replace = json.dumps = None; raise ValueError('bare')",
    "name_is_odd": "raise type('A\\nB', (Exception,), {})('x')",
}


@pytest.mark.long
@pytest.mark.parametrize(
    "name", each_third(HOSTILE, of="test_exit_code_is_1_and_the_record_is_bounded_if_the_exception_is_hostile")
)
def test_exit_code_is_1_and_the_record_is_bounded_if_the_exception_is_hostile(runner: Runner, name: str) -> None:
    assert runner.run_script(HOSTILE[name]).exit_code == 1
    if name != "open_is_gone":
        message = runner.read_error()["message"]
        assert len(message["message"]) < MESSAGE_LIMIT + 100
        assert len(message["extraInfo"]["py_callstack"]) < CALLSTACK_LIMIT + 100


def test_a_very_deep_traceback_is_formatted_without_its_middle() -> None:
    """All frames of a million take a minute, in which the agent knows nothing yet."""

    def down(depth: int) -> None:
        if not depth:
            raise ValueError("at the bottom")
        (down if depth % 2 else sideways)(depth - 1)

    def sideways(depth: int) -> None:  # else equal lines would be told as one
        down(depth - 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        down(6_000)
    except ValueError as error:
        text = format_traceback(error, error.__traceback__)
    finally:
        sys.setrecursionlimit(limit)
    assert text.count(", line ") == 2_100
    assert ", in test_a_very_deep" in text.splitlines()[1]
    assert text.endswith("ValueError: at the bottom\n")


class Loader:
    """Where the lines of a program come from, at which a signal handler raises so many times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def get_source(self, name: str) -> str:
        self.times -= 1
        if self.times >= 0:
            raise RuntimeError("DataLoader worker (pid 5) is killed by signal: Killed.")
        return "def fails():\n    raise KeyError('x')\n"


@pytest.mark.parametrize("times", [1, 2])
def test_a_traceback_is_whole_if_a_signal_handler_raises_while_it_is_written(times: int) -> None:
    variables: dict[str, Any] = {"__name__": f"interrupted_{times}", "__loader__": Loader(times)}
    exec(compile("def fails():\n    raise KeyError('x')\n", f"interrupted_{times}.py", "exec"), variables)
    try:
        variables["fails"]()
    except KeyError as error:
        text = format_traceback(error, error.__traceback__)
    assert ("    raise KeyError('x')" in text) == (times == 1)
    (raised,) = parse_traceback(text)
    assert (raised.type_name, raised.text) == ("KeyError", "'x'")
    assert [frame.function for frame in raised.frames][-1] == "fails"


def test_record_is_written_if_the_script_has_left_no_descriptor(runner: Runner) -> None:
    limit = "import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\nkept = []\n"
    check = "import atexit\natexit.register(lambda: print(os.fstat(0).st_rdev == os.stat(os.devnull).st_rdev))\n"
    outcome = runner.run_script(f"{check}{limit}while True:\n    kept.append(open('/dev/zero'))\n")
    record = runner.read_error()
    assert record["message"]["message"] == "OSError: [Errno 24] Too many open files: '/dev/zero'"
    assert (outcome.exit_code, outcome.stdout) == (1, "True\n")


@pytest.mark.long
@pytest.mark.parametrize("place", ["file/error.json", "folder", ""])
def test_traceback_and_exit_code_stay_if_the_record_cannot_be_written(runner: Runner, place: str) -> None:
    runner.write("file", "")
    (runner.directory / "folder").mkdir()
    outcome = runner.run_script("1 / 0", TORCHELASTIC_ERROR_FILE=place and str(runner.directory / place))
    assert outcome.exit_code == 1
    assert outcome.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert outcome.stderr.count("Traceback") == 1


@pytest.mark.long
def test_script_that_cannot_be_opened_is_a_failure_to_start(runner: Runner) -> None:
    assert runner.run_worker("--script", "nowhere.py").exit_code == 2
    record = runner.read_error()
    assert (record["class"], record["exit_code"]) == ("start_failed", 2)
    assert record["message"]["message"].startswith("FileNotFoundError: ")


@pytest.mark.long
def test_syntax_error_is_written_as_python_prints_it(runner: Runner) -> None:
    outcome = runner.run_script("def f(:\n")
    assert runner.read_error()["message"]["extraInfo"]["py_callstack"] == outcome.stderr


@pytest.mark.long
def test_what_record_of_torch_wrote_is_kept(runner: Runner) -> None:
    text = "ZeroDivisionError: division by zero"
    theirs = {"message": {"message": text, "errorCode": 5, "extraInfo": {"py_callstack": "", "timestamp": "1"}}}
    runner.write("ranks/00003/error.json", json.dumps(theirs))
    runner.run_script("1 / 0")
    record = runner.read_error()
    assert record["message"] == theirs["message"]
    assert (record["class"], record["rank"]) == ("exception", 3)


@pytest.mark.long
def test_an_error_file_of_a_child_does_not_hide_the_ranks_own_exception(runner: Runner) -> None:
    childs = {"message": {"message": "ValueError: of a child", "extraInfo": {"py_callstack": "", "timestamp": "1"}}}
    runner.write("ranks/00003/error.json", json.dumps(childs))
    runner.run_script("1 / 0")
    assert runner.read_error()["message"]["message"] == "ZeroDivisionError: division by zero"


@pytest.mark.long
def test_the_failure_of_a_nested_torchrun_is_that_of_its_worker(runner: Runner) -> None:
    workers = {"message": {"message": "ValueError: of a worker", "extraInfo": {"py_callstack": "", "timestamp": "1"}}}
    runner.write("ranks/00003/error.json", json.dumps(workers))
    runner.run_script("class ChildFailedError(Exception): pass\nraise ChildFailedError('train.py FAILED')")
    assert runner.read_error()["message"]["message"] == "ValueError: of a worker"


@pytest.mark.local
def test_script_with_torchs_record_ends_as_under_plain_python(runner: Runner) -> None:
    pytest.importorskip("torch")
    source = (
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main():\n    raise ValueError('recorded')\nmain()\n"
    )
    runner.error_file.parent.mkdir(parents=True)  # torch does not make it
    outcome = runner.run_script(source)
    record = runner.read_error()
    assert outcome.exit_code == 1
    assert outcome.stderr.endswith("ValueError: recorded\n")
    assert record["message"]["message"] == "ValueError: recorded"
    assert record["class"] == "exception"


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        (place / "filler").write_bytes(b"x" * 64 * 1024)
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.long
def test_traceback_and_exit_code_stay_if_the_disk_is_full(runner: Runner, full_disk: Path) -> None:
    error_file = full_disk / "error.json"
    outcome = runner.run_script("raise ValueError('x' * 5000)", TORCHELASTIC_ERROR_FILE=str(error_file))
    assert outcome.exit_code == 1
    assert "ValueError: xxx" in outcome.stderr
    assert os.listdir(full_disk) == ["filler"]


WAIT = "import threading\ndef wait(*_): threading.Event().wait()\n"
ENDLESS = {
    "waits": f"{WAIT}class Odd(ValueError): __str__ = wait\nraise Odd",
    "runs": "class Odd(ValueError):\n def __str__(self):\n  while True: pass\nraise Odd",
    "argument": f"{WAIT}class Text: __repr__ = wait\nraise ValueError(Text(), 1)",
    "cause": f"{WAIT}class Odd(ValueError): __str__ = wait\nraise ValueError('no') from Odd()",
}


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "waits",
        *variants(*list(ENDLESS)[1:], of="test_an_exception_whose_text_never_comes_is_told_and_recorded_without_it"),
    ],
)
def test_an_exception_whose_text_never_comes_is_told_and_recorded_without_it(
    runner: Runner, command_of: Callable[..., list[str]], name: str
) -> None:
    script = runner.write("script.py", ENDLESS[name])
    with open_receiver() as receiver:
        environment = {**runner.environment, NAME_VARIABLE: name_of(receiver)}
        with subprocess.Popen(command_of("--script", str(script)), env=environment, stderr=subprocess.DEVNULL) as rank:
            try:
                words: list[Word] = []

                def is_last_said() -> bool:
                    words.extend(receive_words(receiver))
                    return WordKind.LAST in [word.kind for word in words]

                wait_until(is_last_said, "the rank says its last word")
            finally:
                rank.kill()
    kind, line = ("Odd" if name in ("waits", "runs") else "ValueError"), ENDLESS[name].count("\n") + 1
    frame = f'File "{script}", line {line}, in <module>'
    first = json.loads(words[0].record)["message"]
    assert (words[0].kind, first["message"]) == (WordKind.FAILING, kind)
    assert frame in first["extraInfo"]["py_callstack"]
    message = runner.read_error()["message"]
    assert message["message"] == f"{kind}: <exception str() did not return within 5 s>"
    assert frame in message["extraInfo"]["py_callstack"]


EXITS = {
    "waits": f"{WAIT}class Odd: __str__ = wait\nsys.exit(Odd())",
    "raises": "class Odd:\n def __str__(self): raise ValueError\nsys.exit(Odd())",
    "in a hook": f"{WAIT}class Odd: __str__ = wait\nsys.excepthook = lambda *_: sys.exit(Odd())\nraise ValueError",
}


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "waits",
        "raises",
        *variants("in a hook", of="test_a_rank_whose_exit_text_never_comes_or_fails_ends_and_tells_its_agent"),
    ],
)
def test_a_rank_whose_exit_text_never_comes_or_fails_ends_and_tells_its_agent(
    runner: Runner, command_of: Callable[..., list[str]], name: str
) -> None:
    script = runner.write("script.py", f"import sys\n{EXITS[name]}")
    with open_receiver() as receiver:
        environment = {**runner.environment, NAME_VARIABLE: name_of(receiver)}
        command = command_of("--script", str(script))
        done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, timeout=60)
        words = list(receive_words(receiver))
    assert done.returncode == 1
    asked = "<str() of what sys.exit was given"
    never, fails = f"{asked} did not return within 5 s>", f"{asked} failed: Odd>"
    assert (done.stderr == "\n") if name == "raises" else (never in done.stderr)  # as Python: an empty line
    assert WordKind.FAILING in [word.kind for word in words]
    if name != "in a hook":  # then the exception itself is what is recorded
        told = json.loads(words[-1].record)["message"]["message"]
        assert told == (fails if name == "raises" else never)


class SlowError(Exception):
    """Its text takes as long as its event is not set."""

    def __init__(self, event: threading.Event) -> None:
        self.event = event

    def __str__(self) -> str:
        self.event.wait()
        return f"after {WORD.get()}"


WORD: ContextVar[str] = ContextVar("word", default="nothing")


def test_a_text_that_comes_late_is_complete_and_is_asked_for_in_the_same_context() -> None:
    event = threading.Event()
    token = WORD.set("all")
    timer = threading.Timer(0.05, event.set)
    timer.start()
    try:
        texts = texts_of(SlowError(event), None, within_s=60)
    finally:
        WORD.reset(token)
        timer.join()
    assert texts == ExceptionTexts(message="SlowError: after all", callstack=f"{__name__}.SlowError: after all\n")


class StrangerError(Exception):
    def __str__(self) -> str:
        return "a text of the user's code"


def noted(error: BaseException, *notes: object) -> BaseException:
    error.__notes__ = list(notes)  # type: ignore[attr-defined]
    return error


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no", 1, 2.5, None, b"x"), True),
        (FileNotFoundError(2, "No such file or directory", "/x"), True),
        (FileNotFoundError(2, "No such file or directory", Path("/x")), True),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "no"), True),
        (noted(ValueError("no"), "a note"), True),
        (caused(ValueError("no"), KeyError("x")), True),
        (SyntaxError("no", ("x.py", 1, 2, "def f(:")), True),
        (KeyError((1, "x")), True),
        (KeyError((1, (object(),))), False),
        (noted(ValueError("no"), "a note", object()), False),
        (ValueError(object()), False),
        (ValueError(["no"]), False),
        (OSError(2, "no", object()), False),
        (StrangerError("no"), False),
        (caused(ValueError("no"), StrangerError()), False),
        (subprocess.CalledProcessError(1, "x"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_the_text_of_an_exception_is_asked_for_in_a_thread_only_if_the_users_code_makes_it(
    error: BaseException, expected: bool
) -> None:
    assert has_plain_text(error) is expected
    assert texts_of(error, None) == ExceptionTexts(message=describe(error), callstack=format_traceback(error, None))


@pytest.mark.long
def test_a_stop_does_not_tear_the_error_file(runner: Runner) -> None:
    """The TERM that a peer's failure brings may come in the middle of writing; here it comes with the text."""
    outcome = runner.run_script(
        """
import os, signal
class Late(Exception):
    told = False
    def __str__(self):
        if not Late.told:
            Late.told = True
            os.kill(os.getpid(), signal.SIGTERM)
        return "at last"
raise Late
"""
    )
    assert outcome.exit_code == 1
    assert runner.read_error()["message"]["message"] == "Late: at last"
    assert [path.name for path in runner.error_file.parent.iterdir()] == ["error.json"]
