"""A record with a value of another kind: each reader says what it knows, or one plain error, and never a traceback."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.cli.main import main
from tests.cli.conftest import FakeSlurm
from tests.observe.builders import RunBuilder
from tests.observe.failed_runs import KINDS

INTERNAL_ERROR = 70
READERS = (
    ["status"],
    ["status", "--json"],
    ["explain"],
    ["explain", "--json"],
    ["explain", "--attempt", "1"],
    ["logs", "--rank", "all"],
    ["logs", "--dedupe"],
    ["logs", "--failed"],
    ["logs", "--rank", "3", "--attempt", "1"],
    ["stacks"],
)
OTHERS: tuple[Any, ...] = (None, [], {}, -1, 10**30, "x", "", [None], [{}], {"": None}, True, 1e300, [[["x"]]])


@pytest.fixture
def run(tmp_path: Path, fake_slurm: FakeSlurm) -> RunBuilder:
    fake_slurm.script("squeue", "exit 1")
    run = KINDS["exception"](tmp_path / "run")
    return run.write_rank(1, 0, "first\n").write_rank(1, 3, "third\n", "killed\n").write_rank(2, 3, "again\n")


def places(record: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each value in a record."""
    yield way
    items = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    for key, inner in items:
        yield from places(inner, (*way, key))


def changed(record: Any, way: tuple[Any, ...], value: Any) -> Any:
    """Return a record with another value at a place."""
    if not way:
        return value
    result = copy.deepcopy(record)
    inner = result
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = value
    return result


def assert_readable(run: RunBuilder, capfd: pytest.CaptureFixture[str], what: object) -> None:
    for words in READERS:
        code = main([words[0], run.layout.root, *words[1:]])
        shown = capfd.readouterr()
        assert code != INTERNAL_ERROR, (words, what, shown.err)
        assert "Traceback" not in shown.err, (words, what, shown.err)


@pytest.mark.long
def test_no_reader_stops_at_a_value_of_another_kind(run: RunBuilder, capfd: pytest.CaptureFixture[str]) -> None:
    dice = random.Random("records")
    root = Path(run.layout.root)
    records = sorted(path for path in root.rglob("*") if path.suffix in (".json", ".jsonl"))
    found = 0
    for path in records:
        text = path.read_text()
        lines = text.splitlines() if path.suffix == ".jsonl" else [text]
        ways = [(number, way) for number, line in enumerate(lines) for way in places(json.loads(line))]
        for number, way in dice.sample(ways, min(len(ways), 12)):
            value = dice.choice(OTHERS)
            damaged = [*lines]
            damaged[number] = json.dumps(changed(json.loads(lines[number]), way, value))
            path.write_text("\n".join(damaged) + "\n")
            assert_readable(run, capfd, (path.relative_to(root), way, value))
            found += 1
        path.write_text(text)
    assert found > 100


@pytest.mark.parametrize(
    ("file", "way", "value"),
    [
        ("attempts/0001/claim.json", ("spend", "restarts"), None),
        ("attempts/0002/claim.json", ("spend", "node_losses"), ""),
        ("plan.json", ("restart", "max_restarts"), [None]),
        ("plan.json", ("restart", "max_node_losses"), "x"),
        ("result.json", ("failures", "3", "error_file"), True),
        ("allocations/0001.json", ("changed_scripts",), True),
    ],
)
def test_a_value_of_another_kind_is_as_if_it_were_absent(
    run: RunBuilder, capfd: pytest.CaptureFixture[str], file: str, way: tuple[Any, ...], value: Any
) -> None:
    path = Path(run.layout.root, file)
    path.write_text(json.dumps(changed(json.loads(path.read_text()), way, value)))
    assert_readable(run, capfd, (file, way, value))


def test_a_folder_in_the_place_of_a_record_is_passed_over(run: RunBuilder, capfd: pytest.CaptureFixture[str]) -> None:
    path = Path(run.layout.error(2, 3))
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)
    assert_readable(run, capfd, path)


def test_a_report_goes_to_standard_output(
    run: RunBuilder, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("plotly")
    monkeypatch.chdir(tmp_path)
    assert main(["report", "-o", "-", run.layout.root]) == 0
    assert capfd.readouterr().out.startswith("<!doctype html>")
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize("roles", [[None], None, [{"role": "default", "attempt": "x"}], {"default": 1}], ids=repr)
def test_logs_of_all_ranks_need_no_whole_roster(
    run: RunBuilder, capfd: pytest.CaptureFixture[str], roles: object
) -> None:
    path = Path(run.layout.world(2))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"roles": roles}))
    assert main(["logs", "--rank", "all", run.layout.root]) == 0
    assert "again" in capfd.readouterr().out
