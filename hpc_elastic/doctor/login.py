"""Tries what runs need of the login node: Slurm's answers, and the folder in which run directories are made."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hpc_elastic.api.stop_limits import partition_and_qos, short_limits
from hpc_elastic.codec import DecodeError, from_json
from hpc_elastic.doctor.judge_slurm import judge_settings
from hpc_elastic.doctor.probes import folder
from hpc_elastic.doctor.probes.answers import FolderSeen
from hpc_elastic.doctor.probes.bounded import LateError, answer_within, run_program
from hpc_elastic.doctor.results import CheckResult, Severity
from hpc_elastic.errors import SchedulerError
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.scheduler.slurm import commands
from hpc_elastic.scheduler.slurm.limits import find_stop_limits, parse_config, parse_partitions
from hpc_elastic.scheduler.slurm.output import CommandOutput
from hpc_elastic.scheduler.slurm.runner import Runner, run_command

SLURM_ANSWERS_S = 10.0
FOLDER_ANSWERS_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSeen:
    """What Slurm says of itself; empty where there is none, `is_silent` where it does not answer."""

    config: Mapping[str, str] = field(default_factory=dict)
    partitions: Sequence[Mapping[str, str]] = ()
    results: tuple[CheckResult, ...] = ()
    is_silent: bool = False


def examine_slurm(plan: LaunchPlan, run: Runner = run_command) -> SlurmSeen:
    """Ask Slurm for its settings and judge them."""
    answers: dict[tuple[str, ...], CommandOutput] = {}

    def ask_once(
        command: Sequence[str], *, environ: Mapping[str, str], timeout_s: float, cwd: str | None = None
    ) -> CommandOutput:
        key = tuple(command)
        if key not in answers:
            answers[key] = run(command, environ=environ, timeout_s=timeout_s, cwd=cwd)
        return answers[key]

    environ = commands.query_environment(os.environ)
    try:
        limits = find_stop_limits(*partition_and_qos(plan), timeout_s=SLURM_ANSWERS_S, run=ask_once)
        config = parse_config(ask_once(commands.config_command(), environ=environ, timeout_s=SLURM_ANSWERS_S))
        partitions = parse_partitions(
            ask_once(commands.partitions_command(), environ=environ, timeout_s=SLURM_ANSWERS_S)
        )
    except SchedulerError as error:
        failed = CheckResult(
            check="slurm",
            verdict=Severity.FAIL,
            found=error.message,
            expected=f"its settings within {SLURM_ANSWERS_S:g} s",
            action=error.tip or "try `scontrol show config`",
        )
        return SlurmSeen(results=(failed,), is_silent=error.is_silence or error.is_lasting)
    results = tuple(judge_settings(config, limits, plan, short_limits(plan, limits)))
    return SlurmSeen(config=config, partitions=partitions, results=results)


def examine_run_root(path: str, *, within_s: float = FOLDER_ANSWERS_S) -> FolderSeen:
    """Make the folder of run directories if there is none, and try it in a process of its own."""
    try:
        answer_within(lambda: os.makedirs(path, exist_ok=True), within_s)
        name = f".hpc-elastic-doctor-{os.getpid()}"
        returncode, said = run_program([sys.executable, "-I", "-S", folder.__file__, path, name], within_s)
        if returncode:
            return FolderSeen(path=path, problems={"start": f"the program that tries it ended with {returncode}"})
        return from_json(FolderSeen, {"path": path, **json.loads(said)})
    except LateError as late:
        return FolderSeen(path=path, problems={"write": str(late)})
    except OSError as error:
        return FolderSeen(path=path, problems={"make": error.strerror or str(error)})
    except (ValueError, DecodeError) as error:
        return FolderSeen(path=path, problems={"start": f"the program that tries it printed {error}"})


def judge_run_root(seen: FolderSeen, *, is_shared: bool) -> Iterator[CheckResult]:
    """Yield what works in the folder of run directories on this machine, which other machines may have to share."""
    if seen.problems:
        what = "; ".join(f"{step}: {why}" for step, why in seen.problems.items())
        yield CheckResult(
            check="run root",
            verdict=Severity.FAIL,
            found=f"{seen.path}: {what}",
            expected="a folder where files can be created, appended to and renamed",
            action="name another folder",
            key="run_root",
        )
        return
    most_ms = max(seen.took_ms.values(), default=0.0)
    is_local = is_shared and seen.kind in ("tmpfs", "ramfs")
    found = f"{seen.path} ({seen.kind or '?'}), at most {most_ms:.0f} ms a step"
    yield CheckResult(
        check="run root",
        verdict=Severity.WARN if is_local else Severity.OK,
        found=found,
        expected="a folder that all nodes share" if is_local else "",
        action="name one that nodes see too" if is_local else "",
        key="run_root" if is_local else "",
    )
