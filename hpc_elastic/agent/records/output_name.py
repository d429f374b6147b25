"""Gives an agent's output the name by which everybody looks for it, where Slurm has named it otherwise."""

from __future__ import annotations

import contextlib
import os

from hpc_elastic.rundir.layout import RunLayout


def name_output(layout: RunLayout, node: str, descriptor: int) -> None:
    """Make `agents/NODE.out` a link to the file behind a descriptor, if that is another file in that folder.

    srun writes a machine's host name for `%N`, which is not the node's name in Slurm where the two differ (NodeName and
    NodeHostname of slurm.conf), as in clouds. It appends to that file at each start of the job, so that is not renamed.
    Nothing is done on a failure: the output is there all the same.
    """
    path = layout.agent_output(node)
    with contextlib.suppress(OSError):
        written = os.readlink(f"/proc/self/fd/{descriptor}")
        folder, name = os.path.split(written)
        if not name.endswith(".out") or not os.path.samefile(folder, layout.agents):
            return
        if name == os.path.basename(path) or (os.path.lexists(path) and not os.path.islink(path)):
            return
        fresh = f"{path}.{os.getpid()}.tmp"
        os.symlink(name, fresh)
        os.replace(fresh, path)  # an earlier start may have run on another machine by this node's name
