from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.agent.records.scripts import changed_scripts, describe_changed, script_digests
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.roles import EntrypointPlan, NodesPlan
from hpc_elastic.rundir.records import AllocationClaim, Endpoint
from tests.plans import make_plan, make_role


def plan_of(folder: Path, *entrypoints: EntrypointPlan) -> LaunchPlan:
    roles = tuple(
        make_role(f"role{number}", NodesPlan(min=1, max=1), entrypoint=entrypoint)
        for number, entrypoint in enumerate(entrypoints)
    )
    return make_plan(roles=roles, workdir=str(folder))


def claim(**fields: object) -> AllocationClaim:
    one = AllocationClaim(
        run="run",
        allocation=1,
        job_id="7",
        restart_count=0,
        array_task=None,
        nodes=("node1",),
        node="node1",
        host="node1",
        head=Endpoint(address="10.0.0.1", port=1),
        time="",
    )
    return replace(one, **fields)  # type: ignore[arg-type]


def test_the_digest_of_a_script_is_of_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("a")
    script = EntrypointPlan(kind="script", target="train.py", args=())
    module = EntrypointPlan(kind="module", target="train", args=())
    gone = EntrypointPlan(kind="script", target="gone.py", args=())
    plan = plan_of(tmp_path, script, module, gone)
    before = script_digests(plan)
    assert before.keys() == {"train.py"}
    (tmp_path / "train.py").touch()
    assert script_digests(plan) == before
    (tmp_path / "train.py").write_text("b")
    assert script_digests(plan) != before


def test_a_workdir_that_is_not_known_has_no_scripts(tmp_path: Path) -> None:
    script = EntrypointPlan(kind="script", target="train.py", args=())
    assert script_digests(replace(plan_of(tmp_path, script), workdir="${NO_SUCH_VARIABLE}")) == {}


def test_a_script_is_found_by_a_variable_that_names_others_in_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("a")
    monkeypatch.setenv("ABOVE", str(tmp_path.parent))
    plan = plan_of(Path("${CODE}"), EntrypointPlan(kind="script", target="train.py", args=()))
    code = f"${{ABOVE}}/{tmp_path.name}"
    of_role = replace(plan, roles=(replace(plan.roles[0], env={"CODE": code}),))
    assert script_digests(replace(plan, env={"CODE": code})).keys() == {"train.py"}
    assert script_digests(of_role).keys() == {"train.py"}


@pytest.mark.parametrize(
    ("before", "changed"),
    [
        (None, ()),
        (claim(), ()),  # a claim of a version that had no digests
        (claim(scripts={"a.py": "1"}), ()),
        (claim(scripts={"a.py": "0"}), ("a.py",)),
        (claim(scripts={"a.py": "1"}, changed_scripts=("a.py",)), ()),
    ],
)
def test_scripts_are_compared_with_those_of_the_start_before(
    before: AllocationClaim | None, changed: tuple[str, ...]
) -> None:
    assert changed_scripts(before, {"a.py": "1", "new.py": "3"}) == changed


def test_people_are_told_in_one_line() -> None:
    assert describe_changed(("a.py",)).startswith("a.py has changed since the job's last start: ")
    assert describe_changed(("a.py", "b.py")).startswith("a.py, b.py have changed ")
