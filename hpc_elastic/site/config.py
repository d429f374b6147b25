"""What a cluster offers: every key of a site file, what it means and what may stand there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, StrictStr, WithJsonSchema

from hpc_elastic.hostlist import expand_hostlist
from hpc_elastic.job import values
from hpc_elastic.job.sbatch_options import normalize_option
from hpc_elastic.job.spec import JobDefaults, Section
from hpc_elastic.plan.references import check_references
from hpc_elastic.site.limits import Limits

GPU_REQUESTS = "gpus_per_node, gres:<name> or none"
NEVER = "never"  # of last_checked
BY_SWITCH = ("topology",)  # failure_domains: each node's switch, as Slurm's topology names it


def _gpu_request(text: str) -> str:
    if text in ("gpus_per_node", "none") or (text.startswith("gres:") and len(text) > len("gres:")):
        return values.check_line(text)
    raise ValueError(f"expected {GPU_REQUESTS}, found {text!r}")


def _port_range(ports: tuple[int, ...]) -> tuple[int, ...]:
    if len(ports) != 2 or not 1024 <= ports[0] < ports[1] <= 65535:
        raise ValueError(f"expected the first and the last of several ports from 1024 to 65535, found {list(ports)}")
    return ports


def _run_root(text: str) -> str:
    check_references(text)
    if not text.startswith(("/", "${")):
        raise ValueError(f"expected an absolute path, found {text!r}")
    return values.check_line(text)


def _date(text: str) -> str:
    if text == NEVER:
        return text
    try:
        is_day = date.fromisoformat(text).isoformat() == text
    except ValueError:
        is_day = False
    if not is_day:
        raise ValueError(f"expected a day, such as 2026-11-20, or never, found {text!r}")
    return text


def _interface(text: str) -> str:
    if not re.fullmatch(r"[^\s/:,]{1,15}", text):
        raise ValueError(f"expected the name of one interface, such as ib0, found {text!r}")
    return values.check_line(text)


def _required(name: str) -> str:
    return normalize_option(name)


def _host_pattern(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.*?\[\]!-]+", text, re.A) or not re.search(r"[A-Za-z]{2}", text, re.A):
        raise ValueError(f"expected a host name, in which * and ? stand for any characters, found {text!r}")
    return text.lower()


def _failure_domains(value: object) -> object:
    if isinstance(value, str) and value not in BY_SWITCH:
        raise ValueError(f"expected a list of host lists, or topology, found {value!r}")
    return BY_SWITCH if isinstance(value, str) else value


def _host_list(text: str) -> str:
    expand_hostlist(text)
    return values.check_line(text)


HostList = Annotated[StrictStr, AfterValidator(_host_list), WithJsonSchema({"type": "string"})]
FailureDomains = Annotated[
    tuple[HostList, ...],
    BeforeValidator(_failure_domains),
    WithJsonSchema({"anyOf": [{"const": "topology"}, {"type": "array", "items": {"type": "string"}}]}),
]
GpuRequest = Annotated[
    StrictStr,
    AfterValidator(_gpu_request),
    WithJsonSchema({"type": "string", "pattern": "^(gpus_per_node|none|gres:.+)$"}),
]
Scratch = Annotated[StrictStr, AfterValidator(_run_root), WithJsonSchema({"type": "string", "pattern": r"^(/|\$\{)"})]
PortRange = Annotated[tuple[values.Positive, ...], AfterValidator(_port_range)]
Interface = Annotated[StrictStr, AfterValidator(_interface), WithJsonSchema({"type": "string"})]
Day = Annotated[
    StrictStr,
    AfterValidator(_date),
    WithJsonSchema({"type": "string", "pattern": "^([0-9]{4}-[0-9]{2}-[0-9]{2}|never)$"}),
]
RequiredOption = Annotated[StrictStr, AfterValidator(_required), WithJsonSchema({"type": "string"})]
HostPattern = Annotated[StrictStr, AfterValidator(_host_pattern), WithJsonSchema({"type": "string"})]
RunRoot = Annotated[StrictStr, AfterValidator(_run_root), WithJsonSchema({"type": "string", "pattern": r"^(/|\$\{)"})]


def _key(description: str, default: Any = None) -> Any:
    return Field(default=default, description=description)


class NetworkConfig(Section):
    """What agents and workers have to know of the network."""

    interface: Interface | None = _key("the interface whose address agents publish; default: the one that routes")
    hostname_transform: values.Line | None = _key("a suffix that makes a node's name that of its fast interface, as i")
    port_range: PortRange | None = _key("the first and the last port that agents listen on")
    nccl_socket_ifname: values.Line | None = _key("NCCL_SOCKET_IFNAME of the workers, in NCCL's own syntax")


class SiteConfig(Section):
    """One site, as its file says it; `path` is the file, for messages."""

    _path: str = PrivateAttr("")

    name: values.Name = Field(description="the site's name, as the file is called")
    contact: values.Line = Field(description="who answers questions about this file")
    url: values.Line | None = _key("the cluster's documentation")
    last_checked: Day = Field(
        description="the day on which somebody last ran a job with this file, as 2026-11-20; never, if nobody has"
    )
    scheduler: Literal["slurm", "local"] = Field(description="what starts the job")
    clusters: tuple[values.Line, ...] = _key(
        "Slurm's names of the cluster (ClusterName), by which this file is found", ()
    )
    hostnames: tuple[HostPattern, ...] = _key(
        "patterns of the names of login nodes, as login*.example.org, by which this file is found", ()
    )
    defaults: JobDefaults = _key(
        "any key of job.yaml but name, site, entrypoint and roles; the job's own value wins", JobDefaults()
    )
    run_root: RunRoot | None = _key("where run directories go; ${NAME} is a variable at submission")
    template: values.FilePath | None = _key("the template of the batch script, where the job names none")
    network: NetworkConfig = _key("what agents and workers have to know of the network", NetworkConfig())
    scratch: Scratch | None = _key("local scratch of the nodes, which health checks try; ${NAME} expands on the node")
    gpu_request: GpuRequest = _key(f"how GPUs are asked for: {GPU_REQUESTS}", "gpus_per_node")
    memory_request: Literal["mem", "mem-per-cpu", "none"] = _key("how resources.memory_per_node is asked for", "mem")
    srun: tuple[values.Line, ...] = _key("more arguments of srun, as they are", ())
    container_runtimes: tuple[Literal["pyxis", "apptainer", "command"], ...] = _key(
        "the container runtimes that the site has; a job that asks for another one is refused", ()
    )
    requeue: Literal["requeue", "chain"] = _key(
        "how a job is started again: scontrol requeue, or a new job that waits for its end, where requeue is forbidden",
        "requeue",
    )
    failure_domains: FailureDomains = _key(
        "lists of nodes that fail together, such as those of a rack, or topology, the switches that Slurm knows of: "
        "a copy of a training state goes to another one",
        (),
    )
    wait_all_nodes: values.Switch | None = _key("Slurm starts the job only when every node is booted")
    required: tuple[RequiredOption, ...] = _key(
        "options of sbatch that every job must give, as account; a default of this file counts", ()
    )
    partitions: Mapping[values.Line, Limits] = _key("what partitions allow to one job", {})
    qos: Mapping[values.Line, Limits] = _key("what qualities of service (sbatch's --qos) allow to one job", {})
    max_nodes: values.Positive | None = _key("a job may ask for at most so many nodes")
    max_time: values.PositiveDuration | None = _key("a job may ask for at most so much time")

    @property
    def path(self) -> str:
        """The site file."""
        return self._path

    def at(self, path: str) -> SiteConfig:
        """Return the same site with this path as its file."""
        site = self.model_copy()
        site._path = path
        return site
