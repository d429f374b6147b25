"""The fixtures of the whole suite: a real Slurm for each xdist worker and version, and nothing left behind.

Tests marked `slurm` run on the Slurms of `--slurm`, by default the machine's own: all of them on the
first one, and those marked `every_slurm` or `mirrored` on the others too; what is `mirrored` is a
variant there, which `make test` leaves out. Each xdist worker boots a sandbox of its
own for each version that its tests need, and keeps it to the end of the session. Where a version
cannot be had its tests skip and say why; a skip on a version that HPC_ELASTIC_REQUIRE_SLURM names is a
failure. A session that leaves a process behind fails.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import re
import signal
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from tests import memory_folder, remains, slurm_choice
from tests.slurm_sandbox import versions
from tests.slurm_sandbox.cluster import Cluster, wait_until

Sandboxes = Callable[[str], Cluster]

pytest_plugins = ["tests.tested_on"]
if importlib.util.find_spec("xdist") is not None:
    pytest_plugins.append("tests.distribution")
with contextlib.suppress(ImportError):  # a machine with other work on it is slow, and no test of values fails for that
    import hypothesis

    hypothesis.settings.register_profile(
        "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.register_profile(  # of make check, which leaves the hundred examples to make test
        "quick", hypothesis.settings.get_profile("any machine"), max_examples=15
    )
    hypothesis.settings.load_profile("any machine")
_OF_ALL_TESTS = re.compile(r"^pytestmark = \[?pytest\.mark\.(local|slurm)\b", re.MULTILINE)
_FAILED = pytest.StashKey[bool]()
_SLURMS = pytest.StashKey[Sequence[str]]()
_REQUIRED = pytest.StashKey[Sequence[str]]()
_REQUIREMENT = pytest.StashKey[str]()  # as it was said; a test may have cleared its environment


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--slurm`; and the setting of pytest-timeout for machines that run tests marked `gpu` without it."""
    parser.addoption(
        "--slurm",
        default=slurm_choice.OWN,
        metavar="VERSIONS",
        help=f"{slurm_choice.OWN} (the machine's), or some of {','.join(versions.SUPPORTED)}: Slurm tests run on the "
        "first one, those marked every_slurm or mirrored on each",
    )
    parser.addoption(
        "--tell-at-once",
        action="store_true",
        help="tell why a test has failed as soon as it has, not only at the end, which a run of hours may not reach",
    )
    parser.addini("ends_within_s", "for how long a session waits for the end of its last processes", default="20")
    with contextlib.suppress(ValueError):  # it is there
        parser.addini("timeout", "ignored: pytest-timeout is not installed")


def pytest_configure(config: pytest.Config) -> None:
    """Decides on which Slurms tests run, and marks this session and all that it will start."""
    os.environ.pop("PYTHONUNBUFFERED", None)  # an image's: with it nobody sees that a program's output comes too late
    own = versions.own()
    try:
        config.stash[_SLURMS] = slurm_choice.parse_versions(config.getoption("--slurm"), own=own)
        config.stash[_REQUIRED] = slurm_choice.parse_required(os.environ, own=own)
        config.stash[_REQUIREMENT] = f"{slurm_choice.REQUIRED}={os.environ.get(slurm_choice.REQUIRED, '')}"
        slurm_choice.check(config.stash[_SLURMS], config.stash[_REQUIRED])
    except slurm_choice.ChoiceError as error:
        raise pytest.UsageError(str(error)) from error
    if not _is_xdist_worker(config):
        if config.getoption("tell_at_once"):
            config.pluginmanager.register(_TellsAtOnce(config))
        os.environ[remains.MARK] = uuid.uuid4().hex
        if config.getoption("basetemp") is None and "not slurm" in config.getoption("markexpr").split(" and "):
            memory_folder.use_memory()
    _let_children_have_default_signals()


class _TellsAtOnce:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Prints why a test has failed; at the end pytest does so again, with what the test had captured."""
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if report.failed and reporter is not None:
            reporter.write_line(f"\n{report.nodeid} has failed:\n{report.longreprtext}")


def _let_children_have_default_signals() -> None:
    """Lets what tests start die of, and trap, the signals that are ignored here: below nohup, or beside a shell.

    This process goes on ignoring them, by a handler that does nothing, which no program keeps through an exec.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a Slurm test on the session's first Slurm, and on all of them if it is `every_slurm` or `mirrored`."""
    if "slurm_version" in metafunc.fixturenames:
        chosen = metafunc.config.stash[_SLURMS]
        is_on_every = any(metafunc.definition.get_closest_marker(name) for name in ("every_slurm", "mirrored"))
        metafunc.parametrize("slurm_version", chosen if is_on_every else chosen[:1])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out a file of a folder whose tests all have a mark that `-m` excludes, as 80 have for make check."""
    expression = config.getoption("markexpr")
    if not collection_path.match("test_*.py") or " or " in expression:
        return None
    mark = _OF_ALL_TESTS.search(collection_path.read_text())
    return True if mark is not None and f"not {mark[1]}" in expression.split(" and ") else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the collector of garbage off what the collection of tests makes: a million objects, and none is garbage.

    It looked at all of them again and again, which took a third of the time of a collection, in each xdist worker.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what uses a Slurm, and what is mirrored on a later one, before `-m` selects; puts the longest first.

    Slurm tests take longest and wait most, one version after the other; then real runs on this machine. What is left
    at the end is short, so that no worker is idle for long. A test is not there on a Slurm that `every_slurm` excepts:
    a skip would say that something is missing here.
    """
    chosen = config.stash[_SLURMS]
    excepted = [item for item in items if _version(item) in _exceptions(item)]
    if excepted:
        config.hook.pytest_deselected(items=excepted)
        items[:] = [item for item in items if item not in excepted]
    for item in items:
        if "slurm_session" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slurm)
        if item.get_closest_marker("mirrored") is not None and _version(item) not in ("", chosen[0]):
            item.add_marker(pytest.mark.variant(of=getattr(item, "originalname", item.name)))
    items.sort(key=lambda item: _turn(item, chosen))


