"""Which tests of a session with several processes stay together in one of them: those of a file with `xdist_group`.

They share a Slurm of their own kind, which each process would boot again. pytest-xdist 3.8 means to group by that mark
itself (`--dist loadgroup`), and with pytest 9.2 does not: the id that it writes into a test is not read any more.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

GROUP = re.compile(r"^pytestmark = .*\bxdist_group\(\"(\w+)\"\)", re.MULTILINE)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out groups first, the largest before the others, then one test after the other in their order."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return group_of(self.config.rootpath / path) or nodeid


@functools.cache
def group_of(path: Path) -> str | None:
    """The group of all tests of a file, none if each may run anywhere."""
    found = GROUP.search(path.read_text()) if path.exists() else None
    return found[1] if found else None


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    """Takes the place of xdist's own scheduler of groups."""
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None
