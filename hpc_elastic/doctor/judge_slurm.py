"""Judges the settings of a Slurm that matter to runs, from what `scontrol show config` prints; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from hpc_elastic.doctor.results import CheckResult, Severity
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.scheduler.slurm.limits import StopLimits

OLDEST = (20, 11, 3)
TESTED = ("22.05", "24.11", "26.05")
_PAGE = "docs/reference/slurm-versions.md"
_LEAST_MIN_JOB_AGE_S = 60
_LONG_SLURMD_TIMEOUT_S = 900
# While srun is stopped, the slurmstepd of a node that leaves the job tries six times to tell it that its task has
# ended, each for MessageTimeout, with 2 s in between (more often from 1,024 nodes on). It may be drained before.
_LEAST_UNKILLABLE_S = 120
_MESSAGE_TIMEOUTS = 7  # the six tries, and the pauses
_MESSAGE_TIMEOUT_S = 10  # Slurm's default
_EARLY_PROLOG = {"alloc", "contain", "nohold", "x11", "deferbatch", "runinjob"}  # all of them imply Alloc
_UNSET = ("", "(null)", "none", "NONE")


def judge_settings(
    config: Mapping[str, str], limits: StopLimits | None, plan: LaunchPlan, short: Sequence[str]
) -> Iterator[CheckResult]:
    """Yield a line for each setting.

    Args:
        config: the settings, by name.
        limits: Slurm's times of the job's partition, None if they are not known.
        plan: of a job as the site's defaults make it.
        short: a line about each of these times that is shorter than the job's grace.
    """
    yield _version(config)
    yield _kill_wait(limits, plan, short)
    yield _slurmd_timeout(config)
    yield _unkillable_step_timeout(config)
    yield _requeue(config)
    yield _preemption(config)
    yield _proctrack(config)
    yield _tasks(config)
    yield _prolog_flags(config)
    yield _memory_of_jobs(config)


def seconds_of(text: str) -> int | None:
    """Return the number that a setting such as `300 sec` begins with, None if it begins with none."""
    found = re.match(r"\d{1,9}", text)
    return int(found[0]) if found else None


def _version(config: Mapping[str, str]) -> CheckResult:
    version = next((value for name, value in config.items() if name.endswith("_VERSION")), "")  # there is one
    cluster = config.get("ClusterName", "")
    found = f"Slurm {version or '?'}" + (f", cluster {cluster}" if cluster else "")
    numbers = tuple(int(each) for each in re.findall(r"\d+", version)[:3])
    key = "clusters" if cluster else ""
    if not numbers:
        return _line("slurm", Severity.WARN, found, "a version", "look at `scontrol --version`")
    if numbers < OLDEST:
        expected, action = "20.11.3 or later", f"ask the admins for a later Slurm; {_PAGE} says what is missing"
        return _line("slurm", Severity.FAIL, found, expected, action)
    if numbers[:2] > tuple(int(each) for each in TESTED[-1].split(".")):
        expected = f"{TESTED[-1]} or earlier, which hpc_elastic knows"
        return _line("slurm", Severity.WARN, found, expected, f"try a small run; {_PAGE} lists what is used of Slurm")
    return _line("slurm", Severity.OK, found, key=key)


def _kill_wait(limits: StopLimits | None, plan: LaunchPlan, short: Sequence[str]) -> CheckResult:
    if limits is None or limits.kill_wait_s is None:
        return _line("kill wait", Severity.SKIP, "Slurm does not say its KillWait")
    found = f"KillWait {limits.kill_wait_s} s"
    if limits.preemption_s is not None:
        found += f", GraceTime of {limits.qos or limits.partition or 'the partition'} {limits.preemption_s} s"
    if not short:
        return _line("kill wait", Severity.OK, f"{found}, signals.grace {plan.signals.grace_s:g} s")
    return _line(
        "kill wait",
        Severity.WARN,
        found,
        f"at least signals.grace, {plan.signals.grace_s:g} s",
        "end runs by `hpc-elastic cancel`, or save within that time",
        "defaults.signals.grace",
    )


def _slurmd_timeout(config: Mapping[str, str]) -> CheckResult:
    timeout_s = seconds_of(config.get("SlurmdTimeout", ""))
    if timeout_s is None:
        return _line("lost nodes", Severity.SKIP, "Slurm does not say its SlurmdTimeout")
    found = f"SlurmdTimeout {timeout_s} s"
    if timeout_s == 0 or timeout_s > _LONG_SLURMD_TIMEOUT_S:
        action = "a run goes on without it, but its job is COMPLETING so long"
        expected = f"1 to {_LONG_SLURMD_TIMEOUT_S} s until a lost node is given up"
        return _line("lost nodes", Severity.WARN, found, expected, action)
    return _line("lost nodes", Severity.OK, f"{found} until a lost node is given up")


def _unkillable_step_timeout(config: Mapping[str, str]) -> CheckResult:
    """Return whether Slurm drains a healthy node that a running job gives up; docs/decisions/0028 says why it could."""
    timeout_s = seconds_of(config.get("UnkillableStepTimeout", ""))
    if timeout_s is None:
        return _line("shrinking", Severity.SKIP, "Slurm does not say its UnkillableStepTimeout")
    message_timeout_s = seconds_of(config.get("MessageTimeout", "")) or _MESSAGE_TIMEOUT_S
    least_s = max(_LEAST_UNKILLABLE_S, _MESSAGE_TIMEOUTS * message_timeout_s)
    found = f"UnkillableStepTimeout {timeout_s} s"
    if timeout_s >= least_s:
        return _line("shrinking", Severity.OK, found)
    expected = f"{least_s} s or more: else Slurm drains a healthy node that a running job gives up (Kill task failed)"
    action = "make no running job smaller (scontrol update NumNodes), or ask the admins to raise it"
    return _line("shrinking", Severity.WARN, found, expected, action)


def _requeue(config: Mapping[str, str]) -> CheckResult:
    by_default = config.get("JobRequeue", "")
    if by_default not in ("0", "1"):
        return _line("requeue", Severity.SKIP, "Slurm does not say its JobRequeue")
    how = "requeued" if by_default == "1" else "requeued only if they ask for it, as our script does"
    return _line("requeue", Severity.OK, f"JobRequeue {by_default}: jobs are {how}")


def _preemption(config: Mapping[str, str]) -> CheckResult:
    kind, mode = config.get("PreemptType", ""), config.get("PreemptMode", "")
    if kind in _UNSET or kind == "preempt/none" or mode == "OFF":
        return _line("preemption", Severity.OK, "no job is preempted (PreemptType preempt/none)")
    found = f"{kind}, PreemptMode {mode}"
    if "SUSPEND" in mode or "GANG" in mode:
        return _line(
            "preemption",
            Severity.WARN,
            found,
            "REQUEUE or CANCEL: a suspended run stands still with its nodes",
            "use a partition or QOS whose jobs are not suspended",
            "defaults.sbatch",
        )
    return _line("preemption", Severity.OK, found)


def _proctrack(config: Mapping[str, str]) -> CheckResult:
    kind = config.get("ProctrackType", "")
    if kind == "proctrack/cgroup":
        return _line("proctrack", Severity.OK, kind)
    if not kind:
        return _line("proctrack", Severity.SKIP, "Slurm does not say its ProctrackType")
    expected = "proctrack/cgroup: Slurm then finds every process of a job"
    action = "none for runs, whose agents end their own; a daemon that a script starts may be left"
    return _line("proctrack", Severity.WARN, kind, expected, action)


def _tasks(config: Mapping[str, str]) -> CheckResult:
    plugins = config.get("TaskPlugin", "")
    if "cgroup" in plugins:
        return _line("confinement", Severity.OK, f"TaskPlugin {plugins}")
    return _line(
        "confinement",
        Severity.WARN,
        f"TaskPlugin {plugins or 'none'}",
        "task/cgroup: jobs that share a node keep to their memory and GPUs",
        "ask for whole nodes",
        "defaults.resources.exclusive",
    )


def _prolog_flags(config: Mapping[str, str]) -> CheckResult:
    """Return what the cluster's prolog does to a launch; 24.11 names several prologs `Prolog[0]` and so on."""
    flags = config.get("PrologFlags", "")
    found = f"PrologFlags {'none' if flags in _UNSET else flags}"
    has_prolog = any(config.get(name, "") not in _UNSET for name in ("Prolog", "Prolog[0]"))
    if has_prolog and not _EARLY_PROLOG & set(flags.lower().split(",")):
        limit = config.get("MessageTimeout", "")
        within = f"MessageTimeout, {limit}" if limit else "MessageTimeout"
        found += f": the prolog of a node runs as its agent is launched, and has to end within {within}"
    return _line("prolog", Severity.OK, found)


def _memory_of_jobs(config: Mapping[str, str]) -> CheckResult:
    age_s = seconds_of(config.get("MinJobAge", ""))
    storage = config.get("AccountingStorageType", "")
    has_accounting = storage not in _UNSET and not storage.endswith("/none")
    if age_s is None:
        return _line("ended jobs", Severity.SKIP, "Slurm does not say its MinJobAge")
    found = f"MinJobAge {age_s} s, " + ("accounting" if has_accounting else "no accounting")
    if not has_accounting and age_s < _LEAST_MIN_JOB_AGE_S:
        expected = f"{_LEAST_MIN_JOB_AGE_S} s or more, or accounting"
        action = "nothing: a job that left no result is then told as UNKNOWN"
        return _line("ended jobs", Severity.WARN, found, expected, action)
    return _line("ended jobs", Severity.OK, found)


def _line(
    check: str, verdict: Severity, found: str, expected: str = "", action: str = "", key: str = ""
) -> CheckResult:
    return CheckResult(check=check, verdict=verdict, found=found, expected=expected, action=action, key=key)
