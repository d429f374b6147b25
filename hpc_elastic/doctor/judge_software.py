"""Judges whether all nodes run the same Python and torch, how soon, and whether torch can add up over them; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hpc_elastic.doctor.probes.answers import AllReduceSeen, PythonSeen, TorchSeen
from hpc_elastic.doctor.results import CheckResult, Severity, by_text, passed
from hpc_elastic.doctor.told import NodeAnswers

SLOW_IMPORT_S = 30.0
_SLOW_REDUCE_S = 1.0


def judge_python(told: NodeAnswers) -> Iterator[CheckResult]:
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
        yield passed("python", f"{told.name(tuple(seen))}: {first.version} at {first.executable}{path}")


def judge_torch(told: NodeAnswers) -> Iterator[CheckResult]:
    """Yield the nodes whose torch is missing or another one, or slow to import; no torch anywhere is no fault."""
    seen = told.values("torch", TorchSeen)
    absent = by_text({node: each.absent for node, each in seen.items() if each.absent})
    there = {node: each for node, each in seen.items() if not each.absent}
    if not there:
        for text, nodes in absent:
            yield CheckResult(
                check="torch",
                verdict=Severity.SKIP,
                found=f"{told.name(nodes)}: {text}",
                action="name the training's Python to try it",
                key="defaults.python",
            )
        return
    versions = by_text({node: f"torch {each.version} in {each.path}" for node, each in there.items()})
    for text, nodes in (*absent, *versions[1:]):
        yield CheckResult(
            check="torch",
            verdict=Severity.FAIL,
            found=f"{told.name(nodes)}: {text}",
            expected=f"as on {told.name(versions[0][1])}: {versions[0][0]}",
            action="let all nodes see the same environment",
            key="defaults.python",
            nodes=nodes,
        )
    slowest = max(each.import_s for each in there.values())
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
    elif not absent and len(versions) == 1:
        yield passed("torch", f"{told.name(tuple(there))}: {versions[0][0]}, imported in {slowest:.1f} s")


def judge_all_reduce(told: NodeAnswers) -> Iterator[CheckResult]:
    """Yield what came of the sum over all nodes."""
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
