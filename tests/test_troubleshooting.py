"""Every symptom of the page about troubleshooting is a message that the package prints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.architecture import PACKAGE, read_package

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "troubleshooting.md"
SECTIONS = re.findall(r"^### ([^\n]+)\n\n(.*?)(?=^##|\Z)", PAGE.read_text(), re.M | re.S)
SYMPTOMS = [line for _, text in SECTIONS for line in re.findall(r"^```text\n(.+?)\n```$", text, re.M | re.S)]
ENOUGH = 0.38  # of a message; the rest is filled in
LEAST = 9  # characters of a part of a message that count


def written_parts(tree: ast.AST) -> Iterator[str]:
    """What each text of a module says between the values that are filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from node.value.splitlines()


@cache
def parts() -> set[str]:
    return {
        part.strip()
        for module in read_package(PACKAGE).values()
        for part in written_parts(module.tree)
        if len(part.strip()) >= LEAST
    }


def share_of(symptom: str) -> float:
    """How much of a symptom stands in the code, of its characters."""
    covered = [False] * len(symptom)
    for part in parts():
        start = symptom.find(part)
        if start >= 0:
            covered[start : start + len(part)] = [True] * len(part)
    return sum(covered) / len(symptom)


@pytest.mark.long
@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_a_symptom_is_what_the_package_prints(symptom: str) -> None:
    assert share_of(symptom) > ENOUGH, symptom


@pytest.mark.long
def test_a_message_that_nothing_prints_is_found() -> None:
    assert share_of("the flux capacitor of node3 has no 1.21 gigawatts") < ENOUGH
    assert share_of("2 of at least 4 nodes came within 600 s") < ENOUGH


def test_each_section_has_a_symptom_a_cause_and_a_cure() -> None:
    assert len(SECTIONS) == len(SYMPTOMS) > 20
    for title, text in SECTIONS:
        assert (text.count("**Cause:**"), text.count("**Cure:**"), text.count("```text")) == (1, 1, 1), title
