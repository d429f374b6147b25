"""How a session with several processes shares out its tests: who waits for whom, and what stays together.

**Lanes.** Tests of a real Slurm, and real runs on this machine, wait most of their time; all other tests compute. With
more processes than processors the last ones are for what computes, as many as there are processors if the others are
enough, and use what those that wait leave. Who has nothing left of its own helps the others. None has a lower
priority: tests that compute have time-outs too, which they missed where they were nice to the others.

**Groups.** Tests of files with the same `xdist_group` share a Slurm of their own kind, and those of a file with a
fixture of the module what that makes, a wheel or an environment: each process would make it again. They come first, the
groups with the most tests before the others. pytest-xdist 3.8 means to group by that mark itself (`--dist loadgroup`),
and with pytest 9.2 does not: the id that it writes into a test is not read any more.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

GROUP = re.compile(r"^pytestmark = .*\bxdist_group\(\"(\w+)\"\)", re.MULTILINE)
SHARES = re.compile(r"^@pytest\.fixture\(.*\bscope=\"module\"", re.MULTILINE)
WAITS = re.compile(r"\bmark\.(slurm|local)\b|\bslurm: Cluster\b|\bslurm_session\b")


class LaneScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out groups and tests in their order: from its start to lanes that wait, what computes to the others."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(self._path(nodeid)) or nodeid

    def _path(self, nodeid: str) -> Path:
        path: Path = self.config.rootpath / nodeid.partition("::")[0]
        return path

    def _assign_work_unit(self, node: Any) -> None:
        if computes(node.gateway.id, self.numnodes):
            own = (scope for scope, tests in self.workqueue.items() if not waits(self._path(next(iter(tests)))))
            # The last of those that wait are real runs on this machine, for which no Slurm has to be booted.
            self.workqueue.move_to_end(next(own, next(reversed(self.workqueue))), last=False)
        super()._assign_work_unit(node)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forgets a group that is done: after each test xdist counts what is left of all that a process was given."""
        super().mark_test_complete(node, item_index, duration)
        given = self.assigned_work[node]
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(given[scope].values()):
            del given[scope]


def computes(process: str, count: int) -> bool:
    """Whether a process of a session (`gw0` is its first) is for tests that compute, of so many processes."""
    cores = os.cpu_count() or 1
    return int(process.removeprefix("gw")) >= count - min(cores, max(0, count - cores))


@functools.cache
def group_of(path: Path) -> str | None:
    """The group of all tests of a file, none if each may run anywhere."""
    text = path.read_text() if path.exists() else ""
    if (named := GROUP.search(text)) is not None:
        return named[1]
    return str(path) if SHARES.search(text) is not None else None


@functools.cache
def waits(path: Path) -> bool:
    """Whether a file has tests of a real Slurm, or real runs."""
    return path.exists() and WAITS.search(path.read_text()) is not None


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LaneScheduling | None:
    """Takes the place of xdist's own scheduler of groups."""
    return LaneScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None
