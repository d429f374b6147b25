"""A running sandbox as tests and developers use it: start, break and mend machines, run commands."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tests.slurm_sandbox import versions
from tests.slurm_sandbox.configuration import SLOTS, Layout, parse_layout
from tests.slurm_sandbox.processes import SandboxError

if TYPE_CHECKING:
    from typing_extensions import Self  # typing's own comes with Python 3.11

_DAEMONS = ("munged", "slurmd", "slurmctld", "slurmdbd", "mariadbd")
_REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Sandbox:
    """One sandbox, which its keeper runs; this object only talks to the keeper."""

    def __init__(self, layout: Layout, keeper: subprocess.Popen[bytes] | None = None) -> None:
        self.layout = layout
        self._keeper = keeper  # if it is a child of this process

    @classmethod
    def start(
        cls,
        node_count: int = 4,
        *,
        owner: int | None = None,
        version: str | None = None,
        accounting: bool = False,
        cgroups: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> Self:
        """Boots a new one, and waits until Slurm would start a job on every node.

        Args:
            owner: a process id; the sandbox ends when that process does. None: it stays until `down`.
            version: of Slurm, one of `versions.SUPPORTED`, which is fetched if it is not there. None: this machine's.
            accounting: with slurmdbd and a data base, so that sacct answers.
            cgroups: Slurm tracks and confines processes by cgroups, and binds tasks to CPUs.
            settings: options of slurm.conf, in the place of the sandbox's own.

        Raises:
            SandboxError: it did not come up; nothing of it is left.
        """
        versions.prepare(version)
        wanted = Layout(
            slot=0,
            node_count=node_count,
            version=None if version == versions.own() else version,
            has_accounting=accounting,
            has_cgroups=cgroups,
            settings=tuple((settings or {}).items()),
        )
        arguments = [wanted.as_json()] if owner is None else [wanted.as_json(), str(owner)]
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.slurm_sandbox.keeper", *arguments],
            cwd=_REPOSITORY,
            env={**os.environ, versions.CACHE_VARIABLE: versions.CACHE},  # which tests clear
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert keeper.stdout is not None
        with keeper.stdout:
            first = json.loads(keeper.stdout.readline() or '{"error": "the keeper died"}')
        if "error" in first:
            keeper.wait()
            raise SandboxError(first["error"])
        sandbox = cls(dataclasses.replace(wanted, slot=first["slot"]), keeper)
        try:
            sandbox.wait_until_idle()
        except BaseException:
            sandbox.down()
            raise
        return sandbox

    @classmethod
    def running(cls) -> list[Self]:
        """Those of this machine that answer, by slot."""
        found = []
        for slot in SLOTS:
            try:
                found.append(cls(parse_layout(_ask(Layout(slot=slot), "describe")["layout"])))
            except (ConnectionError, KeyError, TypeError):  # no keeper, one that ends, one of another checkout
                continue
        return found

    @property
    def nodes(self) -> tuple[str, ...]:
        """The compute nodes' names."""
        return self.layout.nodes

    @property
    def version(self) -> str:
        """The version of its Slurm, as `24.11`."""
        version = self.layout.version or versions.own()
        assert version is not None, "it runs"
        return version

    @property
    def variables(self) -> dict[str, str]:
        """What the environment of a Slurm client must hold beside what it holds anyway."""
        path = [*self.layout.installation.program_folders, *versions.folders()]
        return {"SLURM_CONF": self.layout.slurm_conf, "PATH": os.pathsep.join(path)}

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment for a process that uses this Slurm."""
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return {**mine, **self.variables}

    def down(self) -> None:
        """Removes it, and waits until nothing of it is left."""
        with contextlib.suppress(ConnectionRefusedError):
            _ask(self.layout, "down")
        if self._keeper:
            self._keeper.wait()

    def cut(self, machine: str) -> None:
        """Unplugs a machine's cable."""
        _ask(self.layout, "cut", machine)

    def heal(self, machine: str) -> None:
        """Plugs it in again."""
        _ask(self.layout, "heal", machine)

    def kill(self, machine: str) -> None:
        """Switches a machine off: every process on it is gone and no peer is told."""
        _ask(self.layout, "kill", machine)

    def boot(self, machine: str) -> None:
        """Starts a machine that is off."""
        _ask(self.layout, "boot", machine)

    def mend(self) -> None:
        """Plugs in and starts every machine that is not."""
        _ask(self.layout, "mend")

    def pids(self) -> dict[str, int | None]:
        """Of each machine, the process id here of its process 1; None for one that is off."""
        pids: dict[str, int | None] = _ask(self.layout, "describe")["pids"]
        return pids

    def command_on(self, machine: str, command: Sequence[str]) -> list[str]:
        """The command that runs another one on a machine, in the current directory.

        Raises:
            SandboxError: the machine is off.
        """
        pid = self.pids()[machine]
        if pid is None:
            raise SandboxError(f"{machine} is off")
        enter = ["nsenter", f"--target={pid}", "--net", "--uts", "--ipc", "--mount", "--pid"]
        return [*enter, "--", "env", f"--chdir={os.getcwd()}", *command]

    def run(
        self,
        *command: str,
        environment: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        check: bool = True,
        timeout_s: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on this machine, the login node.

        Raises:
            SandboxError: `check`, and it failed; its output is in the message.
        """
        done = subprocess.run(
            command,
            env=self.environment if environment is None else dict(environment),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if check and done.returncode:
            raise SandboxError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def run_on(self, machine: str, *command: str, check: bool = True, timeout_s: float = 60) -> str:
        """What a command on a machine writes to its standard output.

        Raises:
            SandboxError: the machine is off; or `check`, and it failed.
        """
        return self.run(*self.command_on(machine, command), check=check, timeout_s=timeout_s).stdout

    def processes(self, machine: str) -> dict[int, str]:
        """The processes of a machine bar its process 1 and daemons, by process id here: their command lines."""
        first = self.pids()[machine]
        if first is None:
            return {}
        namespace = os.readlink(f"/proc/{first}/ns/pid")
        found = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != first:
                command = _command_in_namespace(int(entry), namespace)
                if command and os.path.basename(command.split(" ")[0]) not in _DAEMONS:
                    found[int(entry)] = command
        return found

    def node_states(self) -> dict[str, str]:
        """What Slurm says of each node: `idle`, `mixed`, `down*` ..."""
        lines = self.run("sinfo", "-h", "-N", "-p", "batch", "-o", "%N %T", check=False).stdout.splitlines()
        return dict(line.split(" ", 1) for line in lines)

    def controller_log(self, lines: int = 20) -> str:
        """The last lines that slurmctld wrote."""
        return self.daemon_log("slurmctld", lines)

    def daemon_log(self, name: str, lines: int) -> str:
        """The last lines of a daemon's log; `slurmctld`, `slurmd.node1`."""
        with open(os.path.join(self.layout.logs, f"{name}.log"), errors="replace") as file:
            return "".join(file.readlines()[-lines:])

    def wait_until_idle(self, *, within_s: float = 60) -> None:
        """Waits until every node is idle."""
        wait_until(
            lambda: list(self.node_states().values()) == ["idle"] * len(self.nodes),
            "every node is idle",
            within_s=within_s,
            otherwise=lambda: f"they are {self.node_states()}; slurmctld says:\n{self.controller_log()}",
        )


def wait_until(
    condition: Callable[[], object],
    what: str,
    *,
    within_s: float = 60,
    otherwise: Callable[[], object] = lambda: "no more is known",
) -> None:
    """Asks again and again until the condition holds.

    Raises:
        AssertionError: it did not within the bound; what `otherwise` finds is in the message.
    """
    end = time.monotonic() + within_s
    pause = 0.01
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {within_s:g} s: {what}; {otherwise()}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)


def _ask(layout: Layout, verb: str, machine: str | None = None) -> Any:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(layout.control)
        connection.sendall(json.dumps([verb, machine]).encode() + b"\n")
        line = connection.makefile().readline()
    reply = json.loads(line or "{}")
    if "error" in reply:
        raise SandboxError(reply["error"])
    return reply.get("value")


def _command_in_namespace(pid: int, namespace: str) -> str | None:
    try:
        if os.readlink(f"/proc/{pid}/ns/pid") != namespace:
            return None
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
