"""`constraints.txt` pins every dependency, once for each supported Python, and to what `pyproject.toml` allows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPOSITORY = Path(__file__).parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
EXTRAS = ("bench", "compat", "docs", "hydra", "lint", "release", "report", "test")


def applies(requirement: Requirement, python: str) -> bool:
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    return requirement.marker is None or requirement.marker.evaluate(environment)


def pins(python: str) -> list[Requirement]:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return [requirement for requirement in found if applies(requirement, python)]


def wanted(python: str) -> list[Requirement]:
    """What `pyproject.toml` asks for; Python 3.10 has no parser of TOML, and the lists are plain."""
    text = (REPOSITORY / "pyproject.toml").read_text()
    found = []
    for name in ("dependencies", *EXTRAS):
        (listed,) = re.findall(rf"^{name} = \[(.*?)\]", text, re.M | re.S)
        found += [Requirement(quoted) for quoted in re.findall(r'"([^"]+)"', listed)]
    return [requirement for requirement in found if applies(requirement, python)]


@pytest.mark.parametrize("python", PYTHONS)
def test_a_package_has_one_pin_for_each_python(python: str) -> None:
    names = [canonicalize_name(pin.name) for pin in pins(python)]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("python", PYTHONS)
def test_every_dependency_has_a_pin_that_the_project_allows(python: str) -> None:
    pinned = {canonicalize_name(pin.name): pin for pin in pins(python)}
    requirements = wanted(python)
    assert {"torch", "pytest", "hydra-core"} <= {requirement.name for requirement in requirements}
    for requirement in requirements:
        (specifier,) = pinned[canonicalize_name(requirement.name)].specifier
        assert specifier.operator == "=="
        assert Version(specifier.version) in requirement.specifier, requirement


def test_the_oldest_python_of_the_constraints_is_that_of_the_project() -> None:
    assert f'requires-python = ">={PYTHONS[0]}"' in (REPOSITORY / "pyproject.toml").read_text()
