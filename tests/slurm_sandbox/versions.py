"""The Slurms that a sandbox can run: this machine's own, and those of other releases of Debian, fetched once."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import glob
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from tests.slurm_sandbox import debian
from tests.slurm_sandbox.processes import SandboxError

SUPPORTED = ("22.05", "24.11", "26.05")
CACHE_VARIABLE = "HPC_ELASTIC_SLURM_CACHE"
CACHE = os.path.abspath(os.environ.get(CACHE_VARIABLE) or "/var/cache/hpc-elastic-slurm")  # programs name it in full
DAEMON_FOLDERS = ("/usr/sbin", "/sbin")  # of the daemons and `ip`; not everybody's PATH has them

_SUITES = {"22.05": "bookworm", "24.11": "trixie", "26.05": "sid"}
_PACKAGES = ("slurmd", "slurmctld", "slurm-client", "slurmdbd", "slurm-wlm-mysql-plugin", "patchelf")
_PLUGINS = "lib/*/slurm-wlm"
_RECIPE = 1  # higher when a folder that was made before will not do
_TOOLS = ("munged", "ip", "nsenter", "unshare", "mount")
_DAEMONS = ("slurmctld", "slurmd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A Slurm on this machine's disk.

    Args:
        root: the folder that its packages were unpacked in; None for the machine's own, which is where it is.
    """

    root: str | None = None

    @property
    def program_folders(self) -> tuple[str, ...]:
        """What PATH must begin with."""
        return () if self.root is None else (os.path.join(self.root, "usr/bin"), os.path.join(self.root, "usr/sbin"))

    @property
    def plugins(self) -> str | None:
        """Where its plugins are; None where its programs look themselves."""
        return None if self.root is None else glob.glob(os.path.join(self.root, "usr", _PLUGINS))[0]

    @property
    def slurmd(self) -> tuple[str, ...]:
        """The command of slurmd, which would look for slurmstepd where its package puts it."""
        return ("slurmd",) if self.root is None else ("slurmd", "-d", os.path.join(self.root, "usr/sbin/slurmstepd"))


@functools.cache
def own() -> str | None:
    """The version of this machine's own Slurm, as `24.11`; None without one."""
    slurmctld = _which("slurmctld")
    if slurmctld is None:
        return None
    shown = subprocess.run([slurmctld, "-V"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d\d\.\d\d)", shown)
    return found[1] if found else None


def installation(version: str | None) -> Installation:
    """Where a Slurm is that was prepared; None is the machine's own."""
    return Installation(root=None if version in (None, own()) else _home(str(version)))


def folders() -> list[str]:
    """What PATH has of this machine's own: a test of another Slurm begins it with that one's programs."""
    return [folder for folder in os.get_exec_path() if not folder.startswith(CACHE + os.sep)]


def prepare(version: str | None) -> None:
    """Fetches a Slurm unless it is there; one process at a time, and a half-made one is never seen.

    Raises:
        SandboxError: it cannot be had here; the message says why.
    """
    root = installation(version).root
    if root is None or os.path.isdir(root):
        return
    if version not in _SUITES:
        raise SandboxError(f"no Slurm {version!r} to be had; there are {', '.join(SUPPORTED)}")
    try:
        with _making(version) as scratch:
            if not os.path.isdir(root):
                _make(version, root, scratch)
    except OSError as error:
        raise SandboxError(f"Slurm {version} cannot be unpacked: {error}") from error


@functools.cache
def why_impossible(version: str | None = None) -> str | None:
    """Why no sandbox can run this Slurm, by default the machine's own, on this computer; None if one can.

    It fetches a Slurm that is not there, for only then it is known.
    """
    if os.geteuid() != 0:
        return "a Slurm made of namespaces needs root"
    needed = [*_TOOLS, *(_DAEMONS if version in (None, own()) else ())]
    missing = [name for name in needed if not _which(name)]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: slurm-wlm munge iproute2)"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, text=True
    )
    if tried.returncode:
        return f"no right to make namespaces: {tried.stderr.strip()}"
    try:
        prepare(version)
    except SandboxError as error:
        return str(error)
    return None


def _make(version: str, root: str, scratch: str) -> None:
    suite = _SUITES[version]
    release = debian.Release(suite, os.path.join(scratch, "apt"))
    served = release.version_of("slurmctld")
    if not served.startswith(f"{version}."):
        raise SandboxError(f"Debian's {suite} has Slurm {served}, no longer {version}")
    unpacked = os.path.join(scratch, "root")
    release.unpack(_PACKAGES, unpacked)
    programs = os.path.join(unpacked, "usr/sbin")
    for name in os.listdir(programs):
        if name.endswith("-wlm"):  # `update-alternatives` would make this link
            os.symlink(name, os.path.join(programs, name.removesuffix("-wlm")))
    debian.make_native(unpacked, root, _PLUGINS)
    os.rename(unpacked, root)


@contextlib.contextmanager
def _making(version: str) -> Iterator[str]:
    """An empty folder beside the finished ones, while no other process makes the same."""
    os.makedirs(CACHE, exist_ok=True)
    scratch = f"{_home(version)}.new"
    with open(f"{_home(version)}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
        os.makedirs(scratch)
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _home(version: str) -> str:
    return os.path.join(CACHE, f"{version}-{_RECIPE}")


def _which(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([*folders(), *DAEMON_FOLDERS]))
