"""What `doctor` asks of a node, and what a node answers: one JSON object for each check; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpc_elastic.codec import DecodeError, from_json, to_json
from hpc_elastic.plan.launch_plan import NetworkPlan

MARK = "hpc-elastic-doctor"
# A line of output may be cut where srun mixes the output of several nodes: 1024 bytes are whole (Slurm 22.05 to 26.05).
_PART = 600
# The script sends srun a CONT now and then, as long as no attempt of a run has begun.
_USUAL = re.compile(r"srun: got SIGCONT|hpc_elastic: run directory |srun: cluster configuration lacks support")
_LINE = re.compile(rf"{MARK} (\d+)\.(\d+) (\d+)/(\d+) ([A-Za-z0-9+/=]+)\.")  # a full stop: the part is whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """What each node is to try.

    `folder` is made on the shared file system for this; `run_root` is where runs go. `memory` (bytes), `cpus` and
    `gpus` are what the job asks for on a node, None where it does not say.
    """

    run: str
    folder: str
    network: NetworkPlan
    scratch: str | None = None
    gpus: int | None = None
    cpus: int | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """What one check found on one node.

    `problem` is set where the check could not be made, such as `no answer within 4 s`; else `value` has what `check`
    stands for in `VALUES`. `answered` is Unix time by that node's clock.
    """

    node: str
    node_id: int
    nodes: tuple[str, ...]
    check: str
    took_s: float
    answered: float
    problem: str | None = None
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSeen:
    """The Python that would start the agent; `search_path` is where it looks for modules."""

    version: str
    executable: str
    prefix: str
    python_path: str | None
    search_path: tuple[str, ...]
    host: str
    umask: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSeen:
    """What works in a directory; `problems` and `took_ms` are by step, `kind` is the type of the file system."""

    path: str
    problems: Mapping[str, str] = field(default_factory=dict)
    took_ms: Mapping[str, float] = field(default_factory=dict)
    free: int | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupSeen:
    """One question to the resolver: of a name for addresses, or of an address for a name."""

    asked: str
    found: tuple[str, ...] = ()
    error: str = ""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesSeen:
    """The resolver's answers for this node's own name, its neighbours' and the head's, and back for their addresses."""

    forward: tuple[LookupSeen, ...]
    reverse: tuple[LookupSeen, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceSeen:
    """An interface with an IPv4 address; `speed` in Mbit/s, None where the kernel does not say."""

    name: str
    address: str
    is_up: bool
    speed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfacesSeen:
    """The interfaces of a node, and what the agent would publish.

    `problem`: why the site's interface cannot be used. `address` is the one that is published, `interface` holds it;
    `routes` has, by other node, the interface by which the kernel would reach the address of its name.
    """

    found: tuple[InterfaceSeen, ...]
    problem: str | None = None
    address: str = ""
    interface: str | None = None
    routes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """A try to connect to another node's port; `problem` is empty if it succeeded, `cause` is a RendezvousCause."""

    peer: str
    address: str = ""
    port: int = 0
    source: str = ""
    interface: str | None = None
    problem: str = ""
    cause: str = ""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersSeen:
    """What a node found of the others, over the network and over the shared file system.

    `offset_s` is how far this node's clock is ahead of the head's, `round_trip_s` bounds its error. `visible_s`: how
    long after the head had written a file this node saw it; `needs_listing`: only after it had listed the folder.
    `created`: which of the shared files this node created, which only one node may.
    """

    head: str
    address: str
    port: int
    contacts: tuple[Contact, ...]
    offset_s: float | None = None
    round_trip_s: float | None = None
    visible_s: float | None = None
    needs_listing: bool = False
    visible_problem: str = ""
    created: tuple[int, ...] = ()
    create_problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSeen:
    """What the step may use: bytes, CPUs and descriptors; None where there is no limit or it is not known."""

    memory: int
    cpus: int
    open_files: int | None
    locked_memory: int | None
    shared_memory: int | None
    has_fabric: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusSeen:
    """How many GPUs the step sees; None: no tool says."""

    visible: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A process of this user that belongs to a run of ours; `job_id` is that of its allocation."""

    pid: int
    run_dir: str
    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftoversSeen:
    """The processes of other runs of this user on the node."""

    processes: tuple[Leftover, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSeen:
    """The torch that this node's Python imports; `absent` says why there is none."""

    absent: str = ""
    version: str = ""
    path: str = ""
    import_s: float = 0.0
    devices: int = 0
    has_gloo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceSeen:
    """A sum over all nodes by gloo: how long it took, over which interface, and what went wrong."""

    took_s: float = 0.0
    interface: str = ""
    error: str = ""
    skipped: str = ""


VALUES: Mapping[str, type[Any] | None] = {
    "start": None,
    "python": PythonSeen,
    "run root": FolderSeen,
    "scratch": FolderSeen,
    "names": NamesSeen,
    "interfaces": InterfacesSeen,
    "peers": PeersSeen,
    "limits": LimitsSeen,
    "gpus": GpusSeen,
    "leftovers": LeftoversSeen,
    "torch": TorchSeen,
    "all-reduce": AllReduceSeen,
    "end": None,
}


def write_lines(answer: ProbeAnswer, number: int) -> str:
    """Return the lines in which a node's answer number `number` stands in the output of the job."""
    from base64 import b64encode

    text = b64encode(json.dumps(to_json(answer), separators=(",", ":")).encode()).decode()
    parts = [text[at : at + _PART] for at in range(0, len(text), _PART)]
    return "".join(
        f"{MARK} {answer.node_id}.{number} {part}/{len(parts)} {each}.\n" for part, each in enumerate(parts, 1)
    )


def read_answers(output: str) -> Iterator[ProbeAnswer]:
    """Yield the answers in the output of a job, whatever else is in it; one that is not whole is left out."""
    from base64 import b64decode

    found: dict[tuple[int, int], dict[int, str]] = {}
    for match in _LINE.finditer(output):
        node, number, part, parts = (int(each) for each in match.groups()[:4])
        pieces = found.setdefault((node, number), {})
        pieces[part] = match[5]
        if len(pieces) == parts:
            try:
                text = b64decode("".join(pieces[each] for each in range(1, parts + 1)), validate=True)
                answer = from_json(ProbeAnswer, json.loads(text))
                yield _with_value(answer)
            except (KeyError, ValueError, DecodeError):
                continue


def _with_value(answer: ProbeAnswer) -> ProbeAnswer:
    from dataclasses import replace

    shape = VALUES.get(answer.check)
    if shape is None or answer.problem is not None:
        return answer
    return replace(answer, value=from_json(shape, answer.value, where=answer.check))


def other_lines(output: str) -> list[str]:
    """Return the lines of a job's output that are no answers, without those that stand there always."""
    return [line for line in output.splitlines() if line.strip() and MARK not in line and not _USUAL.match(line)]
