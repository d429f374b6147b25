from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.plan.references import (
    BadReferenceError,
    check_references,
    expand_references,
    has_reference,
    quote_dollars,
)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("plain", "plain"),
        ("${HOME}/x", "/home/ada/x"),
        ("a$$b", "a$b"),
        ("$${HOME}", "${HOME}"),
        ("$$${HOME}", "$/home/ada"),
        ("${TRICK}", "${HOME} $$"),
        ("", ""),
    ],
)
def test_variables_are_expanded_once(text: str, expanded: str) -> None:
    assert expand_references(text, {"HOME": "/home/ada", "TRICK": "${HOME} $$"}) == expanded


@pytest.mark.parametrize("text", ["$HOME", "$(date)", "a$", "${}", "${A B}", "${A:-b}", "$$$", "${1}", "${HOME"])
def test_a_reference_rejects_the_shells_other_spellings(text: str) -> None:
    with pytest.raises(BadReferenceError, match="write \\$\\$ for a dollar sign"):
        check_references(text)


def test_a_reference_rejects_a_variable_that_is_not_set() -> None:
    with pytest.raises(BadReferenceError, match=r"\$\{SCRATCH\} is not set on this node"):
        expand_references("${SCRATCH}/x", {})


def test_a_reference_is_told_from_a_dollar_sign() -> None:
    assert has_reference("a/${B}")
    assert not has_reference("a/$$b$${C}")


@given(st.text())
def test_quoted_text_expands_to_itself(text: str) -> None:
    assert expand_references(quote_dollars(text), {}) == text
