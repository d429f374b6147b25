"""The sandbox for developers.

  up [N]             boot one with N nodes (4); several can run side by side
  up --slurm V [N]   not with this machine's own Slurm but with 22.05, 24.11 or 26.05
  prepare V          fetch that Slurm, as `up` and the tests do at need
  down               remove it
  env                shell lines that make sbatch, squeue ... use it:  eval "$(python -m tests.slurm_sandbox env)"
  cut MACHINE        unplug its cable         heal MACHINE   plug it in again
  kill MACHINE       switch it off            boot MACHINE   switch it on
  mend               plug in and switch on all of them
  sh MACHINE CMD...  run a command on one
  list               the sandboxes of this computer

MACHINE is node1, node2 ... or controller. With --slot K first, all but `up` act on that sandbox;
otherwise on the one in SLURM_CONF, otherwise on the first.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from tests.slurm_sandbox import versions
from tests.slurm_sandbox.configuration import Layout
from tests.slurm_sandbox.processes import SandboxError
from tests.slurm_sandbox.sandbox import Sandbox


def main(arguments: list[str]) -> int:
    """Runs one command; returns the exit status."""
    arguments, chosen = _without_option("--slot", arguments)
    slot = int(chosen) if chosen else None
    arguments, version = _without_option("--slurm", arguments)
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if verb == "up" and len(rest) <= 1:
        sandbox = Sandbox.start(*map(int, rest), version=version)
        nodes = ", ".join(sandbox.nodes)
        print(f"slot {sandbox.layout.slot}: {nodes} are up with Slurm {sandbox.version}; logs in {sandbox.layout.logs}")
        print('eval "$(python -m tests.slurm_sandbox env)" makes a shell use it')
    elif verb == "prepare" and len(rest) == 1:
        versions.prepare(rest[0])
    elif verb == "list" and not rest:
        for sandbox in Sandbox.running():
            facts = [sandbox.layout.slot, f"Slurm {sandbox.version}", f"{len(sandbox.nodes)} nodes"]
            print(*facts, sandbox.layout.slurm_conf, sep="\t")
    elif verb in ("down", "mend") and not rest:
        getattr(find(slot), verb)()
    elif verb == "env" and not rest:
        for name, value in find(slot).variables.items():
            print(f"export {name}={shlex.quote(value)}")
    elif verb in ("cut", "heal", "kill", "boot") and len(rest) == 1:
        getattr(find(slot), verb)(rest[0])
    elif verb == "sh" and len(rest) >= 2:
        command = find(slot).command_on(rest[0], rest[1:])
        os.execvp(command[0], command)
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


def _without_option(name: str, arguments: list[str]) -> tuple[list[str], str | None]:
    """The arguments before and after `NAME VALUE`, and the value."""
    if name not in arguments or arguments[-1] == name:
        return arguments, None
    at = arguments.index(name)
    return arguments[:at] + arguments[at + 2 :], arguments[at + 1]


def find(slot: int | None) -> Sandbox:
    """The sandbox that is meant.

    Raises:
        SandboxError: there is none.
    """
    running = Sandbox.running()
    meant = choose([sandbox.layout for sandbox in running], slot, os.environ.get("SLURM_CONF"))
    chosen = [sandbox for sandbox in running if sandbox.layout == meant]
    if not chosen:
        raise SandboxError("no such sandbox is running; `up` starts one, `list` lists them")
    return chosen[0]


def choose(running: Sequence[Layout], slot: int | None, slurm_conf: str | None) -> Layout | None:
    """The sandbox of a slot; without one that of the shell's SLURM_CONF, else the first; None if there is none."""
    if slot is not None:
        return next((layout for layout in running if layout.slot == slot), None)
    return next((layout for layout in running if layout.slurm_conf == slurm_conf), running[0] if running else None)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SandboxError as error:
        sys.exit(f"slurm_sandbox: {error}")
