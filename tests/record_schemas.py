"""Records held against their schemas, of which each is made and checked once in a process: that takes 40 ms."""

from __future__ import annotations

import functools
from typing import Any

import jsonschema

from hpc_elastic.observe.schemas import record_schema


def assert_valid(value: Any, kind: str) -> None:
    """The value is what the schema of this kind of file asks for; kinds are as in `record_schema`."""
    error = jsonschema.exceptions.best_match(_validator(kind).iter_errors(value))
    if error is not None:
        raise error


@functools.cache
def _validator(kind: str) -> jsonschema.Draft202012Validator:
    schema = record_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)
