"""Makes submitit find our plug-in as an installed package's, from what pyproject.toml says of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from submitit.core import plugins

REPOSITORY = Path(__file__).resolve().parents[2]
_GROUP = re.compile(r"^\[project\.entry-points\.submitit\]\n((?:\w+ = .*\n)+)", re.M)


def declare_plugin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the package's metadata before all others, for this process and for those that it starts."""
    entries = _GROUP.search((REPOSITORY / "pyproject.toml").read_text())
    assert entries, "pyproject.toml has no entry points for submitit"
    info = write_metadata(folder)
    (info / "entry_points.txt").write_text("[submitit]\n" + entries[1].replace('"', ""))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    for cached in (plugins._get_plugins, plugins.get_executors, plugins.get_job_environments):
        cached.cache_clear()


def write_metadata(folder: Path) -> Path:
    """Metadata of the package without entry points, which hides that of the installed one behind it on the path."""
    info = folder / "hpc_elastic-0.0.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hpc-elastic\nVersion: 0.0.0\n")
    return info
