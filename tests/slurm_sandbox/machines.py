"""The machines: power on, power off. Each has its own network, host name, mounts and processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from tests.slurm_sandbox import accounting
from tests.slurm_sandbox.cgroups import cgroup_mounts, join_cgroups, remove_cgroups
from tests.slurm_sandbox.configuration import CONTROLLER, Layout
from tests.slurm_sandbox.network import Switch
from tests.slurm_sandbox.processes import SandboxError, die_with_parent, only_child, read_word

_INIT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "machine_init.py")
_NAMESPACES = ["--net", "--uts", "--ipc", "--mount", "--pid", "--mount-proc"]


class Machine:
    """One machine; its disk is the sandbox's directory, so it outlives a power cut.

    `start` goes in steps, so that several machines can take each step together.
    """

    def __init__(self, layout: Layout, name: str, switch: Switch) -> None:
        self.name = name
        self._layout = layout
        self._switch = switch
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int | None:
        """The process id, as this computer counts, of the machine's process 1; None without power."""
        return only_child(self._process.pid) if self._process and self._process.poll() is None else None

    def power_on(self) -> None:
        """Makes the namespaces and process 1.

        Raises:
            SandboxError: it has power already.
        """
        if self._process:
            raise SandboxError(f"{self.name} has power; `kill` takes it away")
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                ["unshare", "--fork", "--kill-child", *_NAMESPACES, sys.executable, "-IS", _INIT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=die_with_parent,
            )

    def plug_in(self) -> None:
        """Lays the cable and lets the daemons start."""
        process = self._powered()
        self._read_word("namespaces")
        self._switch.plug_in(self.name, only_child(process.pid))
        join_cgroups(self._layout, self.name, only_child(process.pid))
        assert process.stdin is not None
        process.stdin.write(self._description() + "\n")
        process.stdin.flush()

    def wait_until_started(self) -> None:
        """Waits for the daemons."""
        self._read_word("started")

    def power_off(self) -> None:
        """Takes the power away: first the cable, or the dying sockets would still say goodbye."""
        if self._process is None:
            return
        self._switch.remove(self.name)
        first = self.pid
        if first is None:
            self._process.kill()
        else:
            os.kill(first, signal.SIGKILL)  # `unshare` ends when process 1, and so every other one, is gone
        self._process.communicate()
        remove_cgroups(self._layout, self.name)
        self._process = None

    @property
    def _log(self) -> str:
        return os.path.join(self._layout.logs, f"{self.name}.log")

    def _read_word(self, word: str) -> None:
        try:
            read_word(self._powered(), word)
        except SandboxError as error:
            with open(self._log) as log:
                raise SandboxError(f"{self.name} did not start: {error}\n{log.read()}") from error

    def _powered(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise SandboxError(f"{self.name} has no power; `boot` starts it")
        return self._process

    def _description(self) -> str:
        layout = self._layout
        mounted_over = [
            (layout.path("hosts"), "/etc/hosts"),
            (layout.path("resolv.conf"), "/etc/resolv.conf"),
            (layout.configuration, "/etc/slurm"),
        ]
        daemon = ["slurmctld"] if self.name == CONTROLLER else layout.installation.slurmd
        services = accounting.services(layout) if self.name == CONTROLLER and layout.has_accounting else []
        return json.dumps(
            {
                "name": self.name,
                "binds": [pair for pair in mounted_over if os.path.exists(pair[1])],
                "memory_file_systems": [layout.munge, "/dev/shm"],
                "log": self._log,
                "daemons": [(munge_command(layout), None), *services, ([*daemon, "-f", layout.slurm_conf], None)],
                "cgroups": cgroup_mounts(layout),
            }
        )


def munge_command(layout: Layout, *more: str) -> list[str]:
    """The munge daemon of one machine; Slurm after 22.05 refuses a credential that one daemon decodes twice."""
    folder = layout.munge
    return [
        "munged",
        f"--socket={layout.munge_socket}",
        f"--key-file={layout.munge_key}",
        f"--pid-file={folder}/pid",
        f"--log-file={folder}/log",
        f"--seed-file={folder}/seed",
        *more,
    ]
