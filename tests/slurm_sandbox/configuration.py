"""What a sandbox looks like: its names, addresses, paths, and the text of its configuration files."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass

from tests.slurm_sandbox import versions

ROOT = "/run/hpc-elastic-slurm"  # short: the paths of Unix sockets end at 107 bytes
CONTROLLER = "controller"
SLOTS = range(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One sandbox among those of this machine: every name and path follows from its slot."""

    slot: int
    node_count: int = 4
    version: str | None = None  # this machine's own
    has_accounting: bool = False
    has_cgroups: bool = False  # without, Slurm tracks processes by their parents, and confines none
    settings: tuple[tuple[str, str], ...] = ()  # of slurm.conf, in the place of ours

    def as_json(self) -> str:
        """What `parse_layout` makes this of."""
        return json.dumps(asdict(self))

    @property
    def installation(self) -> versions.Installation:
        """Where its Slurm is."""
        return versions.installation(self.version)

    @property
    def root(self) -> str:
        """The directory of all its files."""
        return os.path.join(ROOT, str(self.slot))

    @property
    def control(self) -> str:
        """The keeper's control socket, an abstract one: whoever binds it owns the slot, and it dies with the keeper."""
        return f"\0{ROOT}/{self.slot}"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the compute nodes."""
        return tuple(f"node{number}" for number in range(1, self.node_count + 1))

    @property
    def machines(self) -> tuple[str, ...]:
        """Everything with a cable and daemons: the controller first."""
        return (CONTROLLER, *self.nodes)

    @property
    def login_interface(self) -> str:
        """The interface on this machine, which plays the login node; 15 characters at most."""
        return f"hpce-slurm{self.slot}"

    @property
    def login_address(self) -> str:
        """This machine's address in the sandbox's network."""
        return self._address(1)

    @property
    def controller_address(self) -> str:
        """Where slurmctld listens."""
        return self.address(CONTROLLER)

    def address(self, machine: str) -> str:
        """A machine's address."""
        return self._address(self._host_number(machine))

    def hardware_address(self, machine: str) -> str:
        """A machine's Ethernet address: the same after a reboot, so that no neighbour has a stale one."""
        return f"02:68:70:63:{self.slot:02x}:{self._host_number(machine):02x}"

    @property
    def configuration(self) -> str:
        """The directory that is /etc/slurm on the machines."""
        return os.path.join(self.root, "etc")

    @property
    def slurm_conf(self) -> str:
        """What SLURM_CONF points to."""
        return os.path.join(self.configuration, "slurm.conf")

    @property
    def munge_key(self) -> str:
        """The key that all munge daemons of this sandbox share."""
        return os.path.join(self.configuration, "munge.key")

    @property
    def munge(self) -> str:
        """The directory of the munge daemon's socket; each machine mounts its own one there."""
        return os.path.join(self.root, "munge")

    @property
    def munge_socket(self) -> str:
        """Where clients and daemons reach their own machine's munge daemon."""
        return os.path.join(self.munge, "socket")

    @property
    def logs(self) -> str:
        """The directory of the daemons' logs."""
        return os.path.join(self.root, "log")

    def path(self, name: str) -> str:
        """A file or directory directly in the sandbox's directory."""
        return os.path.join(self.root, name)

    def _address(self, host_number: int) -> str:
        return f"10.78.{self.slot}.{host_number}"

    def _host_number(self, machine: str) -> int:
        return 2 if machine == CONTROLLER else 10 + int(machine.removeprefix("node"))


def parse_layout(text: str) -> Layout:
    """The layout that `as_json` gave."""
    values = json.loads(text)
    return Layout(**{**values, "settings": tuple((name, value) for name, value in values["settings"])})


def hosts_text(layout: Layout) -> str:
    """What /etc/hosts says on the machines.

    With this computer's own name: slurmctld 24.11 looks for the host of each srun, ten times a second apart, and
    does nothing else meanwhile.
    """
    lines = ["127.0.0.1 localhost", f"{layout.login_address} login {os.uname().nodename}"]
    lines += [f"{layout.address(machine)} {machine}" for machine in layout.machines]
    return "\n".join(lines) + "\n"


def resolv_text() -> str:
    """What /etc/resolv.conf says there: a name server that refuses at once, for none would mean silence for seconds."""
    return "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"


