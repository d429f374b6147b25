"""Debian's user-mode kernel, a Linux that runs as a program, with modules of an NFS client and server."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.slurm_sandbox.processes import SandboxError

CACHE_VARIABLE = "HPC_ELASTIC_KERNEL_CACHE"
CACHE = os.path.abspath(os.environ.get(CACHE_VARIABLE) or "/var/cache/hpc-elastic-kernel")
_PACKAGE = "user-mode-linux"
_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel and the folder of its modules."""

    program: str
    modules: str

    def in_order(self, *names: str) -> list[str]:
        """Return the paths of modules, each after those that it depends on; one that is built in has none."""
        found = glob.glob(os.path.join(self.modules, "**", "*.ko"), recursive=True)
        paths = {_module_name(os.path.basename(path)): path for path in found}
        ordered: dict[str, None] = {}
        for name in names:
            ordered.update(dict.fromkeys(_visit(_module_name(name), paths)))
        return list(ordered)


def fetch_kernel() -> Kernel:
    """Return the kernel, fetched and unpacked once; nothing is installed.

    Raises:
        SandboxError: apt has none, or this computer is no Debian.
    """
    if not _find():
        os.makedirs(CACHE, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            _run(["apt-get", "download", "-o", "APT::Sandbox::User=root", _PACKAGE], cwd=scratch)
            _run(["dpkg-deb", "--extract", glob.glob(f"{scratch}/*.deb")[0], f"{scratch}/files"], cwd=scratch)
            shutil.copytree(f"{scratch}/files/usr", os.path.join(CACHE, "usr"), dirs_exist_ok=True)
    kernels = _find()
    if not kernels:
        raise SandboxError(f"the package {_PACKAGE} has no kernel with modules in it: see {CACHE}")
    return kernels[-1]


def _find() -> list[Kernel]:
    program = os.path.join(CACHE, "usr/bin/linux.uml")
    modules = sorted(glob.glob(os.path.join(CACHE, "usr/lib/uml/modules/*/kernel")))
    return [Kernel(program=program, modules=folder) for folder in modules if os.path.exists(program)]


def _visit(name: str, paths: dict[str, str]) -> Iterator[str]:
    if name in paths:
        with open(paths[name], "rb") as file:
            depends = _DEPENDS.search(file.read())
        for other in depends[1].decode().split(",") if depends and depends[1] else ():
            yield from _visit(_module_name(other), paths)
        yield paths[name]


def _module_name(name: str) -> str:
    return name.removesuffix(".ko").replace("-", "_")


def _run(words: Sequence[str], *, cwd: str) -> None:
    try:
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SandboxError(f"there is no {words[0]}: the kernel is fetched on Debian only") from error
    if done.returncode:
        raise SandboxError(f"{' '.join(words)}: {done.stderr.strip()}")
