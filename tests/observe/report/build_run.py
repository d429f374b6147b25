"""Run directories for reports, written at once: any number of nodes, attempts and faults."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import utc_text
from tests.observe.builders import RunBuilder

BEGIN = 1_790_000_000.0
ATTEMPT_S = 600.0


@dataclass(frozen=True)
class Fault:
    """A rank that fails in the attempt of this number, counted from 1; `is_lost`: with its whole node."""

    node: int
    message: str
    is_lost: bool = False


def build_run(
    root: Path, *, nodes: int, workers: int = 8, faults: Sequence[Fault] = (), spares: int = 0, samples: int = 12
) -> RunLayout:
    """Write a run in which each fault ends an attempt, and that succeeds after the last one."""
    run = RunBuilder(root).submit("42")
    layout = run.layout
    names = [f"node{number:03d}" for number in range(nodes + spares)]
    at_work, waiting = names[:nodes], names[nodes:]
    _write(layout.allocation(1), _claim(names, BEGIN))
    events = [_event(BEGIN + 3, 0, "node.joined", name, node=name) for name in names]
    steps_done = 0
    for number in range(1, len(faults) + 2):
        opened = BEGIN + 20 + (number - 1) * ATTEMPT_S
        cause = f"rank {faults[number - 2].node * workers} failed: {faults[number - 2].message}" if number > 1 else ""
        _write_attempt(layout, number, opened, at_work, workers, cause)
        events.append(_event(opened, number, "attempt.opened", "opened"))
        events.append(_event(opened + 8, number, "attempt.started", "started"))
        end = opened + ATTEMPT_S - 15
        for index, name in enumerate(at_work):
            _write_samples(layout, name, number, opened + 10, end, index, workers, steps_done, samples)
        if number > len(faults):
            _write(layout.result, _result(end, number, at_work))
            continue
        fault = faults[number - 1]
        name, rank = at_work[fault.node], fault.node * workers
        if fault.is_lost:
            events.append(_event(end, number, "node.lost", f"{name} lost", node=name))
            if waiting:
                at_work[fault.node] = waiting.pop(0)
        else:
            _write(layout.node_result(number, name), _node_result(name, number, rank, end, fault.message))
            _write(
                layout.error(number, rank),
                {"message": {"message": fault.message, "extraInfo": {"py_callstack": STACK}}},
            )
        events.append(_event(end + 0.5, number, "attempt.failed", fault.message))
        steps_done += 200
    _append(layout.events("node000"), events)
    return layout


STACK = 'Traceback (most recent call last):\n  File "train.py", line 88, in step\n    loss.backward()\nRuntimeError\n'


def _claim(names: Sequence[str], at: float) -> dict[str, Any]:
    return {
        "format_version": 1,
        "run": "r",
        "allocation": 1,
        "job_id": "42",
        "restart_count": 0,
        "array_task": None,
        "nodes": list(names),
        "node": names[0],
        "host": names[0],
        "head": {"address": "a", "port": 1},
        "time": utc_text(at),
    }


def _event(at: float, attempt: int, name: str, message: str, **metadata: str) -> dict[str, Any]:
    return {
        "format_version": 1,
        "time_ns": int(at * 1e9),
        "run": "r",
        "node": "node000",
        "allocation": 1,
        "attempt": attempt,
        "name": name,
        "message": message,
        "source": None,
        "metadata": metadata,
    }


def _write_attempt(layout: RunLayout, number: int, at: float, nodes: Sequence[str], workers: int, cause: str) -> None:
    claim = {
        "format_version": 1,
        "run": "r",
        "attempt": number,
        "allocation": 1,
        "predecessor": number - 1 or None,
        "head": "node000",
        "members": list(nodes),
        "roles": ["default"],
        "reason": cause,
        "spend": {"restarts": number - 1, "node_losses": 0},
        "time": utc_text(at),
    }
    _write(layout.claim(number), claim)
    world = {
        "roles": [{"role": "default", "size": len(nodes) * workers, "attempt": number}],
        "nodes": [
            {"node": name, "first_rank": index * workers, "workers": workers} for index, name in enumerate(nodes)
        ],
        "ranks": [{"rank": rank, "node": nodes[rank // workers]} for rank in range(len(nodes) * workers)],
    }
    _write(layout.world(number), world)


def _write_samples(
    layout: RunLayout,
    node: str,
    attempt: int,
    begin: float,
    end: float,
    index: int,
    workers: int,
    base: int,
    count: int,
) -> None:
    lines = []
    for number in range(count):
        at = begin + (end - begin) * number / max(1, count - 1)
        step = max(0, base - 60 + int(at - begin) // 2 - (40 if index == 1 else 0))
        line = {
            "format_version": 1,
            "time_ns": int(at * 1e9),
            "run": "r",
            "node": node,
            "attempt": attempt,
            "cpu_percent": 40 + (number * 7 + index) % 30,
            "load": 4.0,
            "memory_used": (40 + number) << 30,
            "memory_total": 256 << 30,
            "disk_read": 2e8,
            "disk_written": 1e6 * (number % 3),
            "network_received": 4e8,
            "network_sent": 4e8,
            "workers_cpu_percent": 700.0,
            "workers_memory": 60 << 30,
            "gpus": [{"index": 0, "busy_percent": 93.0 - index % 9, "memory_used": 60 << 30, "memory_total": 80 << 30}],
            "ranks": [{"rank": index * workers + local, "step": step, "age_s": 0.4} for local in range(workers)],
        }
        lines.append(line)
    _append(layout.samples(node), lines)


def _node_result(node: str, attempt: int, rank: int, at: float, message: str) -> dict[str, Any]:
    failure = {"node": node, "timestamp": at, "class": "exception", "message": message, "rank": rank, "exitcode": 1}
    return {"node": node, "attempt": attempt, "state": "FAILED", "failures": {str(rank): failure}}


def _result(at: float, attempts: int, nodes: Sequence[str]) -> dict[str, Any]:
    return {
        "format_version": 1,
        "run": "r",
        "state": "SUCCEEDED",
        "exit_code": 0,
        "reason": "succeeded",
        "cause": "every rank exited 0",
        "attempts": attempts,
        "restarts": attempts - 1,
        "failures": {},
        "return_values": {},
        "nodes": list(nodes),
        "started": utc_text(BEGIN),
        "ended": utc_text(at),
        "written_by": nodes[0],
    }


def _write(path: str, value: object) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(value, indent=1))


def _append(path: str, lines: Sequence[object]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)
