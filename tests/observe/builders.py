"""Run directories with real records in them, made without a run."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.codec import to_json
from hpc_elastic.plan.launch_plan import LaunchPlan, SchedulerName, SignalsPlan, parse_plan
from hpc_elastic.rundir import store
from hpc_elastic.rundir.create import create_run_directory
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import (
    AllocationClaim,
    AttemptClaim,
    Endpoint,
    Event,
    FailureRecord,
    NodeResult,
    Request,
    RootCause,
    RunResultRecord,
    RunState,
    Spend,
    Submission,
    WorkerState,
    World,
    WorldNode,
    WorldRank,
    WorldRole,
)
from tests import plans

TIME = "2026-01-02T03:04:05.000006Z"
ENDPOINT = Endpoint(address="127.0.0.2", port=20000)


def make_plan(
    run_dir: Path | str,
    *,
    name: str = "digits",
    scheduler: SchedulerName = "slurm",
    grace_s: float = 60.0,
    max_restarts: int = 3,
) -> LaunchPlan:
    make = plans.make_plan if scheduler == "slurm" else plans.make_local_plan
    signals = SignalsPlan(notice="USR2", lead_s=120.0, grace_s=grace_s, restart_grace_s=5.0)
    plan = make(run=f"{name}-20260102-030405-abcd", name=name, run_dir=str(run_dir), created=TIME, signals=signals)
    return replace(plan, restart=replace(plan.restart, max_restarts=max_restarts))


def refuse_writes(patch: pytest.MonkeyPatch, root: str, number: int = errno.ENOSPC) -> None:
    """Have each write to a file below a folder fail with this error, as on a full disk."""
    really_write = os.write

    def write(descriptor: int, content: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{root}/"):
            raise OSError(number, os.strerror(number))
        return really_write(descriptor, content)

    patch.setattr(os, "write", write)


class RunBuilder:
    """A run directory that is written step by step, as a run would."""

    def __init__(
        self,
        root: Path,
        *,
        name: str = "digits",
        scheduler: SchedulerName = "slurm",
        grace_s: float = 60.0,
        max_restarts: int = 3,
    ) -> None:
        self.plan = make_plan(root, name=name, scheduler=scheduler, grace_s=grace_s, max_restarts=max_restarts)
        create_run_directory(str(root), job_yaml="name: digits\n", plan=self.plan, script="#!/bin/bash\n")
        self.layout = RunLayout(root)
        self.job_id = ""

    @classmethod
    def at(cls, root: Path, job_id: str) -> RunBuilder:
        """Return a builder for a run directory that something else made."""
        run = cls.__new__(cls)
        run.layout, run.job_id = RunLayout(root), job_id
        run.plan = parse_plan(Path(run.layout.plan).read_text())
        return run

    def submit(
        self,
        job_id: str = "42",
        *,
        foreground: bool = False,
        host: str = "login1",
        selected_by: Mapping[str, str] | None = None,
        bash_env: str | None = None,
    ) -> RunBuilder:
        self.job_id = job_id
        self._write(
            self.layout.submission,
            Submission(
                run=self.plan.run,
                name=self.plan.name,
                site=self.plan.site,
                scheduler=self.plan.scheduler,
                job_id=job_id,
                submitted=TIME,
                host=host,
                user="ada",
                foreground=foreground,
                selected_by=selected_by or {},
                bash_env=bash_env,
            ),
        )
        return self

    def start_script(self, output: str = "hpc_elastic: run directory\n") -> RunBuilder:
        Path(self.layout.script_output(self.job_id)).write_text(output)
        return self

    def allocate(
        self,
        number: int = 1,
        *,
        job_id: str | None = None,
        nodes: tuple[str, ...] = ("node1", "node2"),
        node: str | None = None,
        restart_count: int | None = None,
    ) -> RunBuilder:
        """Each one is another start of the job, unless its restart count says that it is not."""
        claim = AllocationClaim(
            run=self.plan.run,
            allocation=number,
            job_id=job_id or self.job_id,
            restart_count=number - 1 if restart_count is None else restart_count,
            array_task=None,
            nodes=nodes,
            node=node or nodes[0],
            host=node or nodes[0],
            head=ENDPOINT,
            time=TIME,
        )
        self._write(self.layout.allocation(number), claim)
        return self

    def open_attempt(
        self,
        number: int,
        *,
        reason: str = "first attempt",
        restarts: int = 0,
        roles: Mapping[str, int] | None = None,
        nodes: tuple[str, str] = ("node1", "node2"),
        node_losses: int = 0,
        allocation: int = 1,
        root_cause: RootCause | None = None,
        time: str = TIME,
    ) -> RunBuilder:
        """Two nodes with two workers each: of one role, or each of its own, and when that started.

        The first of the nodes is the head's.
        """
        started = roles or {"default": number}
        by_node = dict(zip(nodes, list(started) * 2, strict=False))
        claim = AttemptClaim(
            run=self.plan.run,
            attempt=number,
            allocation=allocation,
            predecessor=number - 1 or None,
            head=nodes[0],
            members=nodes,
            roles=tuple(role for role, attempt in started.items() if attempt == number),
            reason=reason,
            spend=Spend(restarts=restarts, node_losses=node_losses),
            root_cause=root_cause,
            time=time,
        )
        self._write(self.layout.claim(number), claim)
        world = World(
            run=self.plan.run,
            attempt=number,
            allocation=allocation,
            head=nodes[0],
            roles=tuple(
                WorldRole(
                    role=role,
                    size=4 // len(started),
                    restart="restart_role",
                    master=ENDPOINT,
                    master_node=nodes[0],
                    attempt=attempt,
                )
                for role, attempt in started.items()
            ),
            nodes=tuple(
                WorldNode(node=node, node_id=index, role=role, agent=ENDPOINT, first_rank=2 * index, workers=2)
                for index, (node, role) in enumerate(by_node.items())
            ),
            ranks=tuple(
                WorldRank(
                    rank=rank,
                    node=nodes[rank // 2],
                    local_rank=rank % 2,
                    role=by_node[nodes[rank // 2]],
                    role_rank=rank if roles is None else rank % 2,
                )
                for rank in range(4)
            ),
        )
        self._write(self.layout.world(number), world)
        return self

    def write_rank(self, attempt: int, rank: int, stdout: str, stderr: str = "") -> RunBuilder:
        Path(self.layout.rank(attempt, rank)).mkdir(parents=True, exist_ok=True)
        for path, text in ((self.layout.stdout(attempt, rank), stdout), (self.layout.stderr(attempt, rank), stderr)):
            with open(path, "a", encoding="utf-8") as file:
                file.write(text)
        return self

    def note(
        self, head: str, name: str, *nodes: str, attempt: int, allocation: int = 1, reason: str = "", time_ns: int = 1
    ) -> RunBuilder:
        """Write a head's event about each of these nodes."""
        for node in nodes:
            about = {"node": node, "reason": reason} if reason else {"node": node}
            self._note(
                head, name, f"{node} {name}", attempt=attempt, allocation=allocation, metadata=about, time_ns=time_ns
            )
        return self

    def fail_attempt(self, attempt: int, why: str, *, head: str = "node1", allocation: int = 1) -> RunBuilder:
        """Write a head's event that an attempt has failed, after which it makes ready the next one."""
        self._note(head, "attempt.failed", why, attempt=attempt, allocation=allocation, metadata={})
        return self

    def _note(
        self,
        head: str,
        name: str,
        message: str,
        *,
        attempt: int,
        allocation: int,
        metadata: Mapping[str, str],
        time_ns: int = 1,
    ) -> None:
        event = Event(
            time_ns=time_ns,
            run=self.plan.run,
            node=head,
            allocation=allocation,
            attempt=attempt,
            name=name,
            message=message,
            metadata=metadata,
        )
        store.append_line(self.layout.events(head), to_json(event))

    def end_allocation(self, allocation: int, reason: str, *, reservation: str | None = None) -> RunBuilder:
        """Write a head's line that an allocation has ended, after which the job is started again."""
        request = Request(
            kind="requeue", by="node1", time=TIME, allocation=allocation, reason=reason, reservation=reservation
        )
        store.append_line(self.layout.requests, to_json(request))
        return self

    def end_node(
        self,
        attempt: int,
        node: str = "node2",
        *failures: FailureRecord,
        state: WorkerState = WorkerState.FAILED,
        detail: str = "",
    ) -> RunBuilder:
        """Write a node's record of its part in an attempt."""
        record = NodeResult(
            run=self.plan.run,
            attempt=attempt,
            node=node,
            state=state,
            role="default",
            ranks=(2, 3) if node == "node2" else (0, 1),
            pids={},
            reason="",
            failures={str(failure.rank): failure for failure in failures},
            return_values={},
            detail=detail,
            started=TIME,
            ended=TIME,
        )
        self._write(self.layout.node_result(attempt, node), record)
        return self

    def write_error(
        self,
        attempt: int,
        rank: int,
        *,
        failure_class: str = "exception",
        message: str = "ValueError: no such batch",
        callstack: str = "",
        stderr_tail: str = "",
        time_ns: int = 1_767_323_060_000_000_000,
    ) -> RunBuilder:
        """Write a rank's error file, as the bootstrap or the agent does."""
        error = {
            "message": {"message": message, "extraInfo": {"py_callstack": callstack, "timestamp": "0"}},
            "format_version": 1,
            "class": failure_class,
            "exit_code": 1,
            "signal": None,
            "rank": rank,
            "local_rank": rank % 2,
            "pid": 4711,
            "node": f"node{1 + rank // 2}",
            "attempt": attempt,
            "time_ns": time_ns,
            "stderr_tail": stderr_tail,
        }
        self._write(self.layout.error(attempt, rank), error)
        return self

    def request_stop(self, reason: str | None = None) -> RunBuilder:
        store.append_line(
            self.layout.requests, to_json(Request(kind="stop", by="ada@login1", time=TIME, reason=reason))
        )
        return self

    def end(
        self,
        state: RunState = RunState.SUCCEEDED,
        *,
        exit_code: int = 0,
        reason: str = "succeeded",
        cause: str = "every rank exited 0",
        failures: Mapping[str, FailureRecord] | None = None,
        nodes: Sequence[str] = ("node1", "node2"),
        root_cause: RootCause | None = None,
        written_by: str = "node1",
        time: str = TIME,
        restarts: int | None = None,
    ) -> RunBuilder:
        attempts = store.list_numbers(self.layout.attempts)
        result = RunResultRecord(
            run=self.plan.run,
            state=state,
            exit_code=exit_code,
            reason=reason,
            cause=cause,
            attempts=len(attempts),
            restarts=max(0, len(attempts) - 1) if restarts is None else restarts,
            failures=failures or {},
            return_values={},
            nodes=tuple(nodes),
            started=TIME,
            ended=time,
            written_by=written_by,
            root_cause=root_cause,
        )
        store.claim(self.layout.result, to_json(result))
        return self

    def _write(self, path: str, record: Any) -> None:
        store.write_json(path, to_json(record))


def make_failure(rank: int, layout: RunLayout, *, attempt: int = 1, timestamp: float = 1.0) -> FailureRecord:
    return FailureRecord(
        rank=rank,
        local_rank=0,
        role="default",
        node="node2",
        attempt=attempt,
        pid=4711,
        exitcode=-9,
        signal_name="SIGKILL",
        error_file=layout.error(attempt, rank),
        message="killed by SIGKILL",
        timestamp=timestamp,
        failure_class="signal",
    )