def gres_text(layout: Layout) -> str:
    """gres.conf: two GPUs a node, copies of the null device; nothing but their number is ever looked at."""
    return f"Name=gpu File={layout.path('gpu')}[0-1]\n"


def topology_text(layout: Layout) -> str:
    """topology.conf: two leaf switches below one, with half of the nodes each; nobody reads it without a plugin."""
    half = max(1, len(layout.nodes) // 2)
    leaves = [f"SwitchName=leaf1 Nodes={','.join(layout.nodes[:half])}\n"]
    leaves += [f"SwitchName=leaf2 Nodes={','.join(layout.nodes[half:])}\n"] if layout.nodes[half:] else []
    return "".join(leaves) + "SwitchName=top Switches=leaf[1-2]\n" * (len(leaves) > 1)


def slurm_text(layout: Layout) -> str:
    """slurm.conf.

    `cred_expire` is also what a requeued job waits before it may start again, 120 s by default and 5 s at least.
    A batch host that comes back without its job makes Slurm requeue the job, BatchStartTimeout + 10 s after its start
    at the earliest; with the default of 10 s that took up to a minute.
    """
    plugins = layout.installation.plugins
    place = f"PluginDir={plugins}\n" if plugins else ""
    text = place + _DAEMONS.format(layout=layout) + _SCHEDULING + _nodes_text(layout)
    accounting = [
        ("AccountingStorageType", "accounting_storage/slurmdbd"),
        ("AccountingStorageHost", layout.controller_address),
        ("AccountingStoragePass", layout.munge_socket),  # of 22.05, which does not look into AuthInfo for this
    ]
    cgroups = [("ProctrackType", "proctrack/cgroup"), ("TaskPlugin", "task/cgroup,task/affinity")]
    chosen = [*(accounting if layout.has_accounting else ()), *(cgroups if layout.has_cgroups else ())]
    for name, value in (*chosen, *layout.settings):
        text = re.sub(rf"^{name}=.*\n", "", text, flags=re.MULTILINE) + f"{name}={value}\n"
    return text


def cgroup_text(layout: Layout) -> str:
    """cgroup.conf: cores and memory are confined; devices are not, for the GPUs are copies of the null device.

    The version is said where cgroups are not used either: slurmd would find version 2, look for systemd, and end.
    """
    confined = (
        "CgroupMountpoint=/sys/fs/cgroup\n"
        "ConstrainCores=yes\nConstrainRAMSpace=yes\nConstrainSwapSpace=no\nConstrainDevices=no\n"
    )
    return "CgroupPlugin=cgroup/v1\n" + (confined if layout.has_cgroups else "")


def _nodes_text(layout: Layout) -> str:
    cpus = os.cpu_count() if layout.has_cgroups else 4  # nothing can be bound to CPUs that are not there
    shape = f"CPUs={cpus} Sockets=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=20000 Gres=gpu:2"
    lines = [f"NodeName={node} NodeAddr={layout.address(node)} {shape}" for node in layout.nodes]
    everywhere = f"Nodes=node[1-{layout.node_count}] MaxTime=INFINITE"
    lines.append(f"PartitionName=batch {everywhere} Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=5")
    lines.append(f"PartitionName=urgent {everywhere} PriorityTier=10 PreemptMode=OFF")
    return "\n".join(lines) + "\n"


_DAEMONS = """\
ClusterName=sandbox{layout.slot}
SlurmctldHost=controller({layout.controller_address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket},cred_expire=5
StateSaveLocation={layout.root}/state
SlurmdSpoolDir={layout.root}/spool/%n
SlurmctldPidFile={layout.root}/slurmctld.pid
SlurmdPidFile={layout.root}/slurmd.%n.pid
SlurmctldLogFile={layout.logs}/slurmctld.log
SlurmdLogFile={layout.logs}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
MpiDefault=none
GresTypes=gpu
"""

_SCHEDULING = """\
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1000
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=0,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
MessageTimeout=10
BatchStartTimeout=1
KillWait=5
UnkillableStepTimeout=20
JobRequeue=1
EnforcePartLimits=ALL
PreemptMode=REQUEUE
PreemptType=preempt/partition_prio
"""
