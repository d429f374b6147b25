"""What the nodes of a real Slurm answered, from `captured/`; `python -m tests.doctor.record` makes it anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpc_elastic.codec import from_json
from hpc_elastic.doctor.judge_nodes import judge_nodes
from hpc_elastic.doctor.probes.answers import VALUES, ProbeAnswer, ProbeRequest
from hpc_elastic.doctor.results import CheckResult, Severity
from hpc_elastic.doctor.told import NodeAnswers
from hpc_elastic.scheduler.slurm.output import CommandOutput

CAPTURED = Path(__file__).parent / "captured"
SETTINGS = sorted(path.stem for path in CAPTURED.glob("settings-*.json"))


def told(case: str) -> tuple[NodeAnswers, ProbeRequest]:
    """What was answered, and what was asked."""
    data = json.loads((CAPTURED / f"{case}.json").read_text())
    answers = []
    for each in data["answers"]:
        answer = from_json(ProbeAnswer, each)
        shape = VALUES[answer.check]
        value = None if shape is None or answer.value is None else from_json(shape, answer.value)
        answers.append(replace(answer, value=value))
    nodes = NodeAnswers(nodes=tuple(data["nodes"]), answers=tuple(answers), sent=data["sent"], read=data["read"])
    return nodes, from_json(ProbeRequest, data["request"])


def changed(told: NodeAnswers, check: str, change: Callable[[Any], Any], *nodes: str) -> NodeAnswers:
    """The same with other values of one check on these nodes, or on all."""
    answers = tuple(
        replace(each, value=change(each.value)) if each.check == check and each.node in (nodes or told.nodes) else each
        for each in told.answers
    )
    return replace(told, answers=answers)


def without(told: NodeAnswers, *nodes: str, check: str = "") -> NodeAnswers:
    """The same without the answers of these nodes, or without those to one check."""
    kept = [each for each in told.answers if each.node not in nodes or (check and each.check != check)]
    return replace(told, answers=tuple(kept))


def judged(told: NodeAnswers, request: ProbeRequest, *, active: str = "") -> dict[str, list[CheckResult]]:
    """The lines that are not ok, by check."""
    found: dict[str, list[CheckResult]] = {}
    for each in judge_nodes(told, request, frozenset(active.split())):
        if each.verdict is not Severity.OK:
            found.setdefault(each.check, []).append(each)
    return found


def settings(case: str) -> dict[str, CommandOutput]:
    """What scontrol printed of a cluster and of its partitions."""
    data = json.loads((CAPTURED / f"{case}.json").read_text())
    return {name: CommandOutput(**each) for name, each in data.items()}
