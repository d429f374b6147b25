"""Judges what the nodes answered, each check over all nodes; pure.

Every check gives at least one line: that all nodes are well, or for each thing that is wrong which nodes it is true
of. What several nodes say in the same words is one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hpc_elastic.doctor import judge_network
from hpc_elastic.doctor.probes.answers import (
    AllReduceSeen,
    FolderSeen,
    GpusSeen,
    LeftoversSeen,
    LimitsSeen,
    ProbeAnswer,
    ProbeRequest,
    PythonSeen,
    TorchSeen,
)
from hpc_elastic.doctor.results import CheckResult, Severity, by_text, name_nodes

LATE_CHECKS_DO = "look on the node, or leave it out: `sbatch: {exclude: ...}`"
SLOW_IMPORT_S = 30.0
LEAST_SCRATCH = 1 << 30
LEAST_OPEN_FILES = 1024
LEAST_LOCKED_MEMORY = 64 << 20
LEAST_SHARED_MEMORY = 64 << 20
_SLOW_STEP_MS = 2000.0
_SLOW_REDUCE_S = 1.0
Seen = TypeVar("Seen")
"""What a check found on a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswers:
    """The answers of all nodes.

    `sent` and `read` are the times of the machine that asks: before the job was started, and after each answer of a
    node was read.
    """

    nodes: tuple[str, ...]
    answers: tuple[ProbeAnswer, ...]
    sent: float
    read: Mapping[str, float]

    def of(self, check: str) -> dict[str, ProbeAnswer]:
        """Return the answers to one check, by node in their order."""
        found = {each.node: each for each in self.answers if each.check == check}
        return {node: found[node] for node in self.nodes if node in found}

    def values(self, check: str, kind: type[Seen]) -> dict[str, Seen]:
        """Return what a check found, by node; a node on which it could not be made is left out."""
        return {node: each.value for node, each in self.of(check).items() if isinstance(each.value, kind)}

    def name(self, nodes: Sequence[str]) -> str:
        """Return some of the nodes in words."""
        return name_nodes(nodes, len(self.nodes))


def judge_nodes(told: NodeAnswers, request: ProbeRequest, active_jobs: frozenset[str]) -> list[CheckResult]:
    """Return a line or more for each check.

    Args:
        told: what the nodes answered.
        request: what they were asked.
        active_jobs: of the jobs that processes on the nodes belong to, those that Slurm knows to run.
    """
    checks: Sequence[tuple[str, str, Callable[[], Iterator[CheckResult]]]] = (
        ("python", "", lambda: _judge_python(told)),
        ("run root", "run_root", lambda: _judge_run_root(told)),
        ("scratch", "scratch", lambda: _judge_scratch(told)),
        ("names", "network.hostname_transform", lambda: judge_network.judge_names(told)),
        ("interfaces", "network.interface", lambda: judge_network.judge_interfaces(told, request)),
        ("peers", "network.port_range", lambda: judge_network.judge_peers(told, request)),
        ("limits", "defaults.resources", lambda: _judge_limits(told, request)),
        ("gpus", "gpu_request", lambda: _judge_gpus(told, request)),
        ("leftovers", "", lambda: _judge_leftovers(told, active_jobs)),
        ("torch", "defaults.python", lambda: _judge_torch(told)),
        ("all-reduce", "network.interface", lambda: _judge_all_reduce(told)),
    )
    results: list[CheckResult] = []
    for check, key, judge in checks:
        results += _not_made(told, check, key)
        results += judge()
    return results


def _not_made(told: NodeAnswers, check: str, key: str) -> Iterator[CheckResult]:
    """Yield what nodes could not try, each problem once."""
    problems = {node: each.problem for node, each in told.of(check).items() if each.problem is not None}
    ended = told.of("end")
    missing = {node: "no answer" for node in ended if node not in told.of(check) and _is_due(told, check, node)}
    for problem, nodes in by_text({**problems, **missing}):
        yield CheckResult(
            check=check,
            verdict=Severity.FAIL,
            found=f"{told.name(nodes)}: {problem}",
            expected="an answer in time",
            action=LATE_CHECKS_DO,
            key=key,
            nodes=nodes,
        )


def _is_due(told: NodeAnswers, check: str, node: str) -> bool:
    """Return whether a node that has ended should have made this check: some are made only where others go well."""
    if check == "all-reduce":
        seen = told.values("torch", TorchSeen).get(node)
        return seen is not None and not seen.absent and seen.has_gloo
    return check != "names" or bool(told.of("names"))


