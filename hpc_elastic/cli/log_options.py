"""torchrun's log options, in torchrun's spellings, as keys of a job file (torch 2.13, distributed/run.py)."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping

from hpc_elastic.cli.arguments import VerbParser
from hpc_elastic.plan.log_prefix import PREFIX_VARIABLE


def add_log_options(parser: VerbParser) -> None:
    """Add torchrun's log options to the parser."""
    streams = "0-3, or by local rank as in 0:3,1:2"
    parser.add_argument("-r", "--redirects", metavar="STREAMS", help=f"what goes to files: {streams}; default 3")
    parser.add_argument("-t", "--tee", metavar="STREAMS", help=f"what the agents' logs repeat: {streams}")
    parser.add_argument(
        "--local-ranks-filter", "--local_ranks_filter", metavar="R,R", help="show these in the agents' logs only"
    )
    for stream in ("stdout", "stderr"):
        names = (f"--duplicate-{stream}-filters", f"--duplicate_{stream}_filters")
        parser.add_argument(*names, metavar="A,B", help=f"copy repeated lines of {stream} with A or B to a file")


def read_log_options(arguments: Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the given options as keys of a job file with values in YAML; the job's check finds wrong values.

    Args:
        arguments: the command line.
        environ: where torchrun looks for the template of prefixes.
    """
    given = {}
    if environ.get(PREFIX_VARIABLE):
        given["logs.prefix"] = json.dumps(environ[PREFIX_VARIABLE])
    for name in ("redirects", "tee"):
        if getattr(arguments, name) is not None:
            given[f"logs.{name}"] = json.dumps(getattr(arguments, name))
    if arguments.local_ranks_filter is not None:
        # `int` takes spaces around a number; any other text is left to the job's check.
        words = [word.strip() for word in arguments.local_ranks_filter.split(",")]
        given["logs.local_ranks_filter"] = json.dumps([int(word) if word.isdecimal() else word for word in words])
    for stream in ("stdout", "stderr"):
        name = f"duplicate_{stream}_filters"
        if getattr(arguments, name) is not None:
            given[f"logs.{name}"] = json.dumps(split_list(getattr(arguments, name)))
    return given


def split_list(text: str) -> list[str]:
    """Split a text at its commas; two commas stand for a comma in an item."""
    return [item.replace("\0", ",") for item in text.replace(",,", "\0").split(",")]
