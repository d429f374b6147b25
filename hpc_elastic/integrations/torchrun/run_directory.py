"""Creates or finds the run directory that the torchruns of a step share; the functions block."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from hpc_elastic.api.identity import host_name, user_name
from hpc_elastic.codec import to_json
from hpc_elastic.errors import ExitCode, RunDirectoryError
from hpc_elastic.membership.authentication import SECRET_BYTES
from hpc_elastic.plan.launch_plan import LaunchPlan, dump_plan
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Submission

MOST_RUNS = 1000  # of torchrun, one after the other, in one step


@dataclass(frozen=True, slots=True, kw_only=True)
class EnteredRun:
    """A run that is not over: the plan and the secret that its nodes share."""

    plan: LaunchPlan
    secret: bytes


def enter_run(
    root: str, name: str, *, node: str, job_id: str, make_plan: Callable[[str, str], LaunchPlan]
) -> EnteredRun:
    """Make the run's directory, or find the one that another node has made; from then on this process makes none.

    A step may start torchrun again when it has ended: the runs after the first have `-2`, `-3` ... behind the name.

    Args:
        root: the folder of all runs, which every node of the step can access.
        name: the run's name.
        node: this node's name.
        job_id: the id of the scheduler's job.
        make_plan: makes the plan of a run from its name and directory.

    Raises:
        RunDirectoryError: it cannot be written.
    """
    for number in range(1, MOST_RUNS + 1):
        numbered = name if number == 1 else f"{name}-{number}"
        layout = RunLayout(os.path.join(root, numbered))
        if _is_over(layout, node):
            continue
        plan = make_plan(numbered, layout.root)
        store.may_make(layout.root)
        secret = _enter(layout, plan, job_id)
        store.never_make(layout.root)  # one that is moved away is not made again at its old place
        return EnteredRun(plan=plan, secret=secret)
    raise RunDirectoryError(f"{root} has {MOST_RUNS} runs of {name} already", tip="give another dir in --rdzv-conf")


def is_over_for(exit_code: int) -> bool:
    """Return whether an agent that leaves with this exit code has seen the run's end.

    If it has not, other nodes may go on with the run, or a new start of the job, whose nodes must find one directory.
    """
    return exit_code not in (ExitCode.NODE_LOST, ExitCode.NODES_MISSING, ExitCode.REQUEUE)


def leave_run(layout: RunLayout, node: str) -> None:
    """Note that this node has seen the run's end.

    NFS may hide another node's `result.json` for half a minute; a file that this node has written itself it finds at
    once.

    Raises:
        RunDirectoryError: it cannot be written.
    """
    store.write_bytes(layout.left(node), b"")


def _is_over(layout: RunLayout, node: str) -> bool:
    return os.path.exists(layout.result) or os.path.exists(layout.left(node))


def _enter(layout: RunLayout, plan: LaunchPlan, job_id: str) -> bytes:
    """Create the missing files and return the secret; of two nodes at the same time, one writes each file."""
    for folder in (layout.allocations, layout.nodes, layout.attempts):
        with store.file_system_errors(folder):
            store.make_directory(folder)
    store.claim_bytes(layout.secret, os.urandom(SECRET_BYTES))
    store.claim_bytes(layout.requests, b"")
    store.claim_bytes(layout.plan, dump_plan(plan).encode())
    submission = Submission(
        run=plan.run,
        name=plan.name,
        site=plan.site,
        scheduler=plan.scheduler,
        job_id=job_id,
        submitted=plan.created,
        host=host_name(),
        user=user_name(),
        foreground=True,  # the job is not ours to cancel
    )
    store.claim(layout.submission, to_json(submission))
    with store.file_system_errors(layout.secret, "read"), open(layout.secret, "rb") as file:
        secret = file.read()
    if len(secret) < SECRET_BYTES:
        raise RunDirectoryError(f"{layout.secret} holds {len(secret)} bytes, not {SECRET_BYTES}: remove the directory")
    return secret
