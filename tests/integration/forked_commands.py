"""The command `hpc-elastic` as a fork of a process that has imported it, for tests of what it starts.

Hundreds of tests start it a few times each, and what it imports took most of the processor time of each start. A fork
has the command line, folder, environment and streams of who asks, does what `python -m hpc_elastic` does, and ends as
any Python. Where its environment has something that Python reads before it imports anything it is started for real, as
is whatever runs beside a test, and wherever the tests are about the command line itself.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import remains

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "hpc_elastic")
_LONGEST = 1 << 18  # bytes of a request, which holds an environment


def _early(environ: Mapping[str, str]) -> dict[str, str]:
    """What Python reads at its start, but for where it finds modules, which is set in each fork."""
    names = [name for name in environ if name.startswith(("PYTHON", "LC_", "LANG", "TZ", "LD_"))]
    return {name: environ[name] for name in names if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}


_OF_PARENT = _early(os.environ)
_starting = threading.Lock()


def may_be_forked(command: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether a fork would be what this command is in this environment."""
    return tuple(command[: len(COMMAND)]) == COMMAND and _early(environ) == _OF_PARENT


def run_forked(
    command: Sequence[str], *, cwd: Path, environ: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run the command as `subprocess.run` does, with nothing to read.

    Raises:
        subprocess.TimeoutExpired: it did not end in time, and was killed.
    """
    end = time.monotonic() + timeout_s
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    request = {"arguments": command[len(COMMAND) :], "cwd": str(cwd), "environ": dict(environ)}
    with ours, open(out, "rb") as stdout, open(err, "rb") as stderr:
        with theirs, open(out_end, "wb"), open(err_end, "wb"):
            socket.send_fds(_parent(), [json.dumps(request).encode()], [out_end, err_end, theirs.fileno()])
        pid = int(ours.recv(64))
        try:
            texts = _read_both(stdout, stderr, end)
            ours.settimeout(max(0.0, end - time.monotonic()))
            code = int(ours.recv(64))
        except BaseException as error:  # a time-out of the whole test, too
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            if isinstance(error, TimeoutError):
                raise subprocess.TimeoutExpired(command, timeout_s) from None
            raise
    return subprocess.CompletedProcess(command, code, *texts)


def _read_both(stdout: io.BufferedReader, stderr: io.BufferedReader, end: float) -> list[str]:
    """Read both streams to their ends, which come when whoever has inherited them has ended, too."""
    read = {stdout.fileno(): b"", stderr.fileno(): b""}
    with selectors.DefaultSelector() as selector:
        for descriptor in read:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            if time.monotonic() >= end:
                raise TimeoutError
            for key, _ in selector.select(max(0.0, end - time.monotonic())):
                data = os.read(key.fd, 1 << 16)
                read[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
    return [io.TextIOWrapper(io.BytesIO(text)).read() for text in read.values()]


def _parent() -> socket.socket:
    """Where requests are sent: to the process that is forked, of which there is one."""
    with _starting:
        return _start_parent()


@functools.cache
def _start_parent() -> socket.socket:
    """Start the process that is forked, which ends with this one; it has no mark of the session, which looks before."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LONGEST)
    left_out = {"PYTHONPATH", remains.MARK, *_early(os.environ)}
    environ = {name: value for name, value in os.environ.items() if name not in left_out}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            cwd=REPOSITORY,
            env={**environ, **_OF_PARENT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # as each command has pipes: in a file streams can do more
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        )
    assert ours.recv(64) == b"ready", process.communicate()
    atexit.register(_end_parent, ours, process, os.getpid())
    return ours


def _end_parent(connection: socket.socket, process: subprocess.Popen[bytes], owner: int) -> None:
    """End it, but not from a fork of its owner."""
    if os.getpid() == owner:
        connection.close()
        process.communicate()


def _serve(connection: socket.socket) -> None:
    """Fork for each request; returns in what is to be the command, and nowhere else."""
    _import_commands()
    gc.freeze()
    connection.send(b"ready")
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, _LONGEST, 3)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            connection.close()
            _fork_command(*descriptors)
            _prepare(json.loads(request))
            return
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _import_commands() -> None:
    for folder in ("cli", "api", "observe", "render", "scheduler"):
        for path in sorted((REPOSITORY / "hpc_elastic" / folder).rglob("*.py")):
            parts = path.relative_to(REPOSITORY).with_suffix("").parts
            importlib.import_module(".".join(parts).removesuffix(".__init__"))
    for name in ("jinja2", "yaml"):  # which are imported where they are used
        importlib.import_module(name)


def _fork_command(out: int, err: int, reply: int) -> None:
    """Fork the command, which has these streams and returns; wait for it here, and say how it ended."""
    if (pid := os.fork()) == 0:
        os.close(reply)
        for stream, descriptor in ((1, out), (2, err)):
            os.dup2(descriptor, stream)
            os.close(descriptor)
        return
    os.close(out)
    os.close(err)
    os.write(reply, str(pid).encode())
    _, status = os.waitpid(pid, 0)
    os.write(reply, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _prepare(request: Mapping[str, Any]) -> None:
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    path = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:1] = [request["cwd"], *path]
    sys.argv = [str(REPOSITORY / "hpc_elastic" / "__main__.py"), *request["arguments"]]


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
    from hpc_elastic.cli.main import run

    run()
