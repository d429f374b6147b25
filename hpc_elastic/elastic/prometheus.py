"""The metrics of a role as text that Prometheus reads, for the textfile collector of its node exporter.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hpc_elastic.elastic.metrics import metric_name
from hpc_elastic.rundir.records import WorkerState

PREFIX = "hpc_elastic_"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family: Prometheus's type, and its line of help."""

    kind: str
    help: str


# By the last part of `workers.<role>.<name>`.
RUN_FAMILIES = {
    "run_total": Family("counter", "Runs that ended."),
    "run_success_with_retries": Family("gauge", "1 if the run succeeded after restarts."),
    "run_success_no_retries": Family("gauge", "1 if the run succeeded without a restart."),
    "run_failed_with_retries": Family("gauge", "1 if the run failed after restarts."),
    "run_failed_no_retries": Family("gauge", "1 if the run failed without a restart."),
    "flakiness": Family("gauge", "Percent of what the run may lose that it lost; 100 if it failed."),
    "remaining_restarts": Family("gauge", "Failures of workers that the run still survives."),
}
STATE_FAMILY = Family("gauge", "1 for the state that the worker group is in.")
DURATION_FAMILY = Family("gauge", "How long a step of the agent took the last time.")
TIME_FAMILY = Family("gauge", "Seconds of the run's allocations by what they were spent on; the queue is in none.")
SHARE_FAMILY = Family("gauge", "Share of the run's allocations in which steps were done for the first time.")
STEPS_FAMILY = Family("counter", "Steps of the agent, by whether they did what they should.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSample:
    """What is known of one role, for one file.

    Attributes:
        run: the run's name.
        role: the role's name.
        node: the node that measured it.
        values: by name, as `run_metrics` and `state_metrics` give them.
        state: the worker group's state; None where no group is known.
        durations_ms: by step, of the last time.
        counts: by step, how often it succeeded and how often it failed.
    """

    run: str
    role: str
    node: str
    values: Mapping[str, float] = field(default_factory=dict)
    state: WorkerState | None = None
    durations_ms: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSample:
    """What a run's time was spent on: seconds by the word for it, and the useful share, None if there is no time."""

    run: str
    node: str
    seconds: Mapping[str, float]
    share: float | None


def render_textfile(samples: list[RoleSample], spent: TimeSample | None = None) -> str:
    """Return the whole file: each family once, with its help and type, then a line for each role.

    Args:
        samples: one for each role.
        spent: what the time of the whole run was spent on, if that is known.
    """
    blocks = [
        (f"workers_{name}", family, [line for sample in samples for line in _value_lines(sample, name)])
        for name, family in RUN_FAMILIES.items()
    ]
    blocks += [
        ("workers_state", STATE_FAMILY, [line for sample in samples for line in _state_lines(sample)]),
        ("step_duration_seconds", DURATION_FAMILY, [line for sample in samples for line in _duration_lines(sample)]),
        ("steps_total", STEPS_FAMILY, [line for sample in samples for line in _count_lines(sample)]),
    ]
    if spent is not None:
        whose = {"run": spent.run, "node": spent.node}
        uses = [(_label_text({**whose, "use": use}), round(seconds, 3)) for use, seconds in spent.seconds.items()]
        share = [] if spent.share is None else [(_label_text(whose), round(spent.share, 6))]
        blocks += [("time_use_seconds", TIME_FAMILY, uses), ("useful_time_ratio", SHARE_FAMILY, share)]
    return "".join(_block(PREFIX + name, family, lines) for name, family, lines in blocks if lines)


def _block(name: str, family: Family, lines: list[tuple[str, float]]) -> str:
    head = f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n"
    return head + "".join(f"{name}{labels} {value!r}\n" for labels, value in lines)


def _value_lines(sample: RoleSample, name: str) -> Iterator[tuple[str, float]]:
    value = sample.values.get(metric_name(sample.role, name))
    if value is not None:
        yield _labels(sample), value


def _state_lines(sample: RoleSample) -> Iterator[tuple[str, float]]:
    if sample.state is not None:
        for state in WorkerState:
            yield _labels(sample, state=state.name.lower()), int(state is sample.state)


def _duration_lines(sample: RoleSample) -> Iterator[tuple[str, float]]:
    for step, duration_ms in sample.durations_ms.items():
        yield _labels(sample, step=step), duration_ms / 1000


def _count_lines(sample: RoleSample) -> Iterator[tuple[str, float]]:
    for step, (successes, failures) in sample.counts.items():
        yield _labels(sample, step=step, outcome="success"), successes
        yield _labels(sample, step=step, outcome="failure"), failures


def _labels(sample: RoleSample, **more: str) -> str:
    return _label_text({"run": sample.run, "role": sample.role, "node": sample.node, **more})


def _label_text(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
