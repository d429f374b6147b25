"""The JSON Schema of job.yaml, for editors: made of the models that check it, so that both say the same."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from hpc_elastic.job.check import key_paths
from hpc_elastic.job.defaults import DEFAULTS, NOT_BUILT, ROLE_DEFAULTS
from hpc_elastic.job.sbatch_options import OPTION_PATTERN, REFUSED
from hpc_elastic.job.spec import EntrypointSpec, JobSpec, RoleSpec
from hpc_elastic.job.values import VARIABLE_PATTERN
from hpc_elastic.plan.std_streams import LocalStreams
from hpc_elastic.units import format_duration

_KINDS = ("script", "module", "command")
# Keys in the order in which people write them; the others follow as the models have them.
_FIRST = ("name", "site", "nodes", "spares", "workers_per_node", "resources", "time", "setup", "entrypoint", "roles")


def job_schema() -> dict[str, Any]:
    """Return the schema of a job file, draft 2020-12, with a description and the default of every key.

    It is about the values that YAML 1.2 reads. Spellings inside of a text, combinations of keys (grace
    above lead, min above max) and keys that are not supported yet are left to `hpc-elastic check`.
    """
    schema = JobSpec.model_json_schema()
    for path in key_paths(JobSpec):
        key = _property(schema, path)
        key.pop("default", None)
        default = default_of(path)
        if default is not None:
            key["default"] = default
        if path in NOT_BUILT:
            key["description"] += " (not supported yet)"
    del schema["$defs"][EntrypointSpec.__name__]["properties"]["function"]  # no file can hold one
    _require_work(schema)
    for keys in (schema["properties"], schema["$defs"][RoleSpec.__name__]["properties"]):
        restrict_names(keys["env"], {"pattern": VARIABLE_PATTERN})
    restrict_names(schema["properties"]["sbatch"], {"pattern": OPTION_PATTERN, "not": {"enum": sorted(REFUSED)}})
    drop_titles(schema)
    keys = schema.pop("properties")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "job.yaml of hpc_elastic",
        **schema,
        "properties": {name: keys[name] for name in dict.fromkeys((*_FIRST, *keys))},
    }


def default_of(path: str) -> Any:
    """Return the default of a key as job.yaml spells it; None for a section, and where there is none."""
    value: Any = ROLE_DEFAULTS if path.startswith("roles[].") else DEFAULTS
    parts = path.removeprefix("roles[].").split(".")
    for part in parts:
        value = getattr(value, part, None)
    if parts == ["nodes"]:
        return value.max
    if parts[0] == "nodes" or isinstance(value, BaseModel):
        return None
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, LocalStreams):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _property(schema: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the schema's entry of a key; the path's parts are looked up through references and alternatives."""
    section: Mapping[str, Any] = schema
    key: dict[str, Any] = {}
    for part in path.split("."):
        key = section["properties"][part.removesuffix("[]")]
        for choice in key.get("anyOf", [key]):
            found = _resolve(schema, choice)
            if "properties" in found:
                section = found
    return key


def _resolve(schema: Mapping[str, Any], choice: Mapping[str, Any]) -> Mapping[str, Any]:
    if "anyOf" in choice:  # nodes: a number or a map, or null
        return next((inner for inner in choice["anyOf"] if "properties" in inner), choice)
    if "items" in choice:  # roles
        return _resolve(schema, choice["items"])
    if "$ref" in choice:
        resolved: Mapping[str, Any] = schema["$defs"][choice["$ref"].rsplit("/", 1)[-1]]
        return resolved
    return choice


def _require_work(schema: dict[str, Any]) -> None:
    next(choice for choice in schema["properties"]["roles"]["anyOf"] if "items" in choice)["minItems"] = 1
    schema["anyOf"] = [_given("entrypoint"), _given("roles")]
    schema["$defs"][RoleSpec.__name__]["allOf"] = [_given("name", "entrypoint")]
    schema["$defs"][EntrypointSpec.__name__]["oneOf"] = [_given(kind) for kind in _KINDS]


def _given(*keys: str) -> dict[str, Any]:
    return {"required": [*keys], "properties": {key: {"not": {"type": "null"}} for key in keys}}


def restrict_names(key: Mapping[str, Any], names: Mapping[str, Any]) -> None:
    """Add the pattern of a map's keys, which pydantic leaves out if a function checks them."""
    for choice in key.get("anyOf", [key]):
        if choice.get("type") == "object":
            choice["propertyNames"] = names


def drop_titles(value: Any) -> None:
    """Remove pydantic's titles, which repeat the keys; keep a key that is called title."""
    if isinstance(value, dict):
        if isinstance(value.get("title"), str):
            del value["title"]
        for inner in value.values():
            drop_titles(inner)
    elif isinstance(value, list):
        for inner in value:
            drop_titles(inner)
