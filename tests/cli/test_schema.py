"""Every record of a run directory has a JSON Schema that the command prints."""

from __future__ import annotations

import dataclasses
import json

import jsonschema
import pytest

from hpc_elastic.cli.main import main
from hpc_elastic.codec import to_json
from hpc_elastic.observe.schemas import EXPLANATION, RECORD_NAMES, RECORDS
from hpc_elastic.rundir import records, state_records

Capture = pytest.CaptureFixture[str]


def test_list_prints_the_names_of_all_records(capsys: Capture) -> None:
    assert main(["schema", "--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [*RECORD_NAMES, EXPLANATION]


def test_every_record_that_is_a_file_of_its_own_has_a_schema() -> None:
    """A record is told from its parts by its `format_version`."""
    modules = (records, state_records)
    described = {cls for module in modules for cls in vars(module).values() if dataclasses.is_dataclass(cls)}
    files = {cls for cls in described if any(field.name == "format_version" for field in dataclasses.fields(cls))}
    assert files == set(RECORDS.values())


@pytest.mark.parametrize("name", [*RECORD_NAMES, EXPLANATION])
def test_schema_of_a_record_is_printed_by_path_and_by_name(name: str, capsys: Capture) -> None:
    assert main(["schema", "--record", name]) == 0
    by_path = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(by_path)
    assert "format_version" in by_path["required"]
    assert main(["schema", "--record", name.rpartition("/")[2]]) == 0
    assert json.loads(capsys.readouterr().out) == by_path


def test_schema_rejects_an_unknown_record(capsys: Capture) -> None:
    assert main(["schema", "--record", "results.json"]) == 2
    assert "there is no record 'results.json'" in capsys.readouterr().err


def test_the_line_that_a_script_writes_for_a_signal_is_a_request(capsys: Capture) -> None:
    line = {
        "format_version": 1,
        "kind": "notice",
        "by": "slurm",
        "time": "2026-11-23T17:31:01.189682Z",
        "id": "slurm-20-1",
    }
    assert main(["schema", "--record", "requests.jsonl"]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(schema).validate(line)
    jsonschema.Draft202012Validator(schema).validate(to_json(records.Request(kind="stop", by="ada@login1", time="")))
