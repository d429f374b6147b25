from __future__ import annotations

from typing import Any

import pytest

from hpc_elastic.job.document import MOST_VALUES, Document
from hpc_elastic.job.yaml_core import DEEPEST_NESTING, MOST_CHARACTERS


def read(text: str) -> Document:
    document = Document(file="job.yaml", text_paths=[("args",), ("env",)])
    document.read(text)
    return document


def read_value(scalar: str) -> Any:
    document = read(f"key: {scalar}")
    assert not document.problems
    return document.data["key"]


@pytest.mark.parametrize(
    "text", ["on", "off", "yes", "no", "On", "NO", "y", "n", "12:00:00", "1:30", "0o14", "0x1F", "1_000"]
)
def test_a_scalar_is_text_if_only_yaml_1_1_has_another_type_for_it(text: str) -> None:
    assert read_value(text) == text


@pytest.mark.parametrize("text", ["2026-11-20", "=", "<<", "0b11", "190:20:30", "1e", "+", "."])
def test_a_scalar_is_text_if_the_core_schema_knows_no_other_type(text: str) -> None:
    assert read_value(text) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("012345", 12345),
        ("-7", -7),
        ("1.10", 1.1),
        ("1e-3", 0.001),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ('"true"', "true"),
        ("'12'", "12"),
        ("!!str 12", "12"),
        (r'"\ud83d\ude00"', "\U0001f600"),
        ("!!float 12", 12.0),
    ],
)
def test_a_scalar_has_the_type_of_the_core_schema(text: str, value: object) -> None:
    found = read_value(text)
    assert found == value
    assert type(found) is type(value)


def test_a_number_that_is_too_long_for_an_integer_is_a_float() -> None:
    assert read_value("9" * 5000) == float("inf")


def test_keys_are_text() -> None:
    assert read("on: 1\n012: 2\n1.10: 3\ntrue: 4").data == {"on": 1, "012": 2, "1.10": 3, "true": 4}


def test_scalars_keep_their_source_text_if_they_stand_below_a_text_path() -> None:
    document = read("args: [012345, 1.10, 1e-3, no, True, null, ~, '']\nenv: {A: 010, B: null, C: }")
    assert document.data["args"] == ["012345", "1.10", "1e-3", "no", "True", "null", "~", ""]
    assert document.data["env"] == {"A": "010", "B": None, "C": None}


def test_every_key_has_its_line() -> None:
    document = read("# a comment\na: 1\n\nb:\n  c: 2\n  d:\n  - 3\n  - e: 4\n")
    lines = document.lines
    assert lines[("a",)] == 2
    assert lines[("b", "c")] == 5
    assert lines[("b", "d")] == 6
    assert lines[("b", "d", 1)] == 8
    assert lines[("b", "d", 1, "e")] == 8


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3", "job.yaml:3: a: given twice; first in line 1"),
        ("a: {b: 1, b: 2}", "job.yaml:1: a.b: given twice; first in line 1"),
        (
            "a: !!python/object/apply:os.system [x]",
            "job.yaml:1: a: expected plain YAML, found the tag !!python/object/apply:os.system",
        ),
        ("a: !secret x", "job.yaml:1: a: expected plain YAML, found the tag !secret"),
        ("a: !!set {x, y}", "job.yaml:1: a: expected plain YAML, found the tag !!set"),
        ("a: !!int x", "job.yaml:1: a: 'x' does not fit its tag !!int"),
        ("a: &x [*x]", "job.yaml:1: a[0]: an alias stands inside of what it repeats"),
        ("? [a]\n: 1", "job.yaml:1: expected a word as the key"),
        ("'': 1", "job.yaml:1: expected a word as the key"),
        ("", "job.yaml:1: expected keys and values, such as `name: digits`, found an empty file"),
        ("- a", "job.yaml:1: expected keys and values, such as `name: digits`, found a list"),
        ("train.py", "job.yaml:1: expected keys and values, such as `name: digits`, found a single value"),
    ],
)
def test_a_document_rejects_what_could_be_misread(text: str, problem: str) -> None:
    assert [str(found) for found in read(text).problems] == [problem]


@pytest.mark.parametrize(
    ("text", "line", "excerpt"),
    [
        ("a:\n\tb: 1", 2, "indent with spaces, not with tabs"),
        ("a: b: c", 1, "does a value with a colon need quotes?"),
        ("a: 1\n---\nb: 2", 2, "expected a single document in the stream"),
        ("a: 1\nb: \x07", 2, "the character U+0007 is not allowed"),
        ("a: [1, 2", 1, "not valid YAML"),
        ("a: *b", 1, "undefined alias"),
        ("x: " + "[" * (DEEPEST_NESTING + 1), 1, "nested too deep"),
        ("x: " + "[" * 100_000, 1, "nested too deep"),
        ("#" * (MOST_CHARACTERS + 1), 1, f"expected at most {MOST_CHARACTERS} characters"),
    ],
)
def test_a_document_rejects_broken_yaml_with_one_line(text: str, line: int, excerpt: str) -> None:
    (problem,) = read(text).problems
    assert str(problem).startswith(f"job.yaml:{line}: ")
    assert excerpt in str(problem)
    assert "\n" not in str(problem)


def test_a_document_rejects_aliases_that_expand_without_bound() -> None:
    levels = [f"k{level}: &k{level} [{', '.join([f'*k{level - 1}'] * 10)}]" for level in range(1, 9)]
    (problem,) = read("\n".join(["k0: &k0 [x]", *levels])).problems
    assert f"expected at most {MOST_VALUES} values" in str(problem)


def test_an_alias_repeats_its_value() -> None:
    document = read("a: &x {b: 1}\nc: *x")
    assert document.data == {"a": {"b": 1}, "c": {"b": 1}}
    assert not document.problems
