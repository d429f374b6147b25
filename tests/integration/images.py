"""An image without Slurm's commands, of the Python that runs these tests, and a program that runs agents in it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bwrap: install bubblewrap")

# What `container: {runtime: command}` starts: nothing of the node crosses over but what it is told to mount.
ENTERS = """#!/bin/bash
mounts=()
while IFS=: read -r source target options; do
    case $options in
        ro) mounts+=(--ro-bind "$source" "$target") ;;
        *) mounts+=(--bind "$source" "$target") ;;
    esac
done <<<"$HPC_ELASTIC_CONTAINER_MOUNTS"
exec bwrap --clearenv --setenv PATH "$HPC_ELASTIC_CONTAINER_IMAGE/bin" --setenv MADE_BY image \\
    --ro-bind "$HPC_ELASTIC_CONTAINER_IMAGE" "$HPC_ELASTIC_CONTAINER_IMAGE" \\
    --ro-bind-try /usr/lib /usr/lib --ro-bind-try /usr/lib64 /usr/lib64 \\
    --ro-bind-try /lib /lib --ro-bind-try /lib64 /lib64 \\
    --proc /proc --dev-bind /dev /dev --ro-bind-try /sys /sys --ro-bind /etc /etc --dir /tmp {more} \\
    "${mounts[@]}" -- "$@"
"""


def write_image(folder: Path, *, more: str = "") -> str:
    """Write the program into a folder, and return the keys of a job file that start agents in the image.

    Args:
        folder: the job file's.
        more: further options of bubblewrap, such as --unshare-pid.
    """
    program = folder / "enter.sh"
    program.write_text(ENTERS.replace("{more}", more))
    program.chmod(0o755)
    return f"container: {{runtime: command, command: ./enter.sh, image: {sys.base_prefix}, env: [CROSSES_OVER]}}"
