"""The links of the documentation's site, and what reads well on GitHub alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from publish.site_pages import OTHERS, bars_of_tables, link_of, rewrite_links, swallowed_lists

REPOSITORY = Path(__file__).parents[2]
URL = "https://example.org/repository"


@pytest.mark.parametrize(
    ("target", "page", "expected"),
    [
        ("first-run.md", "tutorial/first-requeue.md", "first-run.md"),
        ("../reference/job-yaml.md#sbatch", "tutorial/first-run.md", "../reference/job-yaml.md#sbatch"),
        ("../../README.md#install", "tutorial/first-run.md", "../project/readme.md#install"),
        ("docs/how-to/roles.md", "project/readme.md", "../how-to/roles.md"),
        ("docs/benchmarks/recovery.png", "project/readme.md", "../benchmarks/recovery.png"),
        ("../README.md", "README.md", "project/readme.md"),
        ("../../examples/digits/train.py", "how-to/roles.md", f"{URL}/blob/main/examples/digits/train.py"),
        ("../../tests/moving_in/scripts", "how-to/move-in.md", f"{URL}/tree/main/tests/moving_in/scripts"),
        ("LICENSE", "project/readme.md", f"{URL}/blob/main/LICENSE"),
        ("#install", "project/readme.md", "#install"),
        ("https://pytorch.org", "README.md", "https://pytorch.org"),
    ],
)
def test_a_link_leads_to_the_page_of_the_site_or_to_the_repository(target: str, page: str, expected: str) -> None:
    assert link_of(target, page, URL) == expected


def test_links_in_fences_are_left_as_they_are() -> None:
    text = "[a](../README.md)\n```text\n[b](../README.md)\n```\n[c](../README.md)\n"
    written = "[a](project/readme.md)\n```text\n[b](../README.md)\n```\n[c](project/readme.md)\n"
    assert rewrite_links(text, "README.md", URL) == written


def test_a_list_that_became_text_is_found() -> None:
    assert swallowed_lists("<p>Such as:\n- one\n- two</p>") == ["- one", "- two"]
    assert swallowed_lists("<p>Rows:\n| a | b |</p><ul><li>- one</li></ul>") == ["| a | b |"]
    assert swallowed_lists("<p>A - b.</p>") == []


def test_code_in_a_table_has_its_bar() -> None:
    assert bars_of_tables("<td><code>a\\|b</code></td><p>a\\|b</p>") == "<td><code>a|b</code></td><p>a\\|b</p>"


def test_every_page_is_in_the_navigation() -> None:
    """Else the strict build fails: `make docs`."""
    listed = re.findall(r"^ +- (?:.+: )?(\S+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(), re.M)
    pages = {path.relative_to(REPOSITORY / "docs").as_posix() for path in (REPOSITORY / "docs").rglob("*.md")}
    decisions = {page for page in pages if re.match(r"decisions/\d", page)}
    assert sorted(listed) == sorted((pages - decisions) | set(OTHERS.values()))
    assert all((REPOSITORY / page).is_file() for page in OTHERS)
