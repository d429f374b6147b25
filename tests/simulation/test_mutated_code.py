"""Which code is edited: what decides about a run, and nothing that only people read or nobody plays."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.simulation.mutation import mutated_code
from tests.simulation.mutation.mutated_code import ROOT, nodes

pytestmark = pytest.mark.long

SOURCE = """
@dataclass(frozen=True, slots=True)
class Head:
    def tick(self, now):
        count, text = len(self.left), "one"
        if now > 1:
            text = f"{count + 2} are left" if count > 3 else "none"
        if now > 4:
            self.moved = True
        self._say(f"{text} at {now + 5}", "warning" if now > 6 else "info")
        if now > 7:
            raise LostError(f"{text}, and {now + 8}")
        return [Log(text=text)]
"""


def numbers(source: str) -> set[object]:
    constants = [each.value for each in nodes(ast.parse(source)) if isinstance(each, ast.Constant)]
    return {value for value in constants if type(value) is int}


def test_texts_and_what_makes_them_are_not_edited() -> None:
    assert numbers(SOURCE) == {4, 7}


def test_a_decorator_is_not_edited() -> None:
    decorated = [each for each in nodes(ast.parse(SOURCE)) if isinstance(each, ast.keyword)]
    assert decorated == []


def test_a_default_that_every_call_of_the_class_names_is_not_edited() -> None:
    source = "class Coordinator:\n    def __init__(self, *, may_yield=3, unnamed=4):\n        self.yields = may_yield\n"
    assert numbers(source) == {4}


def test_a_field_of_a_constant_that_only_other_hosts_read_is_not_edited() -> None:
    assert numbers("TORCHRUN = Profile(guard_s=3, shortest_lease_s=4)\n") == {3}


def test_lines_that_are_only_collected_to_be_said_are_not_edited() -> None:
    body = "lines = []\n    lines.append(self.words[1 + 2])\n    return [Log(text=line) for line in lines]\n"
    source = f"def reminder(self):\n    {body}"
    assert numbers(source) == set()


def test_a_text_or_another_one_in_its_place_is_not_edited() -> None:
    source = "def names(self, nodes) -> str:\n    return ', '.join(nodes) or 'nobody'\n"
    edited = [each for each in nodes(ast.parse(source)) if isinstance(each, (ast.Return, ast.BoolOp))]
    assert edited == []


def test_whether_a_zip_compares_lengths_is_not_edited() -> None:
    source = "def tick(self):\n    self.pairs = zip(self.left, self.right, strict=True)\n"
    assert [each for each in nodes(ast.parse(source)) if isinstance(each, ast.keyword)] == []


def test_a_text_that_the_caller_may_compare_is_edited() -> None:
    source = "def failure_signature(failure) -> str:\n    words = failure.message[:500]\n    return f'{words}'\n"
    assert numbers(source) == {500}


def test_methods_that_the_simulation_replaces_and_other_hosts_call_are_not_edited() -> None:
    assert {"say", "note"} <= mutated_code.replaced()
    assert "abandon" not in mutated_code.reached()
    assert {"tick", "received", "step_down", "claim_attempt"} <= mutated_code.reached()


@pytest.mark.variant(of="test_an_edit_of_what_nobody_waits_for_is_caught")
def test_nothing_of_the_package_is_loaded_before_it_is_edited() -> None:
    program = "import sys; from tests.simulation.mutate import mutations; mutations(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not [name for name in loaded.stdout.split() if name.startswith("hpc_elastic")]
