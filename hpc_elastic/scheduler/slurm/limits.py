"""How long Slurm lets a job live that it ends: its own times between TERM and KILL, which a job's grace must fit."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hpc_elastic.errors import SchedulerError
from hpc_elastic.scheduler.slurm import commands
from hpc_elastic.scheduler.slurm.output import CommandOutput
from hpc_elastic.scheduler.slurm.runner import Runner, run_command
from hpc_elastic.scheduler.slurm.words import find_tip, slurm_words
from hpc_elastic.units import parse_duration

_SETTING = re.compile(r"^(\w+)\s*= ?(.*)$", re.M)
_FIELD = re.compile(r"(\w+)=(\S*)")
_MINUTES = re.compile(r"(\d{1,9})(?: min)?")
_QOS_FIELDS = 4
_SECONDS = re.compile(r"(\d{1,9})(?: sec)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopLimits:
    """The times of a cluster and of one of its partitions, in seconds; None where Slurm does not say.

    `kill_wait_s`: between TERM and KILL, of every job that is ended (KillWait). `preemption_s`: before that, for a job
    that is preempted in the partition, or in `qos` where QOSs preempt each other (GraceTime); None where its jobs are
    not preempted. `over_time_s`: beyond its time limit before it is ended (OverTimeLimit), infinite where that never
    happens.
    """

    kill_wait_s: int | None
    preemption_s: int | None
    partition: str
    over_time_s: float | None = None
    qos: str = ""


def find_stop_limits(
    partition: str | None, qos: str | None = None, *, timeout_s: float = 4.0, run: Runner = run_command
) -> StopLimits:
    """Ask the controller for the limits of a partition, None for the default one.

    Of several, as in `batch,long`, they are those of the one that kills a preempted job soonest: Slurm may take any.
    With preempt/qos the GraceTime of a partition means nothing, and accounting is asked for that of the QOS; which QOS
    a job gets that names none is not known.

    Raises:
        SchedulerError: Slurm does not answer.
    """
    environ = commands.query_environment(os.environ)
    config = parse_config(run(commands.config_command(), environ=environ, timeout_s=timeout_s))
    partitions = parse_partitions(run(commands.partitions_command(), environ=environ, timeout_s=timeout_s))
    names = partition.split(",") if partition else [None]
    limits = [_limits_of(name, find_partition(partitions, name), config) for name in names]
    if config.get("PreemptType") == "preempt/qos":
        return replace(limits[0], preemption_s=_ask_grace_of_qos(qos, config, environ, timeout_s, run), qos=qos or "")
    return min(limits, key=lambda each: math.inf if each.preemption_s is None else each.preemption_s)


def _ask_grace_of_qos(
    qos: str | None, config: Mapping[str, str], environ: Mapping[str, str], timeout_s: float, run: Runner
) -> int | None:
    """Return the GraceTime of a QOS that another one preempts; None if none does, or if accounting does not say."""
    if not qos:
        return None
    try:
        told = run(commands.qos_command(), environ=environ, timeout_s=timeout_s)
    except SchedulerError:
        return None
    rows = {row[0]: row for line in told.stdout.splitlines() if len(row := line.strip().split("|")) == _QOS_FIELDS}
    is_preempted = any(qos in victims.split(",") for _, victims, _, _ in rows.values())
    if told.returncode or qos not in rows or not is_preempted:
        return None
    mode = rows[qos][2].upper()
    is_off = (config.get("PreemptMode", "OFF") if mode in ("", "CLUSTER") else mode) == "OFF"
    try:
        return None if is_off else int(parse_duration(rows[qos][3]).total_seconds())
    except ValueError:
        return None


def _limits_of(name: str | None, found: Mapping[str, str], config: Mapping[str, str]) -> StopLimits:
    mode = found.get("PreemptMode", config.get("PreemptMode", "OFF"))
    is_preempted = config.get("PreemptType", "") not in ("", "(null)", "preempt/none") and mode != "OFF"
    return StopLimits(
        kill_wait_s=_seconds(config.get("KillWait", "")),
        preemption_s=_seconds(found.get("GraceTime", "")) if is_preempted else None,
        partition=found.get("PartitionName", name or ""),
        over_time_s=_over_time(found.get("OverTimeLimit", ""), config.get("OverTimeLimit", "")),
    )


def parse_config(output: CommandOutput) -> Mapping[str, str]:
    """Return the settings that `scontrol show config` prints.

    Raises:
        SchedulerError: the controller does not answer.
    """
    _check(output)
    return {name: value.strip() for name, value in _SETTING.findall(output.stdout)}


def parse_partitions(output: CommandOutput) -> list[Mapping[str, str]]:
    """Return the fields of each partition that `scontrol show partition --oneliner` prints.

    Raises:
        SchedulerError: the controller does not answer.
    """
    _check(output)
    return [dict(_FIELD.findall(line)) for line in output.stdout.splitlines() if line.startswith("PartitionName=")]


def find_partition(partitions: list[Mapping[str, str]], name: str | None) -> Mapping[str, str]:
    """Return a partition's fields, those of the default one without a name; none if it is not there."""
    for fields in partitions:
        if fields.get("PartitionName") == name or (name is None and fields.get("Default") == "YES"):
            return fields
    return {}


def _check(output: CommandOutput) -> None:
    if output.returncode:
        words = slurm_words(output.stderr)
        raise SchedulerError(f"scontrol does not answer: {words}", tip=find_tip(words))


def _over_time(of_partition: str, of_cluster: str) -> float | None:
    """Return a partition's limit, which goes before the cluster's: minutes, UNLIMITED, or NONE for none of its own."""
    for text in (of_partition, of_cluster):
        if text == "UNLIMITED":
            return float("inf")
        if match := _MINUTES.fullmatch(text):
            return 60.0 * int(match[1])
    return None


def _seconds(text: str) -> int | None:
    match = _SECONDS.fullmatch(text)
    return int(match[1]) if match else None
