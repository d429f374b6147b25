"""The process that owns a sandbox: makes it, changes it on request, and removes it when its owner dies.

Theory of operation: the keeper binds an abstract socket, which claims a slot and takes
requests, one a connection. Every process of the sandbox is its child, or in a PID namespace
whose process 1 is, and dies with the keeper by the kernel's hand, however that dies; network
namespaces die with their last process. So only files can be left behind, and whoever starts the
next sandbox removes those that no keeper owns. The keeper watches its owner by pidfd, so that an
owner's death by SIGKILL is noticed at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tests.slurm_sandbox import versions
from tests.slurm_sandbox.configuration import CONTROLLER, SLOTS, Layout, parse_layout
from tests.slurm_sandbox.files import remove_files, write_files
from tests.slurm_sandbox.machines import Machine, munge_command
from tests.slurm_sandbox.network import Switch
from tests.slurm_sandbox.processes import SandboxError, die_with_parent


class Keeper:
    """A running sandbox."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        write_files(layout)
        self._munge = subprocess.Popen(
            munge_command(layout, "--foreground"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        self._switch = Switch(layout)
        self._machines = {name: Machine(layout, name, self._switch) for name in layout.machines}

    def boot(self, names: Sequence[str]) -> None:
        """Starts these machines, side by side."""
        machines = [self._machine(name) for name in names]
        for step in (Machine.power_on, Machine.plug_in, Machine.wait_until_started):
            for machine in machines:
                step(machine)

    def mend(self) -> None:
        """Plugs in and switches on whatever is not."""
        off = []
        for machine in self._machines.values():
            if machine.pid is None:
                machine.power_off()  # process 1 may have died by another's hand
                off.append(machine.name)
            else:
                self._switch.heal(machine.name)
        self.boot(off)

    def answer(self, verb: str, name: str | None) -> Any:
        """Does what a request asks for.

        Raises:
            SandboxError: there is no such verb or machine, or the machine is not in a state for it.
        """
        if verb == "describe":
            return {"layout": self._layout.as_json(), "pids": {m.name: m.pid for m in self._machines.values()}}
        if verb == "mend":
            return self.mend()
        machine = self._machine(name)
        if verb == "boot":
            self.boot([machine.name])
        elif verb == "kill":
            machine.power_off()
        elif verb == "cut":
            self._switch.cut(machine.name)
        elif verb == "heal":
            self._switch.heal(machine.name)
        else:
            raise SandboxError(f"unknown request {verb!r}")
        return None

    def close(self) -> None:
        """Leaves nothing behind, whichever of its parts cannot be ended."""
        with contextlib.ExitStack() as last_first:
            last_first.callback(remove_files, self._layout)
            last_first.callback(self._munge.wait)
            last_first.callback(self._munge.kill)
            last_first.callback(self._switch.close)
            for machine in self._machines.values():
                last_first.callback(machine.power_off)

    def _machine(self, name: str | None) -> Machine:
        try:
            return self._machines[name or ""]
        except KeyError:
            raise SandboxError(f"no machine {name!r}; there are {', '.join(self._machines)}") from None


def claim_slot(wanted: Layout) -> tuple[socket.socket, Layout]:
    """Takes the first free slot, and removes the files of every slot whose keeper is dead.

    Raises:
        SandboxError: all are taken.
    """
    mine: tuple[socket.socket, Layout] | None = None
    for slot in SLOTS:
        layout = dataclasses.replace(wanted, slot=slot)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(layout.control)
        except OSError:
            listener.close()
            continue
        remove_files(layout)
        if mine is None:
            mine = listener, layout
        else:
            listener.close()
    if mine is None:
        raise SandboxError(f"{len(SLOTS)} sandboxes are running already")
    return mine


def serve(listener: socket.socket, keeper: Keeper, stop: Sequence[int]) -> socket.socket | None:
    """Answers requests until one asks for the end, or a descriptor in `stop` is readable.

    Returns:
        The connection that waits for the end, if there is one.
    """
    with selectors.DefaultSelector() as selector:
        for source in (listener.fileno(), *stop):
            selector.register(source, selectors.EVENT_READ)
        while all(key.fd == listener.fileno() for key, _ in selector.select()):
            connection, _ = listener.accept()
            with contextlib.suppress(OSError, ValueError):  # a client that went away, or that talks nonsense
                verb, name = json.loads(connection.makefile().readline())
                if verb == "down":
                    return connection
                connection.sendall(json.dumps(_reply(keeper, verb, name)).encode() + b"\n")
            connection.close()
    return None


def _reply(keeper: Keeper, verb: str, name: str | None) -> dict[str, Any]:
    try:
        return {"value": keeper.answer(verb, name)}
    except SandboxError as error:
        return {"error": str(error)}


def _redirect_errors(layout: Layout) -> None:
    """Sends standard error to a log, for whoever started this process may wait for the end of its own."""
    with open(os.path.join(layout.logs, "keeper.log"), "ab") as log:
        os.dup2(log.fileno(), 2)


def main(wanted: Layout, owner: int | None) -> None:
    """Runs a sandbox for as long as it is wanted, in any slot; says on standard output which one it took."""
    os.umask(0o022)  # munged refuses a socket that not everybody can reach
    stop_signal, stop_write = os.pipe()
    os.set_blocking(stop_write, False)
    signal.set_wakeup_fd(stop_write)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    stop = [stop_signal] if owner is None else [stop_signal, os.pidfd_open(owner)]
    listener, layout = claim_slot(wanted)
    os.environ["PATH"] = os.pathsep.join(
        [*layout.installation.program_folders, *versions.folders(), *versions.DAEMON_FOLDERS]
    )
    last_word: socket.socket | None = None
    keeper = Keeper(layout)
    try:
        keeper.boot([CONTROLLER])
        keeper.boot(layout.nodes)
        listener.listen()
        _redirect_errors(layout)
        print(json.dumps({"slot": layout.slot}), flush=True)
        last_word = serve(listener, keeper, stop)
    finally:
        keeper.close()
    if last_word:
        last_word.close()


if __name__ == "__main__":
    try:
        main(parse_layout(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
    except SandboxError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        sys.exit(1)
