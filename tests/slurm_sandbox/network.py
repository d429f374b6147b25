"""The cables: a switch in a network namespace of its own, which this machine and all others are plugged into.

The switch lives as long as the process that holds its namespace. When that one dies, the kernel
removes the bridge and both ends of every cable, the one on this machine too.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

from tests.slurm_sandbox.configuration import Layout
from tests.slurm_sandbox.processes import SandboxError, die_with_parent, read_word


class Switch:
    """A bridge and the cables to it.

    Raises:
        SandboxError: the network cannot be made.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo namespaces; exec sleep infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )
        read_word(self._holder, "namespaces")
        login = layout.login_interface
        if os.path.exists(f"/sys/class/net/{login}"):  # of a keeper that was killed, whose namespaces die meanwhile
            with contextlib.suppress(SandboxError):  # it is gone by now
                _ip([], f"link del {login}")
        self._ip("link add switch type bridge", "link set switch up")
        self._ip(f"link add to-login type veth peer name {login} netns {os.getpid()}")
        self._ip("link set to-login master switch up")
        _ip([], f"addr add {layout.login_address}/24 dev {login}", f"link set {login} up")

    def plug_in(self, machine: str, pid: int) -> None:
        """Lays the cable to a machine, whose network namespace process `pid` is in."""
        layout, cable = self._layout, _cable(machine)
        hardware = layout.hardware_address(machine)
        self._ip(
            f"link add {cable} type veth peer name eth0 address {hardware} netns {pid}",
            f"link set {cable} master switch up",
        )
        _ip(
            [f"--net=/proc/{pid}/ns/net"],
            "link set lo up",
            f"addr add {layout.address(machine)}/24 dev eth0",
            "link set eth0 up",
        )

    def cut(self, machine: str) -> None:
        """Pulls a machine's plug: packets vanish and nobody is told."""
        self._ip(f"link set {_cable(machine)} down")

    def heal(self, machine: str) -> None:
        """Puts the plug back."""
        self._ip(f"link set {_cable(machine)} up")

    def remove(self, machine: str) -> None:
        """Takes the cable away; fine if the kernel was faster."""
        subprocess.run(
            ["nsenter", f"--net={self._namespace}", "ip", "link", "del", _cable(machine)], capture_output=True
        )

    def close(self) -> None:
        """Removes everything."""
        subprocess.run(["ip", "link", "del", self._layout.login_interface], capture_output=True)
        self._holder.kill()
        self._holder.wait()

    @property
    def _namespace(self) -> str:
        return f"/proc/{self._holder.pid}/ns/net"

    def _ip(self, *lines: str) -> None:
        _ip([f"--net={self._namespace}"], *lines)


def _cable(machine: str) -> str:
    """The name of a cable's end at the switch."""
    return f"to-{machine}"


def _ip(where: list[str], *lines: str) -> None:
    """Runs lines of `ip` in one process, in the namespace that the arguments of nsenter name."""
    enter = ["nsenter", *where] if where else []
    batch = "".join(f"{line}\n" for line in lines)
    done = subprocess.run([*enter, "ip", "-batch", "-"], input=batch, capture_output=True, text=True)
    if done.returncode:
        raise SandboxError(f"ip failed: {done.stderr.strip()}; it was asked: {'; '.join(lines)}")