def _turn(item: pytest.Item, slurms: Sequence[str]) -> int:
    """When a test runs: less is earlier."""
    if version := _version(item):
        return slurms.index(version)
    if item.get_closest_marker("slurm") is not None:  # with a Slurm of its own kind
        return 0
    return len(slurms) + (item.get_closest_marker("local") is None)


def _version(item: pytest.Item) -> str:
    """The Slurm that a test's fixtures are of; none if it uses none."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("slurm_version", "")) if callspec else ""


def _exceptions(item: pytest.Item) -> Sequence[str]:
    """The Slurms that a test is not for: `every_slurm(but=("26.05",))`."""
    mark = item.get_closest_marker("every_slurm")
    return mark.kwargs.get("but", ()) if mark is not None else ()


def _subject(item: pytest.Item) -> str:
    """The Slurm that a test is about: its parameter `version`, if it boots that one itself beside the fixture's."""
    callspec = getattr(item, "callspec", None)
    named = callspec.params.get("version") if callspec else None
    return str(named) if named in versions.SUPPORTED else _version(item) or versions.own() or slurm_choice.OWN


def _may_not_skip(item: pytest.Item) -> bool:
    """Whether this test's Slurm is required; nobody can install what one marked `cgroups` needs of the computer."""
    is_possible = item.get_closest_marker("slurm") is not None and item.get_closest_marker("cgroups") is None
    return is_possible and _subject(item) in item.config.stash[_REQUIRED]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes which tests failed and what their Slurm says, and makes a skip a failure where that Slurm is required."""
    report = yield
    if report.skipped and _may_not_skip(item):
        report.outcome = "failed"
        report.longrepr = f"skipped although {item.config.stash[_REQUIREMENT]}: {report.longrepr}"
    if report.failed:
        item.stash[_FAILED] = True
        if isinstance(cluster := getattr(item, "funcargs", {}).get("slurm_session"), Cluster):
            report.sections.append(("Slurm", cluster.report()))
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Fails a session that leaves a process, after xdist has ended its workers."""
    yield
    if _is_xdist_worker(session.config):
        return
    # This process has one of its own if a test has used shared memory; it would end only with it.
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]
    mark, within_s = os.environ[remains.MARK], float(session.config.getini("ends_within_s"))
    try:
        wait_until(lambda: not remains.processes_of(mark), "all processes have ended", within_s=within_s)
    except AssertionError:
        lines = [f"{pid} {command}" for pid, command in remains.processes_of(mark).items()]
        print("\nERROR: the tests left processes behind:", *lines, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _is_xdist_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.fixture(scope="session")
def slurm_sandboxes() -> Iterator[Sandboxes]:
    """Gives this worker's Slurm of a version, with 4 nodes; it dies with this process, however that ends."""
    booted: dict[str, Cluster] = {}

    def boot_once(version: str) -> Cluster:
        if version not in booted:
            booted[version] = Cluster.start(4, owner=os.getpid(), version=_number(version))
        return booted[version]

    yield boot_once
    for cluster in booted.values():
        cluster.down()


def _number(version: str) -> str | None:
    return None if version == slurm_choice.OWN else version


@pytest.fixture
def slurm_session(slurm_version: str, slurm_sandboxes: Sandboxes) -> Cluster:
    """This worker's Slurm of the test's version."""
    if reason := versions.why_impossible(_number(slurm_version)):
        pytest.skip(reason)
    return slurm_sandboxes(slurm_version)


@pytest.fixture
def slurm(slurm_session: Cluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """That Slurm, all nodes idle, with the environment set up for its commands.

    A test that leaves a job behind fails; machines that it cut off or switched off are mended.
    """
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]:
        monkeypatch.delenv(name)
    for name, value in slurm_session.variables.items():
        monkeypatch.setenv(name, value)
    yield slurm_session
    failed = request.node.stash.get(_FAILED, False)
    # Slurm 24.11 starts a job that was preempted in its grace once more as it ends, which finds the result.
    left = slurm_session.leftovers(within_s=0 if failed else 60)
    assert failed or not left, f"the test left jobs behind: {left}"
