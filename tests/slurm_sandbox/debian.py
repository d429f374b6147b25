"""Debian packages of another release, unpacked into a folder whose programs run here with libraries of their own.

Theory of operation: apt resolves and fetches with a configuration, package lists and a status file of its own, so
that nothing of this computer's packages is read or changed but the mirror's address and the way to it. Only what a
program can load is unpacked: the wanted packages and libraries, among them libc. Then each program gets the folder's
own dynamic linker and search path, as DT_RPATH: it holds for what the program's plugins load too, and, unlike
LD_LIBRARY_PATH, for no program that these start. So the result needs no chroot, and what it starts is this computer's.
"""

from __future__ import annotations

import glob
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from tests.slurm_sandbox.processes import SandboxError, die_with_parent

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_LOADED = re.compile(r"lib(?!systemd-shared|pam-modules|c-gconv)|zlib1g|slurm-wlm-")  # what programs load
_UPDATE_S = 300
_DOWNLOAD_S = 900


class Release:
    """A release of Debian on the mirror that this computer uses.

    Args:
        suite: its code name.
        scratch: an empty folder for package lists and packages.

    Raises:
        SandboxError: the mirror does not have it, or cannot be reached.
    """

    def __init__(self, suite: str, scratch: str) -> None:
        self._scratch = scratch
        for folder in ("lists/partial", "cache/archives/partial", "packages", "none"):
            os.makedirs(os.path.join(scratch, folder))
        for path, text in {"status": "", "sources.list": source_line(suite), "apt.conf": self._configuration()}.items():
            with open(os.path.join(scratch, path), "w") as file:
                file.write(text)
        self._apt("apt-get", "--error-on=any", "--quiet", "update", timeout_s=_UPDATE_S)

    def version_of(self, package: str) -> str:
        """The version of a package that it has, as Debian spells it.

        Raises:
            SandboxError: it has none.
        """
        shown = self._apt("apt-cache", "show", "--no-all-versions", package)
        found = re.search(r"^Version: (?:\d+:)?(\S+)$", shown, re.MULTILINE)
        if not found:
            raise SandboxError(f"apt tells no version of {package}")
        return found[1]

    def unpack(self, packages: Sequence[str], root: str) -> None:
        """Unpacks packages, and the libraries that they need, into a folder."""
        listed = self._apt("apt-get", "--print-uris", "--quiet=2", "install", *packages)
        names = [line.split()[1].split("_")[0] for line in listed.splitlines() if line.startswith("'")]
        wanted = [name for name in names if name in packages or _LOADED.match(name)]
        folder = os.path.join(self._scratch, "packages")
        self._apt("apt-get", "--quiet=2", "download", *wanted, cwd=folder, timeout_s=_DOWNLOAD_S)
        for package in glob.glob(os.path.join(folder, "*.deb")):
            _run(["dpkg-deb", "--extract", package, root])

    def _configuration(self) -> str:
        """The text of apt.conf: of this computer's own configuration it keeps how the mirror is reached."""
        ours = [line for line in _run(["apt-config", "dump"]).splitlines() if line.startswith("Acquire::")]
        paths = {
            "Dir::Etc::main": "none/apt.conf",
            "Dir::Etc::parts": "none",
            "Dir::Etc::sourcelist": "sources.list",
            "Dir::Etc::sourceparts": "none",
            "Dir::Etc::preferences": "none/preferences",
            "Dir::Etc::preferencesparts": "none",
            "Dir::State": "",
            "Dir::State::status": "status",
            "Dir::State::lists": "lists",
            "Dir::Cache": "cache",
        }
        own = {name: os.path.join(self._scratch, path) for name, path in paths.items()} | {
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Acquire::Retries": "2",
        }
        return "\n".join([*ours, *(f'{name} "{value}";' for name, value in own.items())]) + "\n"

    def _apt(self, *command: str, cwd: str | None = None, timeout_s: float = 120) -> str:
        return _run(command, {"APT_CONFIG": os.path.join(self._scratch, "apt.conf")}, cwd, timeout_s)


