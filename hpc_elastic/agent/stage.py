"""The program that copies an environment to a node's own disk before its agent starts, and then becomes the agent.

    PYTHON launch.py hpc_elastic.agent.stage RUN_DIR            prints the fingerprint of the source
    PYTHON launch.py hpc_elastic.agent.stage RUN_DIR KEY COMMAND...

Theory of operation. The batch script asks once for the fingerprint, so that a folder of many files is walked by one
node and not by all. Each node then makes its copy, or finds one, and becomes the command, which is the agent or what
starts it in an image. The file system of the source may hang: so the work is done by a child, which is left behind when
its time is over. A copy that cannot be made is no error here: the agent starts by the Python of this program, and is
told why, so that its node counts as unhealthy.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence

from hpc_elastic.agent.node.staged_copy import StageError, copy_name, fingerprint, make_copy, open_lock
from hpc_elastic.errors import ExitCode, FileSystemError, HpcElasticError
from hpc_elastic.plan.launch_plan import LaunchPlan, StagePlan, parse_plan
from hpc_elastic.plan.references import BadReferenceError, expand_references
from hpc_elastic.printable import printable_line
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.stage_variables import IN_STAGE, PROBLEM_VARIABLE, STAGE_VARIABLE, STAGED_VARIABLE

_PIPE_BYTES = 65536


def main(arguments: Sequence[str]) -> int:
    """Print the fingerprint, or become the command; return an exit code if neither is possible."""
    if not arguments or len(arguments) == 2:
        print("usage: launch.py hpc_elastic.agent.stage RUN_DIR [KEY COMMAND...]", file=sys.stderr)
        return int(ExitCode.USAGE)
    try:
        stage = _read_plan(arguments[0]).stage
    except HpcElasticError as error:
        print(f"hpc_elastic: {printable_line(error.message)}", file=sys.stderr)
        return int(error.exit_code)
    if stage is None:
        print("hpc_elastic: the plan has no stage", file=sys.stderr)
        return int(ExitCode.USAGE)
    if len(arguments) == 1:
        return _print_key(stage)
    command = list(arguments[2:])
    try:
        path, line = stage_here(stage, arguments[1])
        os.environ[STAGE_VARIABLE], os.environ[STAGED_VARIABLE] = path, line
        command[0] = _find_program(command[0])
    except StageError as error:
        os.environ[PROBLEM_VARIABLE] = printable_line(str(error))
        if command[0] != "bash":  # the agent's Python may be the very thing that could not be staged
            command[0] = sys.executable
    try:
        os.execv(shutil.which(command[0]) or command[0], command)
    except OSError as error:
        print(f"hpc_elastic: cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return int(ExitCode.SETUP)


def stage_here(stage: StagePlan, key: str) -> tuple[str, str]:
    """Return the path of the copy on this node, and a line that says what it took.

    Args:
        stage: what is copied.
        key: the fingerprint of the source; empty if nobody could find it out.

    Raises:
        StageError: there can be no copy.
    """
    began = time.monotonic()
    try:
        source, target = (expand_references(text, os.environ) for text in (stage.source, stage.target))
    except BadReferenceError as error:
        raise StageError(str(error)) from error
    key = key or _within(stage.timeout_s, lambda: fingerprint(source), f"cannot read {source}")
    lock = open_lock(source, target, key)  # kept open by what this process becomes
    left = stage.timeout_s - (time.monotonic() - began)
    try:
        was_there = _within(left, lambda: json.dumps(make_copy(source, target, key, lock)[1]), f"cannot copy {source}")
    except StageError:
        os.close(lock)  # another job may have better luck
        raise
    path = os.path.join(target, copy_name(source, key))
    took = time.monotonic() - began
    return path, f"{'found' if json.loads(was_there) else 'copied'} {source} at {path} in {took:.1f} s"


def _within(seconds: float, work: Callable[[], str], what: str) -> str:
    """Return what the work returns, done by a child that is left behind if it does not end in time.

    Raises:
        StageError: the work raised it, or its time is over.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        with contextlib.suppress(BaseException):
            os.write(writer, _outcome(work))
        os._exit(0)
    os.close(writer)
    with contextlib.suppress(OSError):  # whoever of the two comes first
        os.setpgid(pid, pid)
    ready, _, _ = select.select([reader], [], [], max(0.0, seconds))
    told = os.read(reader, _PIPE_BYTES) if ready else b""
    os.close(reader)
    if not told:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        ended = "its process was killed" if ready else f"not done within {seconds:g} s"
        raise StageError(f"{what}: {ended}")
    os.waitpid(pid, 0)
    outcome = json.loads(told)
    if outcome["problem"]:
        raise StageError(outcome["problem"])
    return str(outcome["value"])


def _outcome(work: Callable[[], str]) -> bytes:
    outcome = {"value": "", "problem": ""}
    try:
        outcome["value"] = work()
    except StageError as error:
        outcome["problem"] = str(error)[:1000] or "it failed"
    except Exception as error:  # whatever it is, the node is named with it
        outcome["problem"] = f"{type(error).__name__}: {error}"[:1000]
    return json.dumps(outcome).encode()


def _print_key(stage: StagePlan) -> int:
    """Print the fingerprint; nothing if it cannot be found out, for then each node says why."""
    try:
        source = expand_references(stage.source, os.environ)
        print(_within(stage.timeout_s, lambda: fingerprint(source), f"cannot read {source}"))
    except (StageError, BadReferenceError) as error:
        print(f"hpc_elastic: stage: {printable_line(str(error))}", file=sys.stderr)
    return 0


def _find_program(program: str) -> str:
    """Return the agent's Python, which may be in the copy.

    Raises:
        StageError: the copy does not have it.
    """
    if program.startswith(IN_STAGE):
        program = os.environ[STAGE_VARIABLE] + program.removeprefix(IN_STAGE)
    if os.sep in program and not os.access(program, os.X_OK):
        raise StageError(f"there is no program {program} in the copy")
    return program


def _read_plan(run_dir: str) -> LaunchPlan:
    path = RunLayout(run_dir).plan
    try:
        with open(path, encoding="utf-8") as file:
            return parse_plan(file.read())
    except OSError as error:
        raise FileSystemError(f"cannot read {path}: {error.strerror}") from error
