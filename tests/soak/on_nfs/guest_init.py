"""Process 1 of a virtual machine: makes the usual mounts, raises the network, and runs the programs that it is told.

It runs by path, with the path of a file that says its name, address, modules and files. First it lays
a file system in memory over this computer's files, which stay as they are. The host talks to it through a serial
line, in lines of JSON: `{"id", "argv", "env", "cwd", "user"}` starts a program, `{"id", "signal"}` signals its
process group; the answers are `{"id", "output"}` and `{"id", "code"}`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pwd
import socket
import subprocess
import sys
import threading
import tty
from typing import Any

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MEMORY_FOLDERS = ("/tmp", "/run", "/var/tmp", "/var/lib/nfs", "/dev/shm")
_LINE = "/dev/ttyS0"


def main() -> None:
    """Be process 1: a child does everything, and this one collects who ended."""
    os.environ["PATH"] = _PATH
    with open(sys.argv[1]) as file:
        machine = json.load(file)
    child = os.fork()
    if child == 0:
        try:
            lay_over(machine["modules"])
            set_up(machine)
            serve()
        finally:
            os._exit(1)
    while True:
        if os.wait()[0] == child:
            raise SystemExit("the child has ended")  # and so the kernel panics


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def lay_over(modules: list[str]) -> None:
    """Make a file system in memory over the computer's files the root."""
    run("mount", "-t", "proc", "proc", "/proc")
    run("mount", "-t", "tmpfs", "-o", "size=70%", "tmpfs", "/run")
    for folder in ("files", "work", "root"):
        os.mkdir(f"/run/{folder}")
    for module in modules:
        run("insmod", module)
    run("mount", "-t", "overlay", "-o", "lowerdir=/,upperdir=/run/files,workdir=/run/work", "overlay", "/run/root")
    for folder in ("/proc", "/dev"):
        run("mount", "--move" if folder == "/dev" else "--bind", folder, f"/run/root{folder}")
    os.chroot("/run/root")
    os.chdir("/")


def set_up(machine: dict[str, Any]) -> None:
    """Mount what every Linux has, and raise the network."""
    socket.sethostname(machine["name"])
    run("mount", "-t", "sysfs", "sysfs", "/sys")
    for folder in _MEMORY_FOLDERS:
        os.makedirs(folder, exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", folder)
    os.makedirs("/dev/pts", exist_ok=True)
    run("mount", "-t", "devpts", "devpts", "/dev/pts")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"/dev/{name}")
    os.symlink("/proc/self/fd", "/dev/fd")
    for path, text in machine["files"].items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # it may be a link to nothing
        with open(path, "w") as file:
            file.write(text)
    with open("/etc/passwd", "a") as file:
        file.write(f"{machine['user']}:x:2000:100::{machine['home']}:/bin/bash\n")
    os.chmod("/root", 0o755)  # Python may be there
    for words in ("link set lo up", "link set vec0 mtu 1500 up", f"address add {machine['address']}/24 dev vec0"):
        run("ip", *words.split())


def serve() -> None:
    """Carry out what the host tells, for ever."""
    line = os.open(_LINE, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(line)
    told = Told(line)
    told.say({"id": 0, "code": 0})
    rest = b""
    while True:
        rest += os.read(line, 65536)
        *lines, rest = rest.split(b"\n")
        for request in lines:
            told.carry_out(json.loads(request))


class Told:
    """Runs what the host tells, and answers."""

    def __init__(self, line: int) -> None:
        self._line = line
        self._lock = threading.Lock()
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def say(self, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode() + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._line, data) :]

    def carry_out(self, request: dict[str, Any]) -> None:
        if "signal" in request:
            if process := self._running.get(request["id"]):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, request["signal"])
            return
        threading.Thread(target=self._run, args=(request,), daemon=True).start()

    def _run(self, request: dict[str, Any]) -> None:
        number = request["id"]
        who: dict[str, Any] = {}
        environment = {"PATH": _PATH, "HOME": "/root", **request["env"]}
        if user := request["user"]:
            entry = pwd.getpwnam(user)
            who = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            environment |= {"HOME": entry.pw_dir, "USER": user, "LOGNAME": user}
        try:
            process = subprocess.Popen(
                request["argv"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=request["cwd"],
                env=environment,
                **who,
            )
        except OSError as error:
            self.say({"id": number, "output": base64.b64encode(str(error).encode()).decode()})
            self.say({"id": number, "code": 127})
            return
        self._running[number] = process
        assert process.stdout is not None
        while chunk := os.read(process.stdout.fileno(), 2048):
            self.say({"id": number, "output": base64.b64encode(chunk).decode()})
        self.say({"id": number, "code": process.wait()})
        del self._running[number]


if __name__ == "__main__":
    main()