def make_native(root: str, home: str, plugins: str) -> None:
    """Makes the programs of unpacked packages, patchelf among them, run from the folder `home` without a chroot.

    Args:
        root: the folder where they are unpacked now.
        home: the folder where they will be when they run.
        plugins: a pattern, below the root, of the folder of plugins that the programs load.

    Raises:
        SandboxError: there is no dynamic linker, or a program lacks a library.
    """
    linkers = _inside(root, "lib/*/ld-linux*.so.*")
    folders = sorted(
        {os.path.dirname(path) for path in _inside(root, "lib/*/lib*.so*") + _inside(root, f"{plugins}/*")}
    )
    if not linkers:
        raise SandboxError("no dynamic linker in the packages")
    here, there = (":".join(os.path.join(at, folder) for folder in folders) for at in (root, home))
    in_root = [os.path.join(root, linkers[0]), "--library-path", here]
    patchelf = [*in_root, os.path.join(root, "usr/bin/patchelf")]
    for path in _inside(root, f"{plugins}/*.so"):
        _run([*patchelf, "--remove-rpath", os.path.join(root, path)])  # it would hide that of the program
    for program in _programs(root):
        _run([*patchelf, "--set-interpreter", os.path.join(home, linkers[0]), program])
        _run([*patchelf, "--force-rpath", "--set-rpath", there, program])
        lost = [line.strip() for line in _run([*in_root, "--list", program]).splitlines() if "not found" in line]
        if lost:
            raise SandboxError(f"{os.path.basename(program)} lacks libraries: {'; '.join(lost)}")


def source_line(suite: str) -> str:
    """A source list with one release of Debian, from the mirror that has this computer's own release.

    Raises:
        SandboxError: there is none.
    """
    mirrors = _fetched_mirrors() or _named_mirrors()
    if not mirrors:
        raise SandboxError(f"apt has no mirror of Debian here, which {suite} could come from")
    signed_by = f"[signed-by={_KEYRING}] " if os.path.exists(_KEYRING) else ""
    return f"deb {signed_by}{mirrors[0]} {suite} main\n"


def _fetched_mirrors() -> list[str]:
    """The mirrors whose releases say that they are Debian's; none before `apt-get update`."""
    rows = _index_targets("$(REPO_URI) $(COMPONENT) $(ORIGIN) $(LABEL)")
    return [mirror for mirror, *of_what in rows if of_what == ["main", "Debian", "Debian"]]


def _named_mirrors() -> list[str]:
    """The mirrors that should have this computer's own release of Debian: images often come without package lists."""
    release = _run(["sh", "-c", '. /etc/os-release && echo "$ID $VERSION_CODENAME"']).split()
    rows = _index_targets("$(REPO_URI) debian $(RELEASE) $(COMPONENT)", "--no-release-info")
    return [mirror for mirror, *of_what in rows if of_what == [*release, "main"]]


def _index_targets(form: str, *options: str) -> list[list[str]]:
    """The words that apt tells of each list of packages that its sources name."""
    told = _run(["apt-get", "indextargets", *options, "--format", form, "Created-By: Packages"])
    return [line.split() for line in told.splitlines()]


def _programs(root: str) -> Iterator[str]:
    """The programs of the unpacked packages but patchelf."""
    for folder in ("usr/bin", "usr/sbin"):
        for name in os.listdir(os.path.join(root, folder)):
            path = os.path.join(root, folder, name)
            if not os.path.islink(path) and name != "patchelf":
                with open(path, "rb") as file:
                    if file.read(4) == b"\x7fELF":
                        yield path


def _inside(root: str, pattern: str) -> list[str]:
    """What matches below the root or its usr, which holds everything that was once beside it."""
    return [path for at in ("usr", "") for path in glob.glob(os.path.join(at, pattern), root_dir=root)]


def _run(
    command: Sequence[str], environment: Mapping[str, str] | None = None, cwd: str | None = None, timeout_s: float = 120
) -> str:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {}), "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            preexec_fn=die_with_parent,  # or it would write on where the next process begins anew
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(str(error)) from error
    if done.returncode:
        said = "; ".join(line for line in (done.stderr or done.stdout).splitlines() if line.strip())
        raise SandboxError(f"{' '.join(command[:3])} failed: {said}")
    return done.stdout
