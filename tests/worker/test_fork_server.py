"""The fork server: its protocol with the agent, and what stays when something goes wrong."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.worker.forking import LAUNCH, WAIT_S, Server, collect, fork_server, wait_readable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.worker.conftest import Runner

REPORT = """
import json, os, sys
print(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "argv": sys.argv, "file": __file__,
    "directory": os.getcwd(), "environment": dict(os.environ), "modules": "torch" in sys.modules,
    "cmdline": os.fsdecode(open("/proc/self/cmdline", "rb").read()).split("\\0")[1:-1],
    "environ": sorted(os.fsdecode(open("/proc/self/environ", "rb").read()).split("\\0")[:-1]),
}))
print("to stderr", file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture
def server(runner: Runner) -> Iterator[Server]:
    """A server with a torch that costs nothing."""
    runner.write("site/torch.py", "__version__ = '9.9'")
    runner.environment["PYTHONPATH"] = str(runner.directory / "site")
    with fork_server(runner.directory, runner.environment) as server:
        yield server


def fork_script(server: Server, runner: Runner, source: str, *arguments: str, **environment: str) -> dict[str, Any]:
    script = runner.write("script.py", source)
    return server.fork_worker(
        "script",
        str(script),
        *arguments,
        directory=runner.directory,
        environment={**runner.environment, **environment},
        stdout=runner.directory / "out",
        stderr=runner.directory / "err",
    )


def test_server_says_what_it_has_imported(server: Server) -> None:
    ready = server.ready
    assert ready.pop("seconds") > 0
    assert ready.pop("imported") > 50
    expected: dict[str, Any] = {
        "state": "ready",
        "torch": "9.9",
        "no_torch": None,
        "unsafe": None,
        "failed_preloads": [],
    }
    assert ready == expected


def test_worker_is_the_agents_child_and_runs_the_script_as_main(server: Server, runner: Runner) -> None:
    environment = {**runner.environment, "ONLY_HERE": "a=b\udcff", "EMPTY": ""}
    answer = fork_script(server, runner, REPORT, "-x", "a b", "", "ä", **environment)
    assert collect(answer["pid"]) == 7
    report = json.loads((runner.directory / "out").read_text())
    script = str(runner.directory / "script.py")
    assert report["pid"] == report["session"] == answer["pid"]
    assert report["parent"] == os.getpid()
    assert report["argv"] == [script, "-x", "a b", "", "ä"]
    assert report["cmdline"] == report["argv"]
    assert report["file"] == script
    assert report["directory"] == str(runner.directory)
    assert report["environment"] == environment
    assert report["environ"] == sorted(f"{name}={value}" for name, value in environment.items())
    assert report["modules"] is True
    assert (runner.directory / "err").read_text() == "to stderr\n"


def test_worker_runs_a_module(server: Server, runner: Runner) -> None:
    runner.write("package/__init__.py", "")
    runner.write("package/job.py", "import sys; print(sys.argv, __name__, __spec__.name, sys.path[0])")
    answer = server.fork_worker(
        "module",
        "package.job",
        "--x",
        directory=runner.directory,
        environment=runner.environment,
        stdout=runner.directory / "out",
    )
    assert collect(answer["pid"]) == 0
    argv = [str(runner.directory / "package" / "job.py"), "--x"]
    expected = f"{argv} __main__ package.job {runner.directory}\n"
    assert (runner.directory / "out").read_text() == expected


@pytest.mark.parametrize(
    ("directory", "number", "message"), [("nowhere", 2, "No such file"), ("file", 20, "Not a dir")]
)
def test_server_answers_with_the_error_and_leaves_no_process_if_a_worker_cannot_be_set_up(
    server: Server, runner: Runner, directory: str, number: int, message: str
) -> None:
    runner.write("file", "")
    path = runner.directory / directory
    answer = server.fork_worker("script", "script.py", directory=path, environment=runner.environment)
    assert answer.pop("message").startswith(message)
    assert answer == {"errno": number, "filename": str(path)}
    assert children() == [server.process.pid]
    assert children(server.process.pid) == []
    assert collect(fork_script(server, runner, "")["pid"]) == 0


def test_server_leaves_if_the_agent_closes_its_link(server: Server) -> None:
    server.link.close()
    assert server.process.wait(WAIT_S) == 0


def test_server_does_nothing_if_its_agent_is_gone_already(runner: Runner) -> None:
    outcome = runner.run([sys.executable, str(LAUNCH), "hpc_elastic.worker.fork_server", "--parent", str(os.getppid())])
    assert outcome.exit_code == -signal.SIGKILL


@pytest.mark.parametrize("arguments", [[], ["--parent"], ["--parent", "x"], ["--parent", "1", "--preload"], ["a", "1"]])
def test_server_rejects_arguments_that_are_not_an_agents(runner: Runner, arguments: list[str]) -> None:
    outcome = runner.run([sys.executable, str(LAUNCH), "hpc_elastic.worker.fork_server", *arguments])
    assert outcome.exit_code == 1
    assert "not --parent PID [--preload MODULE]..." in outcome.stderr


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2], ids=str
)
def test_slurms_signals_do_not_end_the_server_but_its_workers(
    server: Server, runner: Runner, number: signal.Signals
) -> None:
    os.killpg(server.process.pid, number)
    source = "import os, signal; print('up', flush=True); signal.pause()"
    os.mkfifo(runner.directory / "out")
    output = os.open(runner.directory / "out", os.O_RDONLY | os.O_NONBLOCK)
    pid = fork_script(server, runner, source)["pid"]
    assert wait_readable(output)
    os.kill(pid, number)
    assert collect(pid) == -number
    os.close(output)


