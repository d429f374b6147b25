"""Drafts a commented site file from what was found of a cluster; pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpc_elastic.doctor.judge_network import advise_interface
from hpc_elastic.doctor.probes.answers import InterfacesSeen
from hpc_elastic.doctor.results import CheckResult, Severity
from hpc_elastic.doctor.told import NodeAnswers
from hpc_elastic.printable import printable_line
from hpc_elastic.units import parse_duration

_MOST_PARTITIONS = 100
_WIDTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFacts:
    """What a draft is made of; `interface`, `run_root` and `scratch` are those of the site that was used, if any."""

    name: str
    contact: str
    day: str
    scheduler: str
    config: Mapping[str, str]
    partitions: Sequence[Mapping[str, str]]
    told: NodeAnswers | None
    results: Sequence[CheckResult]
    interface: str | None = None
    port_range: Sequence[int] | None = None
    run_root: str | None = None
    scratch: str | None = None


def draft_site(facts: DraftFacts) -> str:
    """Return the text of a site file, which `hpc-elastic sites check` accepts."""
    return "\n".join(line.rstrip() for line in _lines(facts)) + "\n"


def _lines(facts: DraftFacts) -> Iterator[str]:
    where = "" if facts.told is None else f" on {len(facts.told.nodes)} nodes"
    yield f"# Drafted by `hpc-elastic doctor`{where} on {facts.day}. Nobody has tried it; read each line before you"
    yield "# trust it, and `hpc-elastic sites check` after you have changed one."
    for each in facts.results:
        if each.verdict in (Severity.WARN, Severity.FAIL):
            yield from _comment(f"{each.verdict.value}: {each.check}: {each.found}")
    yield ""
    yield f"name: {_text(facts.name)}"
    yield f"contact: {_text(facts.contact)} # who answers questions about this file"
    yield "# url: https://example.org/mycluster # the cluster's documentation"
    yield "last_checked: never # the day of your first run with this file, as 2026-01-31"
    yield f"scheduler: {facts.scheduler}"
    if facts.scheduler == "slurm":
        yield from _found_by(facts.config)
        yield from _requests(facts.config)
    yield from _folders(facts)
    yield from _network(facts)
    if facts.scheduler == "slurm":
        yield from _requeue(facts.config)
        yield from _partitions(facts.partitions)


def _found_by(config: Mapping[str, str]) -> Iterator[str]:
    cluster = config.get("ClusterName", "")
    if cluster:
        yield f"clusters: [{_text(cluster)}] # ClusterName: users need not name the site then"
    yield "# hostnames: [login*.example.org] # or the names of the login nodes"


def _requests(config: Mapping[str, str]) -> Iterator[str]:
    yield ""
    if "gpu" not in config.get("GresTypes", "").split(","):
        yield "# Slurm has no GPUs configured (GresTypes). Where nodes are given whole, with theirs: gpu_request: none"
    elif "cons_tres" in config.get("SelectType", ""):
        yield "gpu_request: gpus_per_node # --gpus-per-node=4, which select/cons_tres knows"
    else:
        yield "gpu_request: gres:gpu # --gres=gpu:4, for this Slurm selects by " + config.get("SelectType", "?")
    enforced = config.get("AccountingStorageEnforce", "")
    if any(word in enforced for word in ("associations", "limits", "qos")):
        yield f"# AccountingStorageEnforce is {enforced}: if every job must name its account, say so here."
        yield "# required: [account]"


def _folders(facts: DraftFacts) -> Iterator[str]:
    yield ""
    yield "# A folder that all nodes share; without it ./hpc-elastic-runs is used."
    root = "/scratch/${USER}/hpc-elastic"
    yield f"run_root: {_text(facts.run_root)}" if facts.run_root else f"# run_root: {root}"
    scratch = "/local/${SLURM_JOB_ID}"
    yield (
        f"scratch: {_text(facts.scratch)}"
        if facts.scratch
        else f"# scratch: {scratch} # local to each node; else TMPDIR, else /tmp"
    )


def _network(facts: DraftFacts) -> Iterator[str]:
    seen = {} if facts.told is None else facts.told.values("interfaces", InterfacesSeen)
    advice = advise_interface(seen) if seen else None
    is_wrong = any(each.problem for each in seen.values())
    chosen = facts.interface if facts.interface and not is_wrong else advice
    names = sorted({one.name for each in seen.values() for one in each.found if one.name != "lo"})
    usual = {each.interface for each in seen.values()}
    must_say = chosen is not None and (chosen == facts.interface or usual != {chosen})
    yield ""
    if names:
        yield from _comment(f"Interfaces with an address: {', '.join(names)}.")
    if must_say:
        yield "network:"
        yield f"  interface: {_text(chosen or '')} # whose address agents publish"
        yield f"  nccl_socket_ifname: {_text(chosen or '')}"
        if facts.port_range:
            yield f"  port_range: [{facts.port_range[0]}, {facts.port_range[1]}] # must be open between nodes"
        return
    if facts.port_range:
        yield "network:"
        yield f"  port_range: [{facts.port_range[0]}, {facts.port_range[1]}] # must be open between nodes"
        return
    yield "# network:"
    yield f"#   interface: {chosen or 'ib0'} # default: the one that routes to the other nodes"
    yield "#   port_range: [20000, 32000] # must be open between nodes"


def _requeue(config: Mapping[str, str]) -> Iterator[str]:
    yield ""
    yield f"# JobRequeue is {config.get('JobRequeue', '?')}, PreemptMode {config.get('PreemptMode', '?')}. If users may"
    yield "# not call `scontrol requeue`, runs go on as another job: requeue: chain"


def _partitions(partitions: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield what each partition that is up allows to one job, as Slurm says it."""
    up = [each for each in partitions if each.get("State", "UP") == "UP" and each.get("PartitionName")]
    if not up:
        return
    yield ""
    yield "# What Slurm says that a partition allows. A limit here is told before sbatch is called; what is left out"
    yield "# is not checked, so keep what will stay true."
    yield "partitions:"
    for each in up[:_MOST_PARTITIONS]:
        keys = {**_times(each), **_sizes(each)}
        inner = ", ".join(f"{key}: {value}" for key, value in keys.items())
        is_default = " # the default one" if each.get("Default") == "YES" else ""
        yield f"  {_text(each['PartitionName'])}: {{{inner}}}{is_default}"


