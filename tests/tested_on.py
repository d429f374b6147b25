"""Writes down on what the tests passed: docs/reference/tested-on.json, and the table that the README makes of it.

    pytest --record-tested docs/reference/tested-on.json ...    a run adds what it has passed on, if nothing failed
    python -m tests.tested_on                                   writes the table into the README

A record is what passed on one Slurm (as its slurmctld reports itself; null without one), Python, torch (null without
it) and selection of tests (`-m`); a newer run's takes its place. Nothing is written without the option.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
FILE = REPOSITORY / "docs/reference/tested-on.json"
MARK = "tested on"
# By the expression of `-m`: the target of the Makefile.
TIERS = {
    "not slurm and not local and not long and not variant": "check",
    "not variant": "test",
    "": "test-all",
    "slurm": "test-slurm",
}
_PROPERTY = "slurmctld"
_VERSION = pytest.StashKey[str]()


@dataclass(frozen=True, kw_only=True)
class Record:
    """What passed where; `selection` is the expression of `-m`, empty for all."""

    date: str
    slurm: str | None
    python: str
    torch: str | None
    kernel: str
    selection: str
    passed: int
    skipped: int

    @property
    def key(self) -> tuple[str, ...]:
        """Of records with the same key the newest counts."""
        return (_order(self.slurm), _order(self.python), self.torch or "", self.selection)


def read(path: Path) -> list[Record]:
    """The records of a file, none if there is no file."""
    return [Record(**entry) for entry in json.loads(path.read_text())] if path.exists() else []


def add(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """Old records, and new ones in the place of those with their keys; in order of Slurm and Python."""
    found = {record.key: record for record in (*old, *new)}
    return [found[key] for key in sorted(found)]


def write(path: Path, records: Iterable[Record]) -> None:
    """Writes the file at once or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps([asdict(record) for record in records], indent=1) + "\n")
    partial.replace(path)


def table(records: Iterable[Record]) -> list[str]:
    """The rows for the README, each with the command that runs these tests."""
    rows = ["| Slurm | Python | torch | Linux | tests | passed | skipped | on |", "|---|---|---|---|---|---|---|---|"]
    for each in records:
        columns = (each.slurm or "none", each.python, each.torch or "none", each.kernel, command_of(each.selection))
        rows.append(f"| {' | '.join(columns)} | {each.passed} | {each.skipped} | {each.date} |")
    return rows


def command_of(selection: str) -> str:
    """The command that selects so; another one's own expression if there is none."""
    return f"`make {TIERS[selection]}`" if selection in TIERS else f"`pytest -m '{selection}'`"


def fill_readme(text: str, records: Iterable[Record]) -> str:
    """Return the README with a new table."""
    from benchmarks.pages import fill

    return fill(text, MARK, table(records))


class Recorder:
    """Counts the outcomes of a session's tests by the Slurm that they ran on, and writes them at the end."""

    def __init__(self, path: Path, selection: str) -> None:
        self._path = path
        self._selection = selection
        self._passed: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the outcome of each phase of each test; under xdist in the process that has started the others."""
        slurm = str(dict(report.user_properties).get(_PROPERTY, ""))
        if report.when == "call" and report.passed:
            self._passed[slurm] += 1
        elif report.skipped:
            self._skipped[slurm] += 1

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the record, unless a test failed or none ran."""
        if exitstatus == pytest.ExitCode.OK and self._passed:
            write(self._path, add(read(self._path), self._records()))

    def _records(self) -> list[Record]:
        return [
            Record(
                date=datetime.now(timezone.utc).date().isoformat(),
                slurm=slurm or None,
                python=platform.python_version(),
                torch=_torch(),
                kernel=".".join(platform.release().split(".")[:2]),
                selection=self._selection,
                passed=self._passed[slurm],
                skipped=self._skipped[slurm],
            )
            for slurm in self._passed
        ]


class Asker:
    """Asks the slurmctld of each test for its version; once a configuration, in the process that runs the test."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Adds the version to the report; asks before the test, which may leave a slurmctld that does not answer."""
        report = yield
        if report.passed and "slurm_session" in getattr(item, "fixturenames", ()):
            if report.when == "setup":
                item.stash[_VERSION] = self._ask(item.funcargs["slurm_session"].variables)  # type: ignore[attr-defined]
            elif report.when == "call":
                report.user_properties.append((_PROPERTY, item.stash[_VERSION]))
        return report

    def _ask(self, variables: Mapping[str, str]) -> str:
        configuration = variables["SLURM_CONF"]
        if configuration not in self._known:
            command = ["scontrol", "show", "config"]
            done = subprocess.run(
                command, env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=60
            )
            try:
                self._known[configuration] = parse_version(done.stdout)
            except ValueError:
                return "unknown"  # which stands in the table; the next test asks again
        return self._known[configuration]


def parse_version(text: str) -> str:
    """The version in what `scontrol show config` prints, which slurmctld itself has answered.

    Raises:
        ValueError: there is none.
    """
    found = re.search(r"^SLURM_VERSION\s*=\s*(\S+)$", text, re.M)
    if found is None:
        raise ValueError(f"scontrol show config: expected a line SLURM_VERSION, found {text[:200]!r}")
    return found[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that lets a run be recorded."""
    parser.addoption("--record-tested", metavar="FILE", type=Path, help="add to FILE on what the tests passed")


def pytest_configure(config: pytest.Config) -> None:
    """Counts in the process that was started, asks where the tests run."""
    if (path := config.getoption("--record-tested")) is not None:
        config.pluginmanager.register(Asker())
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Recorder(path.absolute(), config.getoption("markexpr")))


def _torch() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def _order(version: str | None) -> str:
    """A key by which versions sort as numbers do; none comes first."""
    return ".".join(part.zfill(4) for part in (version or "").split("."))


def main() -> None:
    """Writes the README's table."""
    readme = REPOSITORY / "README.md"
    readme.write_text(fill_readme(readme.read_text(), read(FILE)))


if __name__ == "__main__":
    main()
