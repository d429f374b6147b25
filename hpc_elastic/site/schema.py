"""The JSON Schema of site files, for editors: made of the models that check them, so that both say the same."""

from __future__ import annotations

from typing import Any

from hpc_elastic.job.defaults import NOT_BUILT
from hpc_elastic.job.sbatch_options import OPTION_PATTERN, REFUSED
from hpc_elastic.job.schema import drop_titles, restrict_names
from hpc_elastic.job.spec import EntrypointSpec, JobDefaults
from hpc_elastic.job.values import VARIABLE_PATTERN
from hpc_elastic.site.config import SiteConfig


def site_schema() -> dict[str, Any]:
    """Return the schema of a site file, draft 2020-12, with a description of every key.

    Combinations of keys, and keys of `defaults:` that are not supported yet, are left to `hpc-elastic sites check`.
    """
    schema = SiteConfig.model_json_schema()
    definitions = schema["$defs"]
    definitions.pop(EntrypointSpec.__name__, None)
    defaults = definitions[JobDefaults.__name__]["properties"]
    for section in {path.partition(".")[0] for path in NOT_BUILT}:
        defaults[section]["description"] += " (not supported yet)"
    restrict_names(defaults["env"], {"pattern": VARIABLE_PATTERN})
    restrict_names(defaults["sbatch"], {"pattern": OPTION_PATTERN, "not": {"enum": sorted(REFUSED)}})
    for definition in (schema, *definitions.values()):
        for key in definition.get("properties", {}).values():
            if key.get("default") in (None, [], {}):
                key.pop("default", None)
    # A key of the file's top level with nothing behind it counts as left out.
    for name, key in schema["properties"].items():
        if name not in schema["required"] and not any(choice == {"type": "null"} for choice in key.get("anyOf", ())):
            description = key.pop("description")
            schema["properties"][name] = {"anyOf": [key, {"type": "null"}], "description": description}
    drop_titles(schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a site file of hpc_elastic",
        **schema,
    }
