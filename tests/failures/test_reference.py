"""The page on classes of failures has each class and each rule, as the code has them."""

from __future__ import annotations

from pathlib import Path

from hpc_elastic.failures.classes import MEANINGS
from hpc_elastic.failures.ends import RULES_FOR_ENDS
from hpc_elastic.failures.exception_rules import RULES_FOR_EXCEPTIONS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "failure-classes.md"


def _tables() -> list[list[str]]:
    """The rows of each table, without its two lines of head."""
    tables: list[list[str]] = [[]]
    for line in PAGE.read_text().splitlines():
        if line.startswith("|"):
            tables[-1].append(line)
        elif tables[-1]:
            tables.append([])
    return [table[2:] for table in tables if table]


def test_the_table_of_classes_is_the_codes() -> None:
    assert _tables()[0] == [
        f"| `{each.value}` | {meaning.phrase} | {meaning.blame.name.lower()} | {meaning.advice} |"
        for each, meaning in MEANINGS.items()
    ]


def test_the_tables_of_rules_are_the_codes_in_their_order() -> None:
    _, ends, exceptions, _ = _tables()
    assert ends == [f"| {rule.name} | `{rule.failure_class.value}` | {rule.reason} |" for rule in RULES_FOR_ENDS]
    assert exceptions == [
        f"| {rule.name} | `{rule.failure_class.value}` | {rule.reason} |" for rule in RULES_FOR_EXCEPTIONS
    ]
