"""How a session with several processes shares out its tests: who waits for whom, and what stays together.

**Lanes.** Tests of a real Slurm, and real runs on this machine, wait most of their time; all other tests compute. With
more processes than processors the last ones are for what computes, as many as there are processors if the others are
enough, and use what those that wait leave. Who has nothing left of its own helps the others. None has a lower
priority: tests that compute have time-outs too, which they missed where they were nice to the others.

**Collection.** Each process collects all tests. Where none has been run before, most of that is the rewriting of the
assertions of 500 files, which pytest keeps beside them. So each process imports others of them first: what one has
rewritten, the others read.

**Groups.** Tests of files with the same `xdist_group` share a Slurm of their own kind, and those of a file with a
fixture of the module what that makes, a wheel or an environment, or with a cache of its own what that holds, such as
all files of tests as trees: each process would make it again. They come first, the groups with the most tests before
the others. pytest-xdist 3.8 means to group by that mark itself (`--dist loadgroup`), and with pytest 9.2 does not: the
id that it writes into a test is not read any more.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

GROUP = re.compile(r"^pytestmark = .*\bxdist_group\(\"(\w+)\"\)", re.MULTILINE)
SHARES = re.compile(r"^@(pytest\.fixture\(.*\bscope=\"module\"|(functools\.)?cache$)", re.MULTILINE)
WAITS = re.compile(r"\bmark\.(slurm|local)\b|\bslurm: Cluster\b|\bslurm_session\b")


class LaneScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out groups and tests in their order: from its start to lanes that wait, what computes to the others."""

    _computing: deque[str] | None = None  # what computes, in the order of the queue; some of it may have been given out

    def _split_scope(self, nodeid: str) -> str:
        return group_of(self._path(nodeid)) or nodeid

    def _path(self, nodeid: str) -> Path:
        path: Path = self.config.rootpath / nodeid.partition("::")[0]
        return path

    def _assign_work_unit(self, node: Any) -> None:
        if computes(node.gateway.id, self.numnodes):
            # The last of those that wait are real runs on this machine, for which no Slurm has to be booted.
            self.workqueue.move_to_end(self._next_that_computes() or next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _next_that_computes(self) -> str | None:
        """The first scope of the queue that computes, none if all wait; a search for each costs 20 s."""
        if self._computing is None:
            computing = (scope for scope, tests in self.workqueue.items() if not waits(self._path(next(iter(tests)))))
            self._computing = deque(computing)
        while self._computing and self._computing[0] not in self.workqueue:
            self._computing.popleft()
        return self._computing[0] if self._computing else None

    def remove_node(self, node: Any) -> str | None:
        """Looks again for what computes: the work of a process that died is back in the queue."""
        self._computing = None
        crashed: str | None = super().remove_node(node)
        return crashed

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Imports this process's share of the files first, if all are collected, which tells what fails in an import."""
    config = session.config
    mine: dict[str, Any] = getattr(config, "workerinput", {})
    folder = config.rootpath / "tests"
    if not mine or [config.invocation_params.dir / arg for arg in config.args] != [folder]:
        return
    ignores = config.pluginmanager.hook.pytest_ignore_collect
    files = [path for path in sorted(folder.rglob("test_*.py")) if not ignores(collection_path=path, config=config)]
    for path in share_of(files, mine["workerid"], mine["workercount"]):
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.relative_to(config.rootpath).with_suffix("").parts))


def share_of(files: Sequence[Path], process: str, count: int) -> list[Path]:
    """The files that a process of so many imports first; none of a package, which pytest gives another name."""
    alone = [path for path in files if not path.with_name("__init__.py").exists()]
    return alone[int(process.removeprefix("gw")) :: count]


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LaneScheduling | None:
    """Takes the place of xdist's own scheduler of groups."""
    return LaneScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None
