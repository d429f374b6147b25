"""`python -m tests.soak.on_nfs`: runs on a Slurm of virtual machines whose shared folder is an NFS export.

Needs a Debian with slurmctld, slurmd, nfs-kernel-server, nfs-common, rpcbind, quota, kmod and e2fsprogs, and root. The
kernel, Debian's user-mode-linux, is fetched once; it runs as a program, without KVM, and nothing is installed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence

from tests.slurm_sandbox.processes import SandboxError
from tests.soak.on_nfs.cluster import NfsCluster
from tests.soak.on_nfs.scenes import SCENES


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.on_nfs", description=__doc__)
    parser.add_argument("--options", default="vers=4.2", help="mount options of the nodes; default: %(default)s")
    parser.add_argument("--export", default="sync,no_root_squash", help="options of the export; default: %(default)s")
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=list(SCENES), metavar="NAME", help="only these")
    arguments = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing is left
    broken = 0
    try:
        with NfsCluster(arguments.options, export_options=arguments.export) as cluster:
            print(f"mounted with {arguments.options}, exported with {arguments.export}", flush=True)
            for name in arguments.scenes:
                broken += not _plays(cluster, name)
    except SandboxError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(arguments.scenes)} scenes, {broken} of them broke a promise")
    return 1 if broken else 0


def _plays(cluster: NfsCluster, name: str) -> bool:
    began = time.monotonic()
    try:
        figures = SCENES[name](cluster)
    except AssertionError as error:
        print(f"{name}: BROKEN: {error}", flush=True)
        return False
    print(f"{name}: {figures} ({time.monotonic() - began:.0f} s)", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