def _judge_python(told: NodeAnswers) -> Iterator[CheckResult]:
    """Yield the nodes whose Python, or way to modules, is not that of most."""
    seen = told.values("python", PythonSeen)
    if not seen:
        return
    differing: set[str] = set()
    what: Sequence[tuple[str, Callable[[PythonSeen], str]]] = (
        ("PYTHONPATH", lambda each: each.python_path or "not set"),
        ("Python", lambda each: f"{each.version} at {each.executable}"),
        ("sys.prefix", lambda each: each.prefix),
        ("sys.path", lambda each: ":".join(each.search_path)),
    )
    for name, of in what:
        texts = by_text({node: of(each) for node, each in seen.items() if node not in differing})
        for text, nodes in texts[1:]:
            differing.update(nodes)
            yield CheckResult(
                check="python",
                verdict=Severity.FAIL,
                found=f"{told.name(nodes)}: {name} is {text}",
                expected=f"as on {told.name(texts[0][1])}: {texts[0][0]}",
                action="set it for all nodes, or find what sets it on this one (profile, prolog, module)",
                key="defaults.setup",
                nodes=nodes,
            )
    if not differing:
        first = next(iter(seen.values()))
        path = f", PYTHONPATH {first.python_path}" if first.python_path else ""
        yield _well("python", f"{told.name(tuple(seen))}: {first.version} at {first.executable}{path}")


def _judge_run_root(told: NodeAnswers) -> Iterator[CheckResult]:
    seen = told.values("run root", FolderSeen)
    yield from _folder_problems(told, "run root", seen, "run_root", "every node can write where runs go")
    well = {node: each for node, each in seen.items() if not each.problems}
    kinds = by_text({node: each.kind for node, each in well.items()})
    for kind, nodes in kinds[1:]:
        yield CheckResult(
            check="run root",
            verdict=Severity.WARN,
            found=f"{told.name(nodes)}: {next(iter(seen.values())).path} is {kind}",
            expected=f"as on {told.name(kinds[0][1])}: {kinds[0][0]}",
            action="name a folder that all nodes share",
            key="run_root",
            nodes=nodes,
        )
    slow = {node: f"{step} takes {ms / 1000:.1f} s" for node, (step, ms) in _slowest(well) if ms > _SLOW_STEP_MS}
    for text, nodes in by_text(slow):
        yield CheckResult(
            check="run root",
            verdict=Severity.WARN,
            found=f"{told.name(nodes)}: {text}",
            expected=f"at most {_SLOW_STEP_MS / 1000:g} s",
            action="name a folder on a quicker file system",
            key="run_root",
            nodes=nodes,
        )
    if well and len(well) == len(seen) and not slow:
        first = next(iter(well.values()))
        most_ms = max(ms for _, (_, ms) in _slowest(well))
        kind = f" ({first.kind})" if first.kind else ""
        yield _well("run root", f"{told.name(tuple(well))} write {first.path}{kind}, at most {most_ms:.0f} ms a step")


def _slowest(seen: Mapping[str, FolderSeen]) -> list[tuple[str, tuple[str, float]]]:
    return [(node, max(each.took_ms.items(), key=lambda item: item[1])) for node, each in seen.items() if each.took_ms]


def _folder_problems(
    told: NodeAnswers, check: str, seen: Mapping[str, FolderSeen], key: str, expected: str
) -> Iterator[CheckResult]:
    problems = {
        node: "; ".join(f"{step} in {each.path}: {why}" for step, why in each.problems.items())
        for node, each in seen.items()
        if each.problems
    }
    for problem, nodes in by_text(problems):
        yield CheckResult(
            check=check,
            verdict=Severity.FAIL,
            found=f"{told.name(nodes)}: {problem}",
            expected=expected,
            action="mend the mount on the node, or name another folder",
            key=key,
            nodes=nodes,
        )


def _judge_scratch(told: NodeAnswers) -> Iterator[CheckResult]:
    seen = told.values("scratch", FolderSeen)
    yield from _folder_problems(told, "scratch", seen, "scratch", "every node can write its scratch")
    well = {node: each for node, each in seen.items() if not each.problems}
    small = {node: f"{each.path} has {_size(each.free)} free" for node, each in well.items() if _is_small(each.free)}
    for text, nodes in by_text(small):
        yield CheckResult(
            check="scratch",
            verdict=Severity.WARN,
            found=f"{told.name(nodes)}: {text}",
            expected=f"{_size(LEAST_SCRATCH)} or more",
            action="free some, or name another folder",
            key="scratch",
            nodes=nodes,
        )
    if well and len(well) == len(seen) and not small:
        first = next(iter(well.values()))
        least = min((each.free for each in well.values() if each.free is not None), default=None)
        yield _well("scratch", f"{told.name(tuple(well))}: {first.path} ({first.kind or '?'}), {_size(least)} free")


