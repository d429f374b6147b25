"""What a cluster offers: every key of a site file, what it means and what may stand there."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, StrictStr, WithJsonSchema

from hpc_elastic.job import values
from hpc_elastic.job.spec import JobDefaults, Section
from hpc_elastic.plan.references import check_references

GPU_REQUESTS = "gpus_per_node, gres:<name> or none"


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


GpuRequest = Annotated[
    StrictStr,
    AfterValidator(_gpu_request),
    WithJsonSchema({"type": "string", "pattern": "^(gpus_per_node|none|gres:.+)$"}),
]
Scratch = Annotated[StrictStr, AfterValidator(_run_root), WithJsonSchema({"type": "string", "pattern": r"^(/|\$\{)"})]
PortRange = Annotated[tuple[values.Positive, ...], AfterValidator(_port_range)]
RunRoot = Annotated[StrictStr, AfterValidator(_run_root), WithJsonSchema({"type": "string", "pattern": r"^(/|\$\{)"})]


def _key(description: str, default: Any = None) -> Any:
    return Field(default=default, description=description)


class NetworkConfig(Section):
    """What agents and workers have to know of the network."""

    interface: values.Line | None = _key("the interface whose address agents publish; default: the one that routes")
    hostname_transform: values.Line | None = _key("a suffix that makes a node's name that of its fast interface, as i")
    port_range: PortRange | None = _key("the first and the last port that agents listen on")
    nccl_socket_ifname: values.Line | None = _key("NCCL_SOCKET_IFNAME of the workers, in NCCL's own syntax")


class SiteConfig(Section):
    """One site, as its file says it; `path` is the file, for messages."""

    _path: str = PrivateAttr("")

    name: values.Name = Field(description="the site's name, as the file is called")
    contact: values.Line = Field(description="who answers questions about this file")
    url: values.Line | None = _key("the cluster's documentation")
    last_checked: values.Line = Field(
        description="the day on which somebody last ran a job with this file, as 2026-11-20"
    )
    scheduler: Literal["slurm", "local"] = Field(description="what starts the job")
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
    requeue: Literal["requeue", "chain"] = _key(
        "how a job is started again: scontrol requeue, or a new job that waits for its end, where requeue is forbidden",
        "requeue",
    )
    wait_all_nodes: values.Switch | None = _key("Slurm starts the job only when every node is booted")
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
