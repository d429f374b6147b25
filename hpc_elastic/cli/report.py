"""`hpc-elastic report`: one page about a run, for a browser."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hpc_elastic.api.find import find_run
from hpc_elastic.cli.arguments import VerbParser, add_run
from hpc_elastic.cli.look import look, note
from hpc_elastic.cli.output import write_whole
from hpc_elastic.errors import FileSystemError
from hpc_elastic.printable import printable
from hpc_elastic.rundir import store


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "report",
        usage="[-o FILE] [RUN]",
        description="Write one page about a run that opens in a browser, without a network: what\n"
        "each node did and when, useful and lost time, restarts, failures with their\n"
        "stacks, how busy the nodes were. It needs: pip install 'hpc-elastic[report]'.",
        examples="  hpc-elastic report\n  hpc-elastic report digits -o report.html\n",
    )
    add_run(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="report.html",
        help="the page, - for standard output; default: report.html",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    layout = find_run(arguments.run, say=note)
    from hpc_elastic.observe.report.collect import collect_report
    from hpc_elastic.observe.report.page import drawing_library, render_page

    library = drawing_library()  # first: without it there is nothing to read for
    page = render_page(collect_report(layout, look(layout)), library)
    if arguments.output == "-":
        store.write_all(sys.stdout.fileno(), page.encode(errors="replace"))
        return 0
    path = os.path.abspath(arguments.output)
    try:
        write_whole(path, page)
    except OSError as error:
        raise FileSystemError(f"cannot write {path}: {error.strerror}", tip="choose another file with -o") from error
    note(f"report of {layout.root}")
    print(printable(path))
    return 0
