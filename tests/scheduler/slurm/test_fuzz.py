"""Whatever Slurm's commands print, reading it ends with an answer or a SchedulerError of one printable line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hpc_elastic.errors import SchedulerError
from hpc_elastic.hostlist import expand_hostlist
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from hpc_elastic.scheduler.slurm import output
from hpc_elastic.scheduler.slurm.output import CommandOutput
from tests.scheduler.slurm.captured import VERSIONS
from tests.scheduler.slurm.fuzz import Parsers, captures, hunt
from tests.tiers import each_third

COUNT = 150  # of each answer; `python -m tests.scheduler.slurm.fuzz` plays 100,000


@pytest.mark.long
@pytest.mark.parametrize(
    ("version", "case"), each_third(captures(), of="test_a_mutated_answer_is_read_or_rejected_in_one_line")
)
def test_a_mutated_answer_is_read_or_rejected_in_one_line(version: str, case: str) -> None:
    assert hunt(version, case, COUNT) is None


# What the code once did, and what it could: each must be found.


def bare_exit_code(told: CommandOutput, job_ids: list[str]) -> Mapping[str, JobStatus]:
    for line in told.stdout.splitlines() if not told.returncode else ():
        if len(fields := line.split("|")) > 6:
            int(fields[4])
    return output.parse_queue(told, job_ids)


def of_anybody(told: CommandOutput, job_ids: list[str]) -> Mapping[str, JobStatus]:
    found = output.parse_queue(told, job_ids)
    return {f"{job_id}0": replace(status, job_id=f"{job_id}0") for job_id, status in found.items()}


def invented_state(told: CommandOutput, job_ids: list[str]) -> Mapping[str, JobStatus]:
    return {job_id: replace(each, state=JobState.GONE) for job_id, each in output.parse_queue(told, job_ids).items()}


def unguarded_nodes(status: JobStatus | None) -> tuple[str, ...] | None:
    return None if status is None or status.nodes is None else expand_hostlist(status.nodes)


def raw_words(told: CommandOutput, _: str) -> None:
    if told.returncode:
        raise SchedulerError(told.stderr)


def first_word(told: CommandOutput) -> str:
    return told.stdout.split()[0]


@pytest.mark.parametrize(
    ("case", "parsers"),
    [
        ("queue-running", Parsers(queue=bare_exit_code)),
        ("queue-running", Parsers(queue=of_anybody)),
        ("queue-running", Parsers(queue=invented_state)),
        ("queue-running", Parsers(nodes_left=unguarded_nodes)),
        ("cancel-no-controller", Parsers(cancellation=raw_words)),
        ("requeue-held", Parsers(requeue=raw_words)),
        ("submit-accepted", Parsers(submission=first_word)),
    ],
)
def test_a_worse_parser_is_found(case: str, parsers: Parsers) -> None:
    assert hunt(VERSIONS[0], case, 2000, parsers=parsers) is not None
