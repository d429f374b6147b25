"""`hpc-elastic sites`: which site files there are, what is in them, which one is used here, whether one is right."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hpc_elastic.cli.arguments import VerbParser
from hpc_elastic.errors import SiteError, UsageError
from hpc_elastic.printable import printable

_ACTIONS = ("list", "show", "which", "check")
_EXAMPLES = """\
  hpc-elastic sites list
  hpc-elastic sites show generic-slurm > site-configs/mycluster.yaml
  hpc-elastic sites which
  hpc-elastic sites check ./mycluster.yaml
"""


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "sites",
        usage="[list] | show [NAME] | which [NAME] | check NAME ...",
        description="Look at site files: list all, print one, say which is used here and why,\nor check files.",
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "action",
        metavar="ACTION",
        nargs="?",
        choices=_ACTIONS,
        default="list",
        help="list (also without an action), show, which or check",
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="the name of a site, or the path of a site file")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    names: list[str] = arguments.names
    if arguments.action == "list":
        _expect(names, 0, "list")
        return _list()
    if arguments.action == "check":
        if not names:
            raise UsageError(
                "sites check wants the files to check, or names of sites",
                tip="`hpc-elastic sites check ./mycluster.yaml`",
            )
        return _check(names)
    _expect(names, 1, arguments.action)
    path = _path_of(names[0] if names else None)
    if arguments.action == "which":
        print(path)
        return 0
    with open(path, encoding="utf-8") as file:
        text = file.read()
    print(f"# {path}", file=sys.stderr)
    print(text, end="")
    return 0


def _expect(names: Sequence[str], most: int, action: str) -> None:
    if len(names) > most:
        raise UsageError(
            f"sites {action} takes {'one name' if most else 'no name'}, found {' '.join(names)}",
            tip="`hpc-elastic sites --help` lists what it takes",
        )


def _path_of(name: str | None) -> str:
    """Return the path of the site file of this name, or of the one that is used here."""
    from hpc_elastic.api.prepare import choose_site_name
    from hpc_elastic.site.search import find_site_file, read_site_file

    path = os.path.abspath(find_site_file(name or choose_site_name(), job_dir=os.getcwd(), environ=os.environ))
    read_site_file(path)
    return path


def _list() -> int:
    from hpc_elastic.site.parse import parse_site
    from hpc_elastic.site.search import read_site_file, site_files, unusable_site_files

    rows = [("NAME", "SCHEDULER", "LAST CHECKED", "FILE")]
    for path in sorted(site_files(os.getcwd(), os.environ), key=lambda path: os.path.basename(path)):
        try:
            site = parse_site(read_site_file(path), path=path)
        except SiteError:
            name = os.path.splitext(os.path.basename(path))[0]
            rows.append((name, "-", "-", f"{path} (has mistakes; `hpc-elastic sites check` says which)"))
        else:
            rows.append((site.name, site.scheduler, site.last_checked, path))
    for path, why in unusable_site_files(os.getcwd(), os.environ):
        name, suffix = os.path.splitext(os.path.basename(path))
        rows.append((name if suffix else "-", "-", "-", f"{path} ({why})"))  # a whole folder has no name
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    for *cells, path in rows:
        start = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print(printable(f"{start}  {path}"))
    return 0


def _check(paths: Sequence[str]) -> int:
    """Check site files, and the template that each names; all mistakes of all files in one error."""
    from hpc_elastic.errors import TemplateError
    from hpc_elastic.job.document import find_place
    from hpc_elastic.render.template import load_template
    from hpc_elastic.site.config import NEVER
    from hpc_elastic.site.search import find_site, is_site_path, read_site_file

    problems: list[str] = []
    for given in paths:
        known = len(problems)
        try:
            is_file = is_site_path(given) or os.path.isfile(given)
            place = os.path.abspath(given) if is_file else given
            site = find_site(place, job_dir=os.getcwd(), environ=os.environ)
        except SiteError as error:
            problems += error.problems
            continue
        if site.template:  # that of its defaults is relative to the job
            try:
                load_template(site.template, job_dir=os.getcwd())
            except TemplateError as error:
                place = find_place(read_site_file(site.path), site.path, ("template",))
                problems.append(f"{place}: {error.message}")
        if site.last_checked == NEVER:
            print(f"{given}: nobody has run a job with this file (last_checked: never)", file=sys.stderr)
        if len(problems) == known:
            print(f"{given} is fine" + ("" if is_file else f": {site.path}"))
    if problems:
        raise SiteError(problems, tip="docs/reference/site-files.md has every key")
    return 0
