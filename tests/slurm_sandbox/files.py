"""The directory of a sandbox: all that it writes to disk."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import time

from tests.slurm_sandbox import configuration
from tests.slurm_sandbox.accounting import prepare_database
from tests.slurm_sandbox.cgroups import remove_cgroups
from tests.slurm_sandbox.configuration import Layout

DYING_WITHIN_S = 10.0  # processes that were killed with their keeper
AGAIN_AFTER_S = 0.05


def write_files(layout: Layout) -> None:
    """Makes the sandbox's directory, without what a dead keeper left there."""
    remove_files(layout)
    _make_root(layout)
    for folder in (layout.configuration, layout.munge, layout.logs, layout.path("state"), layout.path("spool")):
        os.makedirs(folder, mode=0o755)
    for node in layout.nodes:
        os.mkdir(os.path.join(layout.path("spool"), node))
    texts = {
        layout.slurm_conf: configuration.slurm_text(layout),
        os.path.join(layout.configuration, "gres.conf"): configuration.gres_text(layout),
        os.path.join(layout.configuration, "cgroup.conf"): configuration.cgroup_text(layout),
        os.path.join(layout.configuration, "topology.conf"): configuration.topology_text(layout),
        layout.path("hosts"): configuration.hosts_text(layout),
        layout.path("resolv.conf"): configuration.resolv_text(),
    }
    for path, text in texts.items():
        with open(path, "w") as file:
            file.write(text)
    for gpu in ("gpu0", "gpu1"):
        os.mknod(layout.path(gpu), stat.S_IFCHR | 0o600, os.stat(os.devnull).st_rdev)
    with open(os.open(layout.munge_key, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as key:
        key.write(secrets.token_bytes(128))
    if layout.has_accounting:
        prepare_database(layout)


def _make_root(layout: Layout) -> None:
    """Makes the directory, also while another sandbox that ends removes the one above, which is empty then."""
    while not os.path.isdir(layout.root):
        with contextlib.suppress(FileNotFoundError):
            os.makedirs(configuration.ROOT, exist_ok=True)
            os.mkdir(layout.root)


def _remove_tree(root: str) -> None:
    """Removes a directory in which processes of a killed keeper, which die meanwhile, may still make files."""
    gives_up_at = time.monotonic() + DYING_WITHIN_S
    while True:
        shutil.rmtree(root, ignore_errors=True)
        if not os.path.lexists(root) or time.monotonic() > gives_up_at:
            return
        time.sleep(AGAIN_AFTER_S)


def remove_files(layout: Layout) -> None:
    """Removes the sandbox's directory and cgroups, and the directory above when no sandbox is left."""
    remove_cgroups(layout)
    _remove_tree(layout.root)
    with contextlib.suppress(OSError):
        os.rmdir(configuration.ROOT)
