"""The JSON Schema of each record in a run directory, from its dataclass."""

from __future__ import annotations

import dataclasses
from typing import Any

from hpc_elastic.failures.classes import FailureClass
from hpc_elastic.observe.explain import FORMAT_VERSION as EXPLANATION_FORMAT_VERSION
from hpc_elastic.observe.explain import Explanation
from hpc_elastic.rundir import records, state_records
from hpc_elastic.rundir.error_file import FORMAT_VERSION as ERROR_FORMAT_VERSION

# The file's name below a run directory (NNNN an attempt or allocation, RRRRR a rank), or an array's: its record.
RECORDS = {
    "array.json": records.ArraySubmission,
    "submission.json": records.Submission,
    "requests.jsonl": records.Request,
    "allocations/NNNN.json": records.AllocationClaim,
    "attempts/NNNN/claim.json": records.AttemptClaim,
    "attempts/NNNN/world.json": records.World,
    "attempts/NNNN/head.json": records.HeadPresence,
    "attempts/NNNN/nodes/NODE.json": records.NodeResult,
    "attempts/NNNN/nodes/NODE.marks.jsonl": records.LogMark,
    "nodes/NODE/events.jsonl": records.Event,
    "nodes/NODE/metrics.jsonl": records.MetricData,
    "nodes/NODE/samples.jsonl": records.Sample,
    "nodes/NODE/rendezvous.json": records.RendezvousRecord,
    "budget.json": records.Budget,
    "memory/NNNN/RRRRR.json": state_records.KeptRecord,
    "memory/saved/STEP-ID/manifest.json": state_records.SaveManifest,
    "memory/NNNN/elsewhere-STEP.json": state_records.SaveManifest,
    "result.json": records.RunResultRecord,
}
ERROR_FILE = "attempts/NNNN/ranks/RRRRR/error.json"
RECORD_NAMES = (*RECORDS, ERROR_FILE)
EXPLANATION = "explain --json"  # no record: what the command prints about one run


def record_schema(file: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of one kind of file, by its name: `RECORDS`, `ERROR_FILE`, `EXPLANATION`.

    Every field is required, because a writer writes all of them; only in lines of scripts, which an older package may
    have rendered, one may be missing. Unknown fields are allowed: a newer writer may add some, and readers ignore them.
    """
    if file == ERROR_FILE:
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "error.json", **_ERROR_SCHEMA}
    from pydantic import TypeAdapter

    if file == EXPLANATION:
        schema = TypeAdapter(Explanation).json_schema()
        schema["properties"] = {"format_version": {"const": EXPLANATION_FORMAT_VERSION}, **schema["properties"]}
        schema["required"] = list(schema["properties"])
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    cls = RECORDS[file]
    schema = TypeAdapter(cls).json_schema()
    definitions = schema.get("$defs", {})
    for name, definition in [(cls.__name__, schema), *definitions.items()]:
        described = getattr(records, name, getattr(state_records, name, None))
        if dataclasses.is_dataclass(described):
            _adopt_names(definition, dataclasses.fields(described))
    if cls is records.Request:
        schema["required"] = ["format_version", "kind", "by", "time"]  # all that a script writes
    schema["properties"]["format_version"] = {"const": records.FORMAT_VERSION}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _adopt_names(definition: dict[str, Any], fields: tuple[dataclasses.Field[Any], ...]) -> None:
    """Give the properties the names that the fields have in files, and require all of them."""
    properties = definition.get("properties", {})
    named = {field.metadata.get("json", field.name): properties[field.name] for field in fields}
    definition["properties"] = named
    definition["required"] = list(named)


_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "How a rank failed: torch's error file, and our fields beside `message`.",
    "properties": {
        "message": {
            "type": "object",
            "properties": {
                "message": _TEXT,
                "extraInfo": {
                    "type": "object",
                    "properties": {"py_callstack": _TEXT, "timestamp": _TEXT},
                    "required": ["py_callstack", "timestamp"],
                },
            },
            "required": ["message", "extraInfo"],
        },
        "format_version": {"const": ERROR_FORMAT_VERSION},
        "class": {"enum": [each.value for each in FailureClass]},
        "frame": _TEXT,
        "detail": _TEXT,
        "exit_code": {"type": ["integer", "null"]},
        "signal": {"type": ["string", "null"]},
        "rank": _NUMBER,
        "local_rank": _NUMBER,
        "pid": _NUMBER,
        "node": _TEXT,
        "attempt": _NUMBER,
        "time_ns": _NUMBER,
        "stderr_tail": _TEXT,
    },
    "required": [
        *("message", "format_version", "class", "exit_code", "signal", "rank", "local_rank"),
        *("pid", "node", "attempt", "time_ns", "stderr_tail"),
    ],
}