def _is_small(free: int | None) -> bool:
    return free is not None and free < LEAST_SCRATCH


def _judge_limits(told: NodeAnswers, request: ProbeRequest) -> Iterator[CheckResult]:
    seen = told.values("limits", LimitsSeen)
    texts: dict[str, tuple[dict[str, str], str, str, str]] = {
        "cpus": (
            {
                node: f"{each.cpus} CPUs are usable"
                for node, each in seen.items()
                if request.cpus is not None and each.cpus < request.cpus
            },
            f"{request.cpus}, as asked for",
            "look at the cgroup and the affinity of steps",
            "defaults.resources.cpus_per_worker",
        ),
        "memory": (
            {
                node: f"memory is limited to {_size(each.memory)}"
                for node, each in seen.items()
                if request.memory is not None and each.memory < 0.9 * request.memory
            },
            f"{_size(request.memory)}, as asked for",
            "look at the cgroup of the step",
            "memory_request",
        ),
        "files": (
            {
                node: f"{each.open_files} open files"
                for node, each in seen.items()
                if each.open_files is not None and each.open_files < LEAST_OPEN_FILES
            },
            f"{LEAST_OPEN_FILES} or more",
            "raise it: `ulimit -n 65536`",
            "defaults.setup",
        ),
        "locked": (
            {
                node: f"{_size(each.locked_memory)} of locked memory, with an InfiniBand fabric"
                for node, each in seen.items()
                if each.has_fabric and each.locked_memory is not None and each.locked_memory < LEAST_LOCKED_MEMORY
            },
            "no limit: NCCL registers memory with the fabric",
            "raise it: `ulimit -l unlimited`; else slurmd's own limit must be raised",
            "defaults.setup",
        ),
        "shared": (
            {
                node: f"/dev/shm holds {_size(each.shared_memory)}"
                for node, each in seen.items()
                if each.shared_memory is not None and each.shared_memory < LEAST_SHARED_MEMORY
            },
            f"{_size(LEAST_SHARED_MEMORY)} or more, for data loaders and states in memory",
            "mount a larger one on the nodes",
            "",
        ),
    }
    is_well = True
    for found, expected, action, key in texts.values():
        for text, nodes in by_text(found):
            is_well = False
            yield CheckResult(
                check="limits",
                verdict=Severity.WARN,
                found=f"{told.name(nodes)}: {text}",
                expected=expected,
                action=action,
                key=key,
                nodes=nodes,
            )
    if seen and is_well:
        cpus, memory = (sorted({of(each) for each in seen.values()}) for of in (_cpus, _memory))
        yield _well("limits", f"{told.name(tuple(seen))}: {_range(cpus, str)} CPUs, {_range(memory, _size)} of memory")


def _cpus(seen: LimitsSeen) -> int:
    return seen.cpus


def _memory(seen: LimitsSeen) -> int:
    return seen.memory


def _range(values: Sequence[int], show: Callable[[int], str]) -> str:
    least, most = show(values[0]), show(values[-1])
    return least if least == most else f"{least} to {most}"


def _judge_gpus(told: NodeAnswers, request: ProbeRequest) -> Iterator[CheckResult]:
    seen = told.values("gpus", GpusSeen)
    if not seen:
        return
    counts = by_text({node: "?" if each.visible is None else str(each.visible) for node, each in seen.items()})
    if request.gpus:
        wrong = [(text, nodes) for text, nodes in counts if text != "?" and int(text) < request.gpus]
        for text, nodes in wrong:
            yield CheckResult(
                check="gpus",
                verdict=Severity.FAIL,
                found=f"{told.name(nodes)}: {text} GPUs are visible",
                expected=f"{request.gpus}, as asked for",
                action="compare `nvidia-smi -L` in a job with gres.conf, and how GPUs are asked for",
                key="gpu_request",
                nodes=nodes,
            )
        if wrong:
            return
    elif len(counts) > 1:
        yield CheckResult(
            check="gpus",
            verdict=Severity.WARN,
            found="; ".join(f"{told.name(nodes)}: {text}" for text, nodes in counts),
            expected="the same number on all nodes",
            action="ask for nodes of one kind: `sbatch: {constraint: ...}`",
            key="defaults.sbatch",
        )
        return
    text = "no tool says" if counts[0][0] == "?" else f"{counts[0][0]} visible"
    asked = f", {request.gpus} asked for" if request.gpus else ", none asked for"
    yield _well("gpus", f"{told.name(tuple(seen))}: {text}{asked}")


