"""What tests could leave on a machine.

    python3 -m tests.remains        lists all of it, a line each: compare what it says before with what it says after

One session's own processes are found by the mark that all of them have in their environment, so that
sessions beside it do not count. Files, mounts and network interfaces carry no mark: only a machine
where nothing else runs can be compared as a whole, as `.ci/run` does.
"""

from __future__ import annotations

import glob
import hashlib
import os

MARK = "PYTEST_SESSION_MARK"  # tests clear names that begin with HPC_ELASTIC_ and SLURM_

_FOLDERS = ("/dev/shm", "/run/hpc-elastic-slurm", "/tmp")
_KEPT = ("/tmp/pytest-of-", "/tmp/torchinductor_")  # the last sessions' folders, and torch's cache of compiled code
_UNTOUCHED = ("/etc/hosts", "/etc/resolv.conf", "/etc/slurm/*", "/etc/munge/*")
_PROGRAMS = ("hpc_elastic", "hpc-elastic", "slurmctld", "slurmd", "slurmstepd", "munged", "tests.slurm_sandbox")


def processes_of(mark: str) -> dict[int, str]:
    """Return the command lines of the processes that were started with this mark, by process id; none of the dead."""
    wanted = f"{MARK}={mark}".encode()
    return {
        pid: command
        for pid, command in _commands().items()
        if pid != os.getpid() and wanted in _read(f"/proc/{pid}/environ").split(b"\0")
    }


def listing() -> list[str]:
    """Return a line of ASCII for everything on this machine that tests could have left there, in order."""
    lines = [f"network interface {name}" for name in os.listdir("/sys/class/net")]
    lines += [f"mount {line.split()[1]}" for line in _read("/proc/mounts").decode(errors="replace").splitlines()]
    lines += [f"abstract socket {name}" for name in _abstract_sockets()]
    for folder in _FOLDERS:
        lines += [f"file {path}" for path in glob.glob(f"{folder}/*") if not path.startswith(_KEPT)]
    for pattern in _UNTOUCHED:
        lines += [f"file {path} {hashlib.sha256(_read(path)).hexdigest()[:12]}" for path in glob.glob(pattern)]
    lines += [f"process {text}" for text in _commands().values() if any(name in text for name in _PROGRAMS)]
    return sorted(line.encode("unicode_escape").decode() for line in lines)  # names are bytes of any kind


def _commands() -> dict[int, str]:
    lines = {int(entry): _read(f"/proc/{entry}/cmdline") for entry in os.listdir("/proc") if entry.isdigit()}
    words = {pid: line.replace(b"\0", b" ").decode(errors="replace").split() for pid, line in lines.items() if line}
    return {pid: " ".join(each) for pid, each in words.items()}  # one line, whatever an argument holds


def _abstract_sockets() -> set[str]:
    names = (line.split()[-1] for line in _read("/proc/net/unix").decode(errors="replace").splitlines())
    return {name for name in names if name.startswith("@") and "hpc-elastic" in name}


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


if __name__ == "__main__":
    print("\n".join(listing()))
