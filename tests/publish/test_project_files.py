"""What stands around the code: addresses that agree, hosted CI that calls the Makefile, templates that can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from publish.readiness import repository_url

REPOSITORY = Path(__file__).parents[2]
WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
MAKEFILE = (REPOSITORY / "Makefile").read_text()


def test_all_files_name_the_same_repository() -> None:
    url = repository_url(REPOSITORY)
    names = ["mkdocs.yml", ".github/ISSUE_TEMPLATE/config.yml", *(f"publish/recipes/{name}" for name in RECIPES)]
    for name in names:
        found = re.findall(r"https://github\.com/hpc[\w-]*/[\w-]+", (REPOSITORY / name).read_text())
        assert set(found) == {url}, name


RECIPES = [path.name for path in (REPOSITORY / "publish/recipes").iterdir()]


@pytest.mark.parametrize("path", WORKFLOWS, ids=[path.name for path in WORKFLOWS])
def test_hosted_ci_calls_targets_that_are_there(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    targets = [target for step in steps for target in re.findall(r"^make ([\w-]+)", step.get("run", ""))]
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", MAKEFILE, re.M), target
    for step in steps:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step.get("uses", f"actions/x@{'0' * 40}")), step


def test_hosted_ci_runs_every_python_that_the_package_names() -> None:
    jobs = yaml.safe_load((REPOSITORY / ".github/workflows/ci.yml").read_text())["jobs"]
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (REPOSITORY / "pyproject.toml").read_text())
    assert jobs["check"]["strategy"]["matrix"]["python"] == named
    (oldest,) = re.findall(r'"torch>=([\d.]+)"', (REPOSITORY / "pyproject.toml").read_text())
    torches = [entry["torch"] for entry in jobs["torch"]["strategy"]["matrix"]["include"]]
    assert torches == [f"=={oldest}.*", f">={oldest}"]


def test_pre_commit_calls_what_make_check_calls() -> None:
    (repository,) = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"  # with the pins of constraints.txt, not with others
    programs = {hook["entry"].split()[0] for hook in repository["hooks"]}
    (check,) = re.findall(r"^check:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    called = set(re.findall(r"\$\(BIN\)/(\w+)", check))
    assert {program.rpartition("/")[2] for program in programs} - {"python"} == called


def test_issue_forms_can_be_read() -> None:
    forms = [path for path in (REPOSITORY / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]
    assert len(forms) == 3
    for path in forms:
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= set(form)
        assert len({field["id"] for field in form["body"]}) == len(form["body"])
