"""The fixtures of the whole suite: a real Slurm.

Tests marked `slurm` share one Slurm a session, so under xdist they share one worker. Where there is
no Slurm they skip; with HPC_ELASTIC_REQUIRE_SLURM=1 a skip of theirs is a failure.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator

import pytest

from tests.slurm_sandbox.cluster import Cluster
from tests.slurm_sandbox.versions import why_impossible

_FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Tests marked `gpu` run on machines that have no pytest-timeout, whose option the configuration sets."""
    with contextlib.suppress(ValueError):  # it is there
        parser.addini("timeout", "ignored: pytest-timeout is not installed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what uses the Slurm, before `-m` selects, and keeps it on one xdist worker."""
    for item in items:
        if "slurm_session" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slurm)
        if item.get_closest_marker("slurm") and config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group("slurm"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes which tests failed, and makes a skip a failure where Slurm is required."""
    report = yield
    required = os.environ.get("HPC_ELASTIC_REQUIRE_SLURM") == "1"
    if report.skipped and required and item.get_closest_marker("slurm"):
        report.outcome = "failed"
        report.longrepr = f"skipped although HPC_ELASTIC_REQUIRE_SLURM=1: {report.longrepr}"
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.fixture(scope="session")
def slurm_session() -> Iterator[Cluster]:
    """A Slurm with 4 nodes for the session; it dies with this process, however that ends."""
    if reason := why_impossible():
        pytest.skip(reason)
    cluster = Cluster.start(4, owner=os.getpid())
    yield cluster
    cluster.down()


@pytest.fixture
def slurm(slurm_session: Cluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The session's Slurm, all nodes idle, with the environment set up for its commands.

    A test that leaves a job behind fails; machines that it cut off or switched off are mended.
    """
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]:
        monkeypatch.delenv(name)
    for name, value in slurm_session.variables.items():
        monkeypatch.setenv(name, value)
    yield slurm_session
    failed = request.node.stash.get(_FAILED, False)
    left = slurm_session.leftovers(within_s=0 if failed else 15)
    assert failed or not left, f"the test left jobs behind: {left}"
