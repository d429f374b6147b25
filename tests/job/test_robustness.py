from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_elastic.errors import JobError
from hpc_elastic.job.check import key_paths
from hpc_elastic.job.parse import parse_job
from hpc_elastic.job.schema import job_schema
from hpc_elastic.job.spec import JobSpec
from hpc_elastic.plan.launch_plan import LaunchPlan, dump_plan, parse_plan
from hpc_elastic.resolve.launch_plan import SubmissionContext, resolve_plan
from hpc_elastic.site.parse import parse_site

PATHS = list(key_paths(JobSpec))
SITE = parse_site("name: x\ncontact: x\nlast_checked: never\nscheduler: slurm\n", path="x.yaml")
CONTEXT = SubmissionContext(
    run="r", run_dir="/r", job_dir="/j", created="c", interpreter="/p", package_dir="/k", package_version="0"
)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["auto", "1h", "4G", "$"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.sampled_from(PATHS), inner, max_size=3),
    max_leaves=6,
)


def parse_or_refuse(text: str, overrides: list[str]) -> JobSpec | None:
    problems: tuple[str, ...] = ()
    try:
        return parse_job(text, file="job.yaml", overrides=overrides)
    except JobError as error:
        problems = error.problems
    assert problems
    assert all(problem and "\n" not in problem for problem in problems)
    return None


def plan_or_refuse(job: JobSpec) -> LaunchPlan | None:
    """The plan; None if it lacks a part of a container or of a stage, which a site could have given."""
    problems: tuple[str, ...] = ()
    try:
        return resolve_plan(job, SITE, CONTEXT)
    except JobError as error:
        problems = error.problems
    assert problems
    assert all(problem.startswith(("container", "stage")) and "\n" not in problem for problem in problems)
    return None


@given(st.text())
def test_any_text_is_read_or_refused_in_lines(text: str) -> None:
    parse_or_refuse(text, [text])


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(PATHS), values, min_size=1, max_size=4))
def test_any_values_make_a_plan_or_are_refused_in_lines(given_values: dict[str, Any]) -> None:
    overrides = [f"{path}={json.dumps(value)}" for path, value in given_values.items()]
    job = parse_or_refuse("entrypoint: {script: a.py}", overrides)
    if job is not None:
        plan = plan_or_refuse(job)
        assert plan is None or parse_plan(dump_plan(plan)) == plan


def test_a_schema_is_a_new_one_each_time() -> None:
    job_schema()["properties"].clear()
    assert job_schema()["properties"]


@pytest.mark.parametrize("text", ["nodes: 1" + "0" * 400, "restart: {max_restarts: 1" + "0" * 400 + "}", "time: 1e999"])
def test_a_huge_number_is_refused_in_a_line(text: str) -> None:
    assert parse_or_refuse(f"entrypoint: {{script: a.py}}\n{text}", []) is None
