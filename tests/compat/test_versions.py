"""The versions that are tested are those that the extra `compat` and the how-to page name."""

from __future__ import annotations

import re

import pytest

from tests.compat.training import LIBRARIES
from tests.integration.conftest import REPOSITORY


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_librarys_version_is_the_same_everywhere(name: str) -> None:
    (extra,) = re.findall(r"^compat = \[(.*?)\n\]", (REPOSITORY / "pyproject.toml").read_text(), re.M | re.S)
    constraints = (REPOSITORY / "constraints.txt").read_text()
    found = re.findall(rf'"{name}==([\d.]+)(.*)"', extra)
    for version, marker in found:  # of Python 3.10 first, where that has an older one
        assert f"{name}=={version}{marker}\n".replace("'", '"') in constraints
    pinned, _ = found[-1]
    page = (REPOSITORY / "docs/how-to/lightning-accelerate-transformers.md").read_text()
    assert f"{name} {pinned}" in page.replace("\n", " ")
    (installed,) = re.findall(
        r"--python \.venv-compat/.* constraints\.txt (.*)$", (REPOSITORY / "Makefile").read_text(), re.M
    )
    assert name in installed.split()
