"""The fork server: its protocol with the agent, and what stays when something goes wrong."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpc_elastic.clock import now
from hpc_elastic.deadline import Deadline
from hpc_elastic.frames import send_frame
from tests.slurm_sandbox.sandbox import wait_until
from tests.tiers import longer
from tests.worker.forking import LAUNCH, WAIT_S, Server, children, collect, fork_server, wait_readable

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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("has_namesake", [False, True], ids=["fork", "spawned-again"])
def test_worker_that_starts_too_late_does_not_run(runner: Runner, has_namesake: bool) -> None:
    """The deadline is looked at last of all: a server that was paused with the order in its hands starts nothing."""
    runner.write("site/torch.py", "__version__ = '9.9'")
    if has_namesake:
        runner.write("torch.py", "__version__ = 'own'")
    runner.environment["PYTHONPATH"] = str(runner.directory / "site")
    deadline = Deadline.create()
    options = ("--deadline", str(deadline.descriptor))
    source = "import os, torch; print(torch.__version__, os.listdir('/proc/self/fd'))"
    with fork_server(runner.directory, runner.environment, *options, passed=[deadline.descriptor]) as server:
        assert collect(fork_script(server, runner, source)["pid"]) == 0
        version = "own" if has_namesake else "9.9"
        # The last one is that of the listing: no descriptor of the deadline is left to the user's code.
        assert (runner.directory / "out").read_text() == f"{version} ['0', '1', '2', '3']\n"
        deadline.set(now())
        assert collect(fork_script(server, runner, source)["pid"]) == -signal.SIGKILL
        assert (runner.directory / "out").read_text() == f"{version} ['0', '1', '2', '3']\n"
    deadline.close()


@pytest.mark.long
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


@pytest.mark.long
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
    assert forks_of(server) == []
    assert children(server.process.pid) == []
    assert collect(fork_script(server, runner, "")["pid"]) == 0


@pytest.mark.long
def test_server_leaves_if_the_agent_closes_its_link(server: Server) -> None:
    server.link.close()
    assert server.process.wait(WAIT_S) == 0


def test_server_does_nothing_if_its_agent_is_gone_already(runner: Runner) -> None:
    outcome = runner.run([sys.executable, str(LAUNCH), "hpc_elastic.worker.fork_server", "--parent", str(os.getppid())])
    assert outcome.exit_code == -signal.SIGKILL


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments", [[], *longer(["--parent"], ["--parent", "x"], ["--parent", "1", "--preload"], ["a", "1"])]
)
def test_server_rejects_arguments_that_are_not_an_agents(runner: Runner, arguments: list[str]) -> None:
    outcome = runner.run([sys.executable, str(LAUNCH), "hpc_elastic.worker.fork_server", *arguments])
    assert outcome.exit_code == 1
    assert "not --parent PID [--deadline DESCRIPTOR] [--preload MODULE]..." in outcome.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *longer(signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)],
    ids=str,
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


@pytest.mark.long
def test_worker_ignores_a_signal_that_is_ignored_where_its_server_starts(runner: Runner) -> None:
    """As plain Python does below `nohup`."""
    source = "import os, signal; os.kill(os.getpid(), signal.SIGHUP); os.kill(os.getpid(), signal.SIGUSR1)"
    runner.write("site/torch.py", "__version__ = '9.9'")
    runner.environment["PYTHONPATH"] = str(runner.directory / "site")
    with fork_server(runner.directory, runner.environment, ignored=[signal.SIGHUP]) as server:
        assert collect(fork_script(server, runner, source)["pid"]) == -signal.SIGUSR1


@pytest.mark.long
def test_server_without_torch_says_so_and_forks(runner: Runner) -> None:
    runner.write("site/torch.py", "raise ModuleNotFoundError('no torch here')")
    runner.environment["PYTHONPATH"] = str(runner.directory / "site")
    with fork_server(runner.directory, runner.environment) as server:
        assert server.ready["torch"] is None
        assert server.ready["no_torch"] == "ModuleNotFoundError: no torch here"
        assert server.ready["unsafe"] is None
        assert collect(fork_script(server, runner, "raise SystemExit(3)")["pid"]) == 3


@pytest.mark.long
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


@pytest.mark.long
def test_what_a_preloaded_module_finalizes_is_left_to_the_server(runner: Runner) -> None:
    runner.write("site/mine.py", "import tempfile; folder = tempfile.TemporaryDirectory(dir='.')")
    runner.environment["PYTHONPATH"] = str(runner.directory / "site")
    with fork_server(runner.directory, runner.environment, "--preload", "mine") as server:
        answer = fork_script(server, runner, "import mine; print(mine.folder.name)")
        assert collect(answer["pid"]) == 0
        assert (runner.directory / (runner.directory / "out").read_text().strip()).is_dir()


@pytest.mark.long
def test_worker_may_have_a_large_environment(server: Server, runner: Runner) -> None:
    large = {f"LARGE_{number}": str(number) * 100_000 for number in range(10)}
    os.mkfifo(runner.directory / "fifo")
    source = "import os; open('fifo').read(); os._exit(sum(map(len, os.environ.values())) > 1_000_000)"
    answer = fork_script(server, runner, source, **large)
    image = Path(f"/proc/{answer['pid']}/environ").read_bytes()
    (runner.directory / "fifo").write_text("")
    assert collect(answer["pid"]) == 1
    assert b"LARGE_9=" + b"9" * 100_000 + b"\0" in image


def forks_of(server: Server) -> list[int]:
    """Forks of this server among our children; what other tests have left may become our child at any time."""
    line = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
    return [pid for pid in children() if pid != server.process.pid and _command_line(pid) == line]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.long
def test_a_hundred_forks_leave_nothing_in_the_server(server: Server, runner: Runner) -> None:
    assert collect(fork_script(server, runner, "")["pid"]) == 0
    descriptors = open_descriptors(server.process.pid)
    for number in range(100):
        directory = runner.directory / ("nowhere" if number % 10 == 0 else "")
        answer = server.fork_worker(
            "script",
            str(runner.directory / "script.py"),
            directory=directory,
            environment=runner.environment,
            stdout=runner.directory / "out",
        )
        assert ("errno" in answer) == (number % 10 == 0)
        assert "errno" in answer or collect(answer["pid"]) == 0
    # The descriptor of an answer is closed after it: the first fork's may be counted above, the last one's here.
    wait_until(
        lambda: set(open_descriptors(server.process.pid)) <= set(descriptors),
        "no descriptor is left open",
        otherwise=lambda: f"{descriptors} have become {open_descriptors(server.process.pid)}",
    )
    assert children(server.process.pid) == []
    assert forks_of(server) == []


@pytest.mark.long
def test_server_answers_with_the_error_if_it_has_no_descriptor_left(server: Server, runner: Runner) -> None:
    before = open_descriptors(server.process.pid)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (len(before) + 3, 100))
    script = str(runner.write("script.py", ""))
    answer = server.fork_worker("script", script, directory=runner.directory, environment=runner.environment)
    assert answer == {"errno": errno.EMFILE, "message": "Too many open files", "filename": None}
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (len(before), 100))
    answer = fork_script(server, runner, "")
    assert answer["errno"] == errno.EMFILE
    assert open_descriptors(server.process.pid) == before
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (100, 100))
    assert collect(fork_script(server, runner, "")["pid"]) == 0


# Stands in for an agent: a subreaper that starts a server and two workers, and says their process ids.
AGENT = """
import json, os, signal, sys
from pathlib import Path
sys.path.insert(0, ROOT)
from hpc_elastic.frames import send_frame
from tests.worker.forking import fork_server
directory = Path(sys.argv[1])
with fork_server(directory, os.environ) as server:
    pids = [server.process.pid]
    for _ in range(2):
        answer = server.fork_worker("script", "script.py", directory=directory, environment=os.environ)
        pids.append(answer["pid"])
    print(json.dumps(pids), flush=True)
    signal.pause()