def _times(partition: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, key in (("DefaultTime", "default_time"), ("MaxTime", "max_time")):
        text = partition.get(name, "")
        try:
            if parse_duration(text).total_seconds() > 0:
                found[key] = _text(text)
        except ValueError:
            continue  # NONE, UNLIMITED, INFINITE
    return found


def _sizes(partition: Mapping[str, str]) -> dict[str, str]:
    found = {}
    least, most = partition.get("MinNodes", ""), partition.get("MaxNodes", "")
    bounds = {
        **({"min": least} if least.isdecimal() and int(least) > 1 else {}),
        **({"max": most} if most.isdecimal() and int(most) > 0 else {}),
    }
    if bounds:
        found["nodes"] = "{" + ", ".join(f"{name}: {number}" for name, number in bounds.items()) + "}"
    cpus, memory = partition.get("MaxCPUsPerNode", ""), partition.get("MaxMemPerNode", "")
    if cpus.isdecimal() and int(cpus) > 0:
        found["cpus_per_node"] = cpus
    if memory.isdecimal() and int(memory) > 0:
        found["memory_per_node"] = f"{memory}M"
    return found


def _text(text: str) -> str:
    """Return a text as YAML reads it back: in double quotes, unless it is a plain word."""
    is_plain = text.replace("-", "").replace("_", "").isalnum() and text.isascii() and text[0].isalpha()
    is_word = text.lower() not in ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
    return text if is_plain and is_word else json.dumps(text, ensure_ascii=False)


def _comment(text: str) -> Iterator[str]:
    from textwrap import wrap

    for line in wrap(printable_line(text), _WIDTH, break_long_words=False, break_on_hyphens=False):
        yield f"# {line}"