def _judge_leftovers(told: NodeAnswers, active_jobs: frozenset[str]) -> Iterator[CheckResult]:
    seen = told.values("leftovers", LeftoversSeen)
    left = {node: [each for each in found.processes if each.job_id not in active_jobs] for node, found in seen.items()}
    texts = {
        node: f"{len(each)} process{'es' if len(each) > 1 else ''} of {each[0].run_dir}, such as {each[0].pid}"
        for node, each in left.items()
        if each
    }
    for text, nodes in by_text(texts):
        yield CheckResult(
            check="leftovers",
            verdict=Severity.WARN,
            found=f"{told.name(nodes)}: {text}",
            expected="no process of a run whose job is over",
            action="end them on the node; they may hold GPUs, ports and /dev/shm",
            nodes=nodes,
        )
    if seen and not texts:
        yield _well("leftovers", f"{told.name(tuple(seen))}: no process of earlier runs")


def _judge_torch(told: NodeAnswers) -> Iterator[CheckResult]:
    seen = told.values("torch", TorchSeen)
    absent = {node: each.absent for node, each in seen.items() if each.absent}
    there = {node: each for node, each in seen.items() if not each.absent}
    if absent and not there:
        for text, nodes in by_text(absent):
            yield CheckResult(
                check="torch",
                verdict=Severity.SKIP,
                found=f"{told.name(nodes)}: {text}",
                action="name the training's Python to try it",
                key="defaults.python",
            )
        return
    for text, nodes in by_text(absent):
        yield CheckResult(
            check="torch",
            verdict=Severity.FAIL,
            found=f"{told.name(nodes)}: {text}",
            expected=f"torch as on {told.name(tuple(there))}",
            action="let all nodes see the same environment",
            key="defaults.python",
            nodes=nodes,
        )
    versions = by_text({node: f"torch {each.version} in {each.path}" for node, each in there.items()})
    for text, nodes in versions[1:]:
        yield CheckResult(
            check="torch",
            verdict=Severity.FAIL,
            found=f"{told.name(nodes)}: {text}",
            expected=f"as on {told.name(versions[0][1])}: {versions[0][0]}",
            action="let all nodes see the same environment",
            key="defaults.python",
            nodes=nodes,
        )
    slowest = max((each.import_s for each in there.values()), default=0.0)
    if slowest > SLOW_IMPORT_S:
        nodes = tuple(node for node, each in there.items() if each.import_s > SLOW_IMPORT_S)
        yield CheckResult(
            check="torch",
            verdict=Severity.WARN,
            found=f"{told.name(nodes)}: the import takes up to {slowest:.1f} s",
            expected=f"{SLOW_IMPORT_S:g} s or less",
            action="keep the environment on a quicker file system, or copy it to local scratch in setup",
            key="defaults.setup",
            nodes=nodes,
        )
    elif there and not absent and len(versions) == 1:
        yield _well("torch", f"{told.name(tuple(there))}: {versions[0][0]}, imported in {slowest:.1f} s")


def _judge_all_reduce(told: NodeAnswers) -> Iterator[CheckResult]:
    torch = told.values("torch", TorchSeen)
    if torch and all(each.absent or not each.has_gloo for each in torch.values()):
        why = "no torch" if all(each.absent for each in torch.values()) else "torch has no gloo"
        yield CheckResult(check="all-reduce", verdict=Severity.SKIP, found=f"not tried: {why}")
        return
    seen = told.values("all-reduce", AllReduceSeen)
    for text, nodes in by_text({node: each.error or each.skipped for node, each in seen.items()}):
        if text:
            yield CheckResult(
                check="all-reduce",
                verdict=Severity.FAIL,
                found=f"{told.name(nodes)}: {text}",
                expected="a sum over all nodes by gloo",
                action="see what is said of names, interfaces and peers",
                key="network.interface",
                nodes=nodes,
            )
    well = {node: each for node, each in seen.items() if not each.error and not each.skipped}
    if well and len(well) == len(seen):
        slowest = max(each.took_s for each in well.values())
        names = ", ".join(sorted({each.interface for each in well.values() if each.interface})) or "?"
        is_slow = slowest > _SLOW_REDUCE_S
        yield CheckResult(
            check="all-reduce",
            verdict=Severity.WARN if is_slow else Severity.OK,
            found=f"{told.name(tuple(well))}: 1 MiB over {names} in {1000 * slowest:.0f} ms",
            expected=f"{_SLOW_REDUCE_S:g} s or less" if is_slow else "",
            action="name a faster interface" if is_slow else "",
            key="network.interface" if is_slow else "",
        )


def _size(number: int | None) -> str:
    if number is None:
        return "an unknown size"
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number / 1024:.0f} KiB"


def _well(check: str, found: str) -> CheckResult:
    return CheckResult(check=check, verdict=Severity.OK, found=found)
