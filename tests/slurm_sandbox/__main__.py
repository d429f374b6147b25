"""The sandbox for developers.

  up [N]             boot one with N nodes (4); several can run side by side
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

from tests.slurm_sandbox.processes import SandboxError
from tests.slurm_sandbox.sandbox import Sandbox


def main(arguments: list[str]) -> int:
    """Runs one command; returns the exit status."""
    slot: int | None = None
    if arguments[:1] == ["--slot"]:
        slot, arguments = int(arguments[1]), arguments[2:]
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if verb == "up" and len(rest) <= 1:
        sandbox = Sandbox.start(*map(int, rest))
        print(f"slot {sandbox.layout.slot}: {', '.join(sandbox.nodes)} are up; logs in {sandbox.layout.logs}")
        print('eval "$(python -m tests.slurm_sandbox env)" makes a shell use it')
    elif verb == "list" and not rest:
        for sandbox in Sandbox.running():
            print(f"{sandbox.layout.slot}\t{len(sandbox.nodes)} nodes\t{sandbox.layout.slurm_conf}")
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


def find(slot: int | None) -> Sandbox:
    """The sandbox that is meant.

    Raises:
        SandboxError: there is none.
    """
    running = Sandbox.running()
    here = os.environ.get("SLURM_CONF")
    meant = [sandbox for sandbox in running if sandbox.layout.slot == slot or sandbox.layout.slurm_conf == here]
    chosen = meant or (running if slot is None else [])
    if not chosen:
        raise SandboxError("no such sandbox is running; `up` starts one, `list` lists them")
    return chosen[0]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SandboxError as error:
        sys.exit(f"slurm_sandbox: {error}")
