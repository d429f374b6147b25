"""`hpc-elastic schema`: the JSON Schema of job files, of site files, and of the records in a run directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hpc_elastic.cli.arguments import VerbParser
from hpc_elastic.errors import UsageError

_LIST = "hpc-elastic schema --list"


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "schema",
        usage="[--site | --record NAME | --list]",
        description="Print the JSON Schema of job files, for editors, of site files, of a record of\n"
        "a run, or of what `explain --json` prints.",
        examples="  hpc-elastic schema > job.schema.json\n  hpc-elastic schema --record result.json\n\n"
        "Then, as the first line of job.yaml:\n  # yaml-language-server: $schema=job.schema.json\n",
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--site", action="store_true", help="the schema of site files")
    chosen.add_argument("--record", metavar="NAME", help="the schema of this record, not of job files")
    chosen.add_argument("--list", action="store_true", help="the names of these")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    if arguments.list:
        from hpc_elastic.observe.schemas import EXPLANATION, RECORD_NAMES

        print("\n".join((*RECORD_NAMES, EXPLANATION)))
        return 0
    if arguments.site:
        from hpc_elastic.site.schema import site_schema

        print(json.dumps(site_schema(), indent=2, ensure_ascii=False))
        return 0
    print(json.dumps(_schema(arguments.record), indent=2, ensure_ascii=False))
    return 0


def _schema(record: str | None) -> dict[str, Any]:
    """Return the schema of the record with this name, or of job files if no name is given."""
    if record is None:
        from hpc_elastic.job.schema import job_schema

        return job_schema()
    from hpc_elastic.observe.schemas import EXPLANATION, RECORD_NAMES, record_schema

    # The folder may be left out: every record's file has a name of its own.
    found = [name for name in (*RECORD_NAMES, EXPLANATION) if record in (name, name.rpartition("/")[2])]
    if not found:
        raise UsageError(f"there is no record {record!r}", tip=f"`{_LIST}` prints the names")
    return record_schema(found[0])
