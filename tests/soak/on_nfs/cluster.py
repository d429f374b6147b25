"""A file server, a login node with slurmctld and some compute nodes: virtual machines that share an NFS export."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.slurm_sandbox import configuration
from tests.slurm_sandbox.configuration import CONTROLLER, Layout
from tests.slurm_sandbox.machines import munge_command
from tests.slurm_sandbox.processes import SandboxError
from tests.soak.on_nfs.guests import Guest, Program
from tests.soak.on_nfs.kernel import fetch_kernel
from tests.soak.on_nfs.switch import Switch

REPOSITORY = Path(__file__).resolve().parents[3]
STORAGE = "storage"
SHARED = "/shared"
USER = "alice"
HOME = f"{SHARED}/home/{USER}"
_SLOT = 31
_STORAGE_NUMBER = 3
_MODULES = ("overlay", "quota_v2", "nfsd", "nfsv3", "nfsv4", "nf_tables")
_DISK_MIB = 512
_PROGRAMS = (
    "slurmctld",
    "slurmd",
    "munged",
    "mkfs.ext4",
    "exportfs",
    "mount.nfs",
    "rpcbind",
    "insmod",
    "unshare",
    "ip",
)
_SEARCHED = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_COMMAND = os.path.join(os.path.dirname(sys.executable), "hpc-elastic")  # -m would list the working directory


class NfsCluster:
    """The machines; a `with` block powers them on, and nothing of them is left after it.

    Args:
        mount_options: how the login and the compute nodes mount the export, as `vers=4.2,hard`.
        export_options: what the server's export says besides `rw,no_subtree_check`.
        nodes: how many compute nodes.
        grace_s: how long the server waits for its clients after a restart (and the lease of NFSv4).
    """

    def __init__(
        self,
        mount_options: str = "vers=4.2",
        *,
        export_options: str = "sync,no_root_squash",
        nodes: int = 3,
        grace_s: int = 15,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.mount_options = mount_options
        self._export_options = export_options
        self._grace_s = grace_s
        self.layout = Layout(slot=_SLOT, node_count=nodes, settings=tuple((settings or {}).items()))
        self._scope = contextlib.ExitStack()

    def __enter__(self) -> NfsCluster:
        missing = [name for name in _PROGRAMS if shutil.which(name, path=_SEARCHED) is None]
        if missing:
            raise SandboxError(f"missing: {' '.join(missing)}; see {REPOSITORY / 'CONTRIBUTING.md'}")
        with contextlib.ExitStack() as scope:
            self.folder = tempfile.mkdtemp(prefix="on-nfs-")
            scope.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.kernel = fetch_kernel()
            self.switch = Switch()
            scope.callback(self.switch.close)
            self._key = secrets.token_hex(64)
            self._make_disk()
            self.guests = {name: self._guest(name) for name in (STORAGE, *self.layout.machines)}
            for guest in self.guests.values():
                scope.callback(guest.power_off)
                guest.power_on()
            self.start_server()
            for name in self.layout.machines:
                self.start_client(name)
            self.storage.run(f"mkdir -p /export/data/home/{USER} && chown {USER} /export/data/home/{USER}")
            self._scope = scope.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._scope.close()

    @property
    def login(self) -> Guest:
        """The machine of slurmctld, on which people type."""
        return self.guests[CONTROLLER]

    @property
    def storage(self) -> Guest:
        """The file server."""
        return self.guests[STORAGE]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the compute nodes."""
        return self.layout.nodes

    def start_server(self) -> None:
        """Mount the disk and start the server on it: at first, and after its power came back."""
        storage = self.storage
        storage.wait_until_up()
        state = "/export/state"
        storage.run(
            f"mkdir -p /export && mount -o usrquota /dev/ubda /export && mkdir -p /export/data {state}/nfs\n"
            f"cd {state}/nfs && mkdir -p sm sm.bak v4recovery nfsdcld rpc_pipefs && touch etab rmtab state\n"
            f"mount --bind {state}/nfs /var/lib/nfs && mount -t rpc_pipefs rpc_pipefs /var/lib/nfs/rpc_pipefs\n"
            "mount -t nfsd nfsd /proc/fs/nfsd; rpcbind -w; rpc.statd --no-notify\n"
            f"exportfs -o rw,no_subtree_check,fsid=0,{self._export_options} '*:/export/data'\n"
            f"rpc.nfsd --grace-time {self._grace_s} --lease-time {self._grace_s} 4 && rpc.mountd"
        )

    def start_client(self, name: str) -> None:
        """Mount the export on a machine and start its Slurm daemon."""
        guest = self.guests[name]
        guest.wait_until_up()
        guest.run(f"chmod 600 {self.layout.munge_key}")
        for folder in (
            self.layout.munge,
            self.layout.logs,
            self.layout.path("state"),
            self.layout.path(f"spool/{name}"),
        ):
            guest.run(["mkdir", "-p", folder])
        guest.run(f"for gpu in 0 1; do mknod {self.layout.path('gpu')}$gpu c 1 3; done")
        guest.run("mkdir -p /var/lib/nfs/rpc_pipefs /var/lib/nfs/sm; rpcbind -w; rpc.statd --no-notify")
        self.mount(name)
        daemon = ["slurmctld", "-i"] if name == CONTROLLER else ["slurmd"]
        guest.run(munge_command(self.layout))
        guest.run([*daemon, "-f", self.layout.slurm_conf])

    def mount(self, name: str, options: str | None = None) -> None:
        """Mount the export on a machine, in the place of its mount if it has one."""
        chosen = options or self.mount_options
        exported = "/export/data" if "vers=3" in chosen else "/"
        self.guests[name].run(
            f"mkdir -p {SHARED}; umount {SHARED} 2>/dev/null; mount -t nfs -o {chosen} {STORAGE}:{exported} {SHARED}"
        )

    def as_user(self, words: str, *, cwd: str = HOME, on: str = CONTROLLER) -> Program:
        """Start `hpc-elastic WORDS` on a machine."""
        return self.guests[on].start(["sh", "-c", f"exec {_COMMAND} {words}"], user=USER, cwd=cwd, env=self.env)

    def ask(self, words: str, *, cwd: str = HOME, on: str = CONTROLLER, within_s: float = 120) -> str:
        """Run `hpc-elastic WORDS` on a machine and return what it says, whatever its exit code."""
        program = self.as_user(words, cwd=cwd, on=on)
        code = program.wait(within_s)
        return f"{program.output}[{code}]"

    def start_python(self, name: str, words: Sequence[str]) -> Program:
        """Start a Python program of this repository on a machine, as the user."""
        return self.guests[name].start([sys.executable, *words], user=USER, cwd=HOME, env=self.env)

    @property
    def env(self) -> dict[str, str]:
        """The environment of people's commands."""
        return {
            "PYTHONPATH": str(REPOSITORY),
            "SLURM_CONF": self.layout.slurm_conf,
            "LANG": "C.UTF-8",
            "COLUMNS": "140",
        }

    def slurm(self, words: str) -> str:
        """Run a command of Slurm on the login node, as root."""
        return self.login.run(words, env={"SLURM_CONF": self.layout.slurm_conf}, check=False)

    def _make_disk(self) -> None:
        self._disk = os.path.join(self.folder, "disk")
        with open(self._disk, "wb") as file:
            file.truncate(_DISK_MIB << 20)
        words = ["mkfs.ext4", "-q", "-O", "quota", "-m", "0", self._disk]
        subprocess.run(words, check=True, env={"PATH": _SEARCHED}, capture_output=True)

    def _guest(self, name: str) -> Guest:
        number = _STORAGE_NUMBER if name == STORAGE else int(self.layout.address(name).rpartition(".")[2])
        address = f"10.78.{_SLOT}.{number}"
        return Guest(
            name,
            folder=self.folder,
            kernel=self.kernel,
            switch=self.switch,
            hardware_address=f"02:68:70:63:{_SLOT:02x}:{number:02x}",
            memory_mib=768,
            disk=self._disk if name == STORAGE else None,
            description={
                "address": address,
                "modules": self.kernel.in_order(*_MODULES),
                "user": USER,
                "home": HOME,
                "files": self._files(),
            },
        )

    def _files(self) -> dict[str, str]:
        layout = self.layout
        hosts = configuration.hosts_text(layout) + f"10.78.{_SLOT}.{_STORAGE_NUMBER} {STORAGE}\n"
        return {
            "/etc/hosts": hosts,
            "/etc/resolv.conf": configuration.resolv_text(),
            layout.slurm_conf: configuration.slurm_text(layout),
            os.path.join(layout.configuration, "gres.conf"): configuration.gres_text(layout),
            os.path.join(layout.configuration, "cgroup.conf"): configuration.cgroup_text(layout),
            layout.munge_key: self._key,
        }
