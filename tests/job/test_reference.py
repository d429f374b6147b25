from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from hpc_elastic.job.check import key_paths
from hpc_elastic.job.defaults import NOT_BUILT
from hpc_elastic.job.schema import default_of
from hpc_elastic.job.spec import JobSpec
from hpc_elastic.site.config import SiteConfig

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def documented(name: str) -> dict[str, tuple[str, str]]:
    """The default and the support of every key in the tables of a page."""
    rows = re.findall(r"^\| `([a-z_.\[\]]+)` \| (.*?) \| (.*?) \| .+ \|$", (REFERENCE / name).read_text(), re.M)
    keys = [key for key, _, _ in rows]
    assert len(keys) == len(set(keys))
    return {key: (default, support) for key, default, support in rows}


def leaves(model: type[BaseModel]) -> set[str]:
    paths = list(key_paths(model))
    sections = {path for path in paths if any(other.startswith(f"{path}.") for other in paths)}
    return {path for path in paths if path.endswith("nodes") or path not in sections}


def spelled(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def test_the_reference_has_exactly_the_keys_of_a_job_file() -> None:
    from_python = {"entrypoint.function", "roles[].entrypoint.function"}  # no file can hold one
    assert set(documented("job-yaml.md")) == leaves(JobSpec) - from_python


def test_the_reference_has_exactly_the_keys_of_a_site_file() -> None:
    expected = {path for path in leaves(SiteConfig) if not path.startswith("defaults.")} | {"defaults"}
    assert set(documented("site-files.md")) == expected


@pytest.mark.parametrize(("key", "row"), documented("job-yaml.md").items())
def test_the_reference_says_the_default_and_what_is_not_built_yet(key: str, row: tuple[str, str]) -> None:
    default, support = row
    if default_of(key) is not None:
        assert default == f"`{spelled(default_of(key))}`"
    works = NOT_BUILT.get(key)
    partly = works is not None and len(works) > 1
    assert support == ("yes" if works is None else ", ".join(f"`{value}`" for value in works) if partly else "not yet")