def test_server_without_torch_says_so_and_forks(runner: Runner) -> None:
    runner.write("site/torch.py", "raise ModuleNotFoundError('no torch here')")
    runner.environment["PYTHONPATH"] = str(runner.directory / "site")
    with fork_server(runner.directory, runner.environment) as server:
        assert server.ready["torch"] is None
        assert server.ready["no_torch"] == "ModuleNotFoundError: no torch here"
        assert server.ready["unsafe"] is None
        assert collect(fork_script(server, runner, "raise SystemExit(3)")["pid"]) == 3


def test_server_preloads_what_it_is_told_and_names_what_it_cannot(runner: Runner) -> None:
    runner.write("site/torch.py", "__version__ = '9.9'")
    runner.write("site/mine.py", "import os; loaded_by = os.getpid()")
    runner.write("site/quits.py", "import sys; sys.exit('no')")
    runner.environment["PYTHONPATH"] = str(runner.directory / "site")
    preloads = [word for name in ("mine", "minee", "quits") for word in ("--preload", name)]
    with fork_server(runner.directory, runner.environment, *preloads) as server:
        failed = [["minee", "ModuleNotFoundError: No module named 'minee'"], ["quits", "SystemExit: no"]]
        assert server.ready["failed_preloads"] == failed
        answer = fork_script(server, runner, "import sys; print(sys.modules['mine'].loaded_by)")
        assert collect(answer["pid"]) == 0
        assert int((runner.directory / "out").read_text()) == server.process.pid


@pytest.mark.local
def test_store_host_is_a_fork_and_serves_a_store(runner: Runner) -> None:
    distributed = pytest.importorskip("torch.distributed")
    with fork_server(runner.directory, runner.environment) as server:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(WAIT_S)
        with ours, socket.create_server(("127.0.0.2", 0)) as listener:
            with theirs:
                pid = server.order({"do": "store", "parent": os.getpid()}, [theirs.fileno()])["pid"]
            assert Path(f"/proc/{pid}/stat").read_text().split()[3] == str(os.getpid())
            assert b"hpc_elastic.worker.store_host\0--parent\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
            assert json.loads(ours.recv(65536)) == {"state": "ready", "torch": server.ready["torch"]}
            port = listener.getsockname()[1]
            message = {"attempt": 1, "address": "127.0.0.2", "port": port}
            socket.send_fds(ours, [json.dumps(message).encode()], [listener.fileno()])
            assert json.loads(ours.recv(65536)) == {"attempt": 1, "state": "serving"}
            store = distributed.TCPStore("127.0.0.2", port, is_master=False)
            store.set("key", "value")
            assert store.get("key") == b"value"
            server.link.close()  # the store outlives the server
            assert server.process.wait(WAIT_S) == 0
            assert store.get("key") == b"value"
        assert collect(pid) == 0


def children(pid: int | None = None) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid or os.getpid()}/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found
