"""Judges what the nodes answered, each check over all nodes; pure.

Every check gives at least one line: that all nodes are well, or for each thing that is wrong which nodes it is true
of. What several nodes say in the same words is one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpc_elastic.doctor import judge_network, judge_software
from hpc_elastic.doctor.probes.answers import (
    FolderSeen,
    GpusSeen,
    LeftoversSeen,
    LimitsSeen,
    ProbeRequest,
    TorchSeen,
)
from hpc_elastic.doctor.results import CheckResult, Severity, by_text, passed
from hpc_elastic.doctor.told import NodeAnswers

LATE_CHECKS_DO = "look on the node, or leave it out: `sbatch: {exclude: ...}`"
LEAST_SCRATCH = 1 << 30
LEAST_OPEN_FILES = 1024
LEAST_LOCKED_MEMORY = 64 << 20
LEAST_SHARED_MEMORY = 64 << 20
_MOST_OF = 0.9  # the kernel and Slurm keep some memory of a node
_SLOW_STEP_MS = 2000.0


def judge_nodes(told: NodeAnswers, request: ProbeRequest, active_jobs: frozenset[str]) -> list[CheckResult]:
    """Return a line or more for each check.

    Args:
        told: what the nodes answered.
        request: what they were asked.
        active_jobs: of the jobs that processes on the nodes belong to, those that Slurm knows to run.
    """
    checks: Sequence[tuple[str, str, Callable[[], Iterator[CheckResult]]]] = (
        ("python", "", lambda: judge_software.judge_python(told)),
        ("run root", "run_root", lambda: _judge_run_root(told)),
        ("scratch", "scratch", lambda: _judge_scratch(told)),
        ("names", "network.hostname_transform", lambda: judge_network.judge_names(told)),
        ("interfaces", "network.interface", lambda: judge_network.judge_interfaces(told, request)),
        ("peers", "network.port_range", lambda: judge_network.judge_peers(told, request)),
        ("limits", "defaults.resources", lambda: _judge_limits(told, request)),
        ("gpus", "gpu_request", lambda: _judge_gpus(told, request)),
        ("leftovers", "", lambda: _judge_leftovers(told, active_jobs)),
        ("torch", "defaults.python", lambda: judge_software.judge_torch(told)),
        ("all-reduce", "network.interface", lambda: judge_software.judge_all_reduce(told)),
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
        yield passed("run root", f"{told.name(tuple(well))} write {first.path}{kind}, at most {most_ms:.0f} ms a step")


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
    small = {
        node: f"{each.path} has {_size(each.free)} free"
        for node, each in well.items()
        if _is_below(each.free, LEAST_SCRATCH)
    }
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
        yield passed("scratch", f"{told.name(tuple(well))}: {first.path} ({first.kind or '?'}), {_size(least)} free")


def _judge_limits(told: NodeAnswers, request: ProbeRequest) -> Iterator[CheckResult]:
    seen = told.values("limits", LimitsSeen)
    is_well = True
    for limit in _limits(request):
        low = {node: limit.words(each) for node, each in seen.items() if limit.is_low(each)}
        for text, nodes in by_text(low):
            is_well = False
            yield CheckResult(
                check="limits",
                verdict=Severity.WARN,
                found=f"{told.name(nodes)}: {text}",
                expected=limit.expected,
                action=limit.action,
                key=limit.key,
                nodes=nodes,
            )
    if seen and is_well:
        cpus, memory = (sorted({of(each) for each in seen.values()}) for of in (_cpus, _memory))
        yield passed("limits", f"{told.name(tuple(seen))}: {_range(cpus, str)} CPUs, {_range(memory, _size)} of memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    """A limit of steps that may be too low, how that is said, and what to do."""

    is_low: Callable[[LimitsSeen], bool]
    words: Callable[[LimitsSeen], str]
    expected: str
    action: str
    key: str = ""


def _limits(request: ProbeRequest) -> Iterator[_Limit]:
    yield _Limit(
        is_low=lambda seen: request.cpus is not None and seen.cpus < request.cpus,
        words=lambda seen: f"{seen.cpus} CPUs are usable",
        expected=f"{request.cpus}, as asked for",
        action="look at the cgroup and the affinity of steps",
        key="defaults.resources.cpus_per_worker",
    )
    yield _Limit(
        is_low=lambda seen: request.memory is not None and seen.memory < _MOST_OF * request.memory,
        words=lambda seen: f"memory is limited to {_size(seen.memory)}",
        expected=f"{_size(request.memory)}, as asked for",
        action="look at the cgroup of the step",
        key="memory_request",
    )
    yield _Limit(
        is_low=lambda seen: _is_below(seen.open_files, LEAST_OPEN_FILES),
        words=lambda seen: f"{seen.open_files} open files",
        expected=f"{LEAST_OPEN_FILES} or more",
        action="raise it: `ulimit -n 65536`",
        key="defaults.setup",
    )
    yield _Limit(
        is_low=lambda seen: seen.has_fabric and _is_below(seen.locked_memory, LEAST_LOCKED_MEMORY),
        words=lambda seen: f"{_size(seen.locked_memory)} of locked memory, with an InfiniBand fabric",
        expected="no limit: NCCL registers memory with the fabric",
        action="raise it: `ulimit -l unlimited`; else slurmd's own limit must be raised",
        key="defaults.setup",
    )
    yield _Limit(
        is_low=lambda seen: _is_below(seen.shared_memory, LEAST_SHARED_MEMORY),
        words=lambda seen: f"/dev/shm holds {_size(seen.shared_memory)}",
        expected=f"{_size(LEAST_SHARED_MEMORY)} or more, for data loaders and states in memory",
        action="mount a larger one on the nodes",
    )


def _is_below(value: int | None, least: int) -> bool:
    """Return whether there is a limit, and a lower one."""
    return value is not None and value < least


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
    yield passed("gpus", f"{told.name(tuple(seen))}: {text}{asked}")


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
        yield passed("leftovers", f"{told.name(tuple(seen))}: no process of earlier runs")


def _size(number: int | None) -> str:
    if number is None:
        return "an unknown size"
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number / 1024:.0f} KiB"