"""


def test_server_and_workers_are_killed_if_their_agent_is_killed(runner: Runner) -> None:
    runner.write("site/torch.py", "")
    runner.write("script.py", "import signal; signal.pause()")
    source = AGENT.replace("ROOT", repr(str(LAUNCH.parents[1])))
    environment = {**runner.environment, "PYTHONPATH": str(runner.directory / "site")}
    command = [sys.executable, "-c", source, str(runner.directory)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        pidfds = [os.pidfd_open(pid) for pid in json.loads(agent.stdout.readline())]
        agent.kill()
        ended = [wait_readable(pidfd) for pidfd in pidfds]
        for pidfd in pidfds:
            if not wait_readable(pidfd, 0):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
    assert ended == [True, True, True]


# Preloaded: what happens in a fork's fork, the worker to be, before anything of ours runs in it.
AT_FORK = """
import os, signal
server = os.getpid()
def in_child():
    if os.path.exists("armed") and os.getppid() != server:
        {action}
os.register_at_fork(after_in_child=in_child)
"""


@pytest.mark.long
def test_server_answers_with_an_error_if_the_fork_dies_while_it_is_set_up(runner: Runner) -> None:
    runner.write("site/torch.py", "")
    runner.write("site/dies.py", AT_FORK.format(action="os.kill(os.getpid(), signal.SIGKILL)"))
    runner.environment["PYTHONPATH"] = str(runner.directory / "site")
    with fork_server(runner.directory, runner.environment, "--preload", "dies") as server:
        runner.write("armed", "")
        answer = fork_script(server, runner, "")
        assert answer == {"errno": errno.ECHILD, "message": "the fork ended before it was set up", "filename": None}
        assert children(server.process.pid) == []
        (runner.directory / "armed").unlink()
        assert collect(fork_script(server, runner, "")["pid"]) == 0


@pytest.mark.long
def test_nothing_is_left_if_the_server_is_killed_while_a_fork_is_set_up(runner: Runner) -> None:
    runner.write("site/torch.py", "")
    runner.write("site/waits.py", AT_FORK.format(action="open('pid', 'w').write(str(os.getpid())); open('go').read()"))
    runner.environment["PYTHONPATH"] = str(runner.directory / "site")
    for name in ("pid", "go"):
        os.mkfifo(runner.directory / name)
    message = {"do": "worker", "parent": os.getpid(), "kind": "script", "target": "script.py", "arguments": []}
    message |= {"environment": runner.environment, "directory": str(runner.directory)}
    with fork_server(runner.directory, runner.environment, "--preload", "waits") as server:
        runner.write("armed", "")
        runner.write("script.py", "open('ran', 'w')")
        send_frame(server.link, {**message, "stdout": "null", "stderr": "null"})
        pid = int((runner.directory / "pid").read_text())
        server.process.kill()
        server.process.wait(WAIT_S)
        (runner.directory / "go").write_text("")
        with contextlib.suppress(ChildProcessError, ProcessLookupError):  # whoever inherits an orphan may be faster
            collect(pid)
    assert not (runner.directory / "ran").exists()


@pytest.mark.long
def test_worker_says_what_plain_python_says_if_there_is_no_script(server: Server, runner: Runner) -> None:
    plain = runner.run([sys.executable, "missing.py"])
    answer = server.fork_worker(
        "script",
        "missing.py",
        directory=runner.directory,
        environment=runner.environment,
        stderr=runner.directory / "err",
    )
    assert collect(answer["pid"]) == plain.exit_code == 2
    assert (runner.directory / "err").read_text() == plain.stderr


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


def open_descriptors(pid: int) -> list[str]:
    return sorted(os.listdir(f"/proc/{pid}/fd"))
