"""Virtual machines: power on, power off, and programs in them."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.slurm_sandbox.processes import SandboxError, die_with_parent, only_child
from tests.soak.on_nfs.kernel import Kernel
from tests.soak.on_nfs.switch import Switch

_INIT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guest_init.py")
_BOOT_S = 60.0


class Program:
    """A program that runs in a guest."""

    def __init__(self, number: int, stop: Callable[[int, int], None]) -> None:
        self._number = number
        self._stop = stop
        self._changed = threading.Condition()
        self._output = bytearray()
        self._pieces: list[tuple[float, str]] = []
        self.code: int | None = None

    @property
    def output(self) -> str:
        """Return what it has written so far."""
        with self._changed:
            return self._output.decode(errors="replace")

    def lines(self) -> list[tuple[float, str]]:
        """Return the whole lines of its output, each with the time of its end, in Unix seconds."""
        found, rest = [], ""
        with self._changed:
            pieces = list(self._pieces)
        for at, piece in pieces:
            *whole, rest = (rest + piece).split("\n")
            found += [(at, line) for line in whole]
        return found

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Signal its process group."""
        self._stop(self._number, number)

    def wait(self, within_s: float = 120.0) -> int:
        """Return its exit code.

        Raises:
            SandboxError: it did not end in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.code is not None, within_s):
                raise SandboxError(
                    f"a program did not end within {within_s:g} s:\n{self._output.decode(errors='replace')}"
                )
            assert self.code is not None
            return self.code

    def wait_for(self, text: str, within_s: float = 120.0) -> None:
        """Wait until its output holds the text.

        Raises:
            SandboxError: it ended without, or was too slow.
        """
        with self._changed:
            encoded = text.encode()
            done = self._changed.wait_for(lambda: encoded in self._output or self.code is not None, within_s)
            if not done or encoded not in self._output:
                raise SandboxError(f"no {text!r} within {within_s:g} s in:\n{self._output.decode(errors='replace')}")

    def hear(self, answer: dict[str, Any]) -> None:
        """Take an answer of the guest."""
        with self._changed:
            if "code" in answer:
                self.code = answer["code"]
            else:
                piece = base64.b64decode(answer["output"])
                self._output += piece
                self._pieces.append((time.time(), piece.decode(errors="replace")))
            self._changed.notify_all()


class Guest:
    """One virtual machine, whose files are this computer's, with what it writes in its memory."""

    def __init__(
        self,
        name: str,
        *,
        folder: str,
        kernel: Kernel,
        switch: Switch,
        hardware_address: str,
        description: Mapping[str, Any],
        memory_mib: int,
        disk: str | None = None,
    ) -> None:
        self.name = name
        self._folder = folder
        self._kernel = kernel
        self._switch = switch
        self._hardware_address = hardware_address
        self._description = {"name": name, **description}
        self._memory_mib = memory_mib
        self._disk = disk
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._programs: dict[int, Program] = {}
        self._next = 1
        self._connection: socket.socket | None = None

    @property
    def console(self) -> str:
        """Return the path of what its kernel says."""
        return os.path.join(self._folder, f"{self.name}.console")

    def power_on(self) -> None:
        """Start it; `wait_until_up` waits."""
        ours, theirs = socket.socketpair()
        cable = self._switch.plug_in(self.name, self._hardware_address)
        with theirs, cable, open(self.console, "ab") as console:
            self._process = subprocess.Popen(
                ["unshare", "--pid", "--fork", "--kill-child", *self._command(theirs.fileno(), cable.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                pass_fds=[theirs.fileno(), cable.fileno()],
                preexec_fn=die_with_parent,
            )
        self._connection = ours
        self._programs = {0: Program(0, self._signal)}
        threading.Thread(target=self._listen, args=(ours, self._programs), daemon=True).start()

    def wait_until_up(self) -> None:
        """Wait for its process 1."""
        try:
            if self._programs[0].wait(_BOOT_S):
                raise SandboxError("its kernel ended")
        except SandboxError as error:
            with open(self.console, errors="replace") as file:
                raise SandboxError(f"{self.name} did not start:\n{file.read()[-3000:]}") from error

    def power_off(self) -> None:
        """Take the power away: nothing is written or said any more."""
        if self._process is None:
            return
        self._switch.remove(self.name)
        with contextlib.suppress(SandboxError):  # it has ended
            os.kill(only_child(self._process.pid), signal.SIGKILL)  # process 1 of a PID namespace: all die with it
        self._process.wait()
        self._process = None
        assert self._connection is not None
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def start(
        self, argv: Sequence[str], *, user: str | None = None, cwd: str = "/", env: Mapping[str, str] | None = None
    ) -> Program:
        """Start a program in it."""
        with self._lock:
            number = self._next
            self._next += 1
            program = Program(number, self._signal)
            self._programs[number] = program
        self._say({"id": number, "argv": list(argv), "user": user, "cwd": cwd, "env": dict(env or {})})
        return program

    def run(
        self,
        argv: Sequence[str] | str,
        *,
        user: str | None = None,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        check: bool = True,
        within_s: float = 120.0,
    ) -> str:
        """Run a program, or a line of the shell, and return its output.

        Raises:
            SandboxError: it failed.
        """
        words = ["sh", "-c", argv] if isinstance(argv, str) else argv
        program = self.start(words, user=user, cwd=cwd, env=env)
        code = program.wait(within_s)
        if check and code:
            raise SandboxError(f"{self.name}: {argv!r} ended with {code}:\n{program.output}")
        return program.output

    def _signal(self, number: int, which: int) -> None:
        self._say({"id": number, "signal": which})

    def _say(self, request: dict[str, Any]) -> None:
        assert self._connection is not None
        with self._lock:
            self._connection.sendall(json.dumps(request).encode() + b"\n")

    def _listen(self, connection: socket.socket, programs: dict[int, Program]) -> None:
        rest = b""
        while True:
            try:
                chunk = connection.recv(65536)
            except OSError:
                chunk = b""
            if not chunk:
                break
            rest += chunk
            *lines, rest = rest.split(b"\n")
            for line in lines:
                answer = json.loads(line)
                if program := programs.get(answer["id"]):
                    program.hear(answer)
        for program in list(programs.values()):
            if program.code is None:
                program.hear({"code": -1})

    def _command(self, control: int, cable: int) -> list[str]:
        description = os.path.join(self._folder, f"{self.name}.json")
        with open(description, "w") as file:
            json.dump(self._description, file)
        command = [self._kernel.program, f"mem={self._memory_mib}M", "root=/dev/root", "rootfstype=hostfs", "ro"]
        command += ["rootflags=/", "con0=null,fd:1", "con=null", f"ssl0=fd:{control}", "ssl=null", "quiet", "panic=-1"]
        command += [f"uml_dir={self._folder}/"]
        command += [f"vec0:transport=fd,fd={cable},mac={self._hardware_address}"]
        if self._disk:
            command += [f"ubd0={self._disk}"]
        return [*command, f"init={os.path.realpath(sys.executable)}", "--", "-IS", _INIT, description]
