"""The verdicts on Slurm's settings, from what each release prints and from changes of that."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hpc_elastic.doctor.judge_slurm import judge_settings
from hpc_elastic.doctor.results import CheckResult, Severity
from hpc_elastic.scheduler.slurm.limits import StopLimits, parse_config
from tests.doctor.told import SETTINGS, settings
from tests.plans import make_plan

PLAN = make_plan()
LIMITS = StopLimits(kill_wait_s=30, preemption_s=None, partition="batch")
GOOD = {
    "SLURM_VERSION": "24.11.5",
    "ClusterName": "here",
    "SlurmdTimeout": "300 sec",
    "UnkillableStepTimeout": "120 sec",
    "MessageTimeout": "10 sec",
    "JobRequeue": "1",
    "PreemptType": "preempt/none",
    "PreemptMode": "OFF",
    "ProctrackType": "proctrack/cgroup",
    "TaskPlugin": "task/cgroup,task/affinity",
    "PrologFlags": "Alloc,Contain",
    "MinJobAge": "300 sec",
    "AccountingStorageType": "accounting_storage/slurmdbd",
}


def judged(
    changes: Mapping[str, str] | None = None, limits: StopLimits = LIMITS, short: tuple[str, ...] = ()
) -> dict[str, CheckResult]:
    return {each.check: each for each in judge_settings({**GOOD, **(changes or {})}, limits, PLAN, short)}


def test_good_settings_are_all_well() -> None:
    assert {each.verdict for each in judged().values()} == {Severity.OK}


@pytest.mark.parametrize("name", ["Prolog", "Prolog[0]"])
def test_a_prolog_that_runs_as_late_as_the_launch_is_told(name: str) -> None:
    changes = {name: "/etc/slurm/prolog.sh", "MessageTimeout": "10 sec"}
    assert judged(changes)["prolog"].found == "PrologFlags Alloc,Contain"
    late = judged({**changes, "PrologFlags": "(null)"})["prolog"]
    assert late.found.startswith("PrologFlags none: the prolog of a node runs as its agent is launched")
    assert late.found.endswith("within MessageTimeout, 10 sec")
    assert judged({"PrologFlags": "(null)", name: "(null)"})["prolog"].found == "PrologFlags none"


@pytest.mark.parametrize("case", SETTINGS)
def test_every_setting_is_found_in_what_a_release_prints(case: str) -> None:
    config = parse_config(settings(case)["config"])
    found = {each.check: each for each in judge_settings(config, LIMITS, PLAN, ())}
    assert found["slurm"].verdict is Severity.OK
    assert found["slurm"].found.startswith(f"Slurm {case.removeprefix('settings-')}")
    assert all(each.verdict is not Severity.SKIP for each in found.values()), found
    assert found["lost nodes"].found == "SlurmdTimeout 10 s until a lost node is given up"
    assert found["preemption"].found == "preempt/partition_prio, PreemptMode REQUEUE"
    assert found["shrinking"].found == "UnkillableStepTimeout 20 s"


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        ("20.11.2", Severity.FAIL),
        ("20.11.9", Severity.OK),
        ("23.02.7", Severity.OK),
        ("26.05.5", Severity.OK),
        ("26.11.0", Severity.WARN),
        ("27.05.0", Severity.WARN),
        ("", Severity.WARN),
        ("unknown", Severity.WARN),
    ],
)
def test_versions_before_the_oldest_fail_and_later_ones_are_a_warning(version: str, verdict: Severity) -> None:
    assert judged({"SLURM_VERSION": version})["slurm"].verdict is verdict


@pytest.mark.parametrize(
    ("check", "changes", "key"),
    [
        ("lost nodes", {"SlurmdTimeout": "0 sec"}, ""),
        ("lost nodes", {"SlurmdTimeout": "3600 sec"}, ""),
        ("shrinking", {"UnkillableStepTimeout": "60 sec"}, ""),
        ("shrinking", {"UnkillableStepTimeout": "119 sec"}, ""),
        ("shrinking", {"MessageTimeout": "100 sec", "UnkillableStepTimeout": "500 sec"}, ""),
        (
            "preemption",
            {"PreemptType": "preempt/qos", "PreemptMode": "GANG,SUSPEND"},
            "defaults.sbatch",
        ),
        ("proctrack", {"ProctrackType": "proctrack/pgid"}, ""),
        ("confinement", {"TaskPlugin": "task/affinity"}, "defaults.resources.exclusive"),
        ("ended jobs", {"MinJobAge": "5 sec", "AccountingStorageType": "(null)"}, ""),
        ("ended jobs", {"MinJobAge": "5 sec", "AccountingStorageType": "accounting_storage/none"}, ""),
    ],
)
def test_a_setting_that_runs_suffer_from_is_a_warning(check: str, changes: dict[str, str], key: str) -> None:
    found = judged(changes)
    assert {name for name, each in found.items() if each.verdict is not Severity.OK} == {check}
    assert (found[check].verdict, found[check].key) == (Severity.WARN, key)
    assert found[check].expected
    assert found[check].action


def test_a_timeout_of_steps_in_which_a_node_cannot_leave_a_running_job_is_told_in_a_sentence() -> None:
    """srun is stopped then, and slurmstepd tries to tell it of its task's end, again and again."""
    found = judged({"UnkillableStepTimeout": "60 sec"})["shrinking"]
    assert (found.verdict, found.found) == (Severity.WARN, "UnkillableStepTimeout 60 s")
    wanted = "120 s or more: else Slurm drains a healthy node that a running job gives up (Kill task failed)"
    assert found.expected == wanted
    slow = {"MessageTimeout": "100 sec", "UnkillableStepTimeout": "700 sec"}
    assert judged(slow)["shrinking"].verdict is Severity.OK
    assert judged({"MessageTimeout": ""})["shrinking"].verdict is Severity.OK


def test_a_grace_that_slurm_cuts_short_is_a_warning() -> None:
    limits = StopLimits(kill_wait_s=30, preemption_s=10, partition="gpu")
    result = judged({}, limits, ("signals.grace is 60 s, but ...",))["kill wait"]
    assert (result.verdict, result.found) == (Severity.WARN, "KillWait 30 s, GraceTime of gpu 10 s")


def test_what_slurm_does_not_say_is_no_fault() -> None:
    found = {each.check: each.verdict for each in judge_settings({"SLURM_VERSION": "24.11.5"}, None, PLAN, ())}
    assert Severity.FAIL not in found.values()
    assert found["kill wait"] is found["proctrack"] is found["ended jobs"] is found["shrinking"] is Severity.SKIP
