"""`hpc-elastic sites`: which site files there are, what is in them, which one is used here, whether one is right."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_elastic.cli.arguments import VerbParser
from hpc_elastic.errors import SiteError, UsageError
from hpc_elastic.printable import printable

if TYPE_CHECKING:
    from hpc_elastic.site.config import SiteConfig

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
    """Check site files, and the script that the template of each makes; all mistakes of all files in one error."""
    from hpc_elastic.site.config import NEVER
    from hpc_elastic.site.search import find_site_file, is_site_path

    problems: list[str] = []
    for given in paths:
        known = len(problems)
        try:
            is_file = is_site_path(given) or os.path.isfile(given)
            place = os.path.abspath(given) if is_file else given
            path = find_site_file(place, job_dir=os.getcwd(), environ=os.environ)
            site = _read_anywhere(path, given)
        except SiteError as error:
            problems += error.problems
            continue
        if site.template:  # that of its defaults is relative to the job
            problems += _problems_of_template(site.template, path)
        if site.last_checked == NEVER:
            print(f"{given}: nobody has run a job with this file (last_checked: never)", file=sys.stderr)
        if len(problems) == known:
            print(f"{given} is fine" + ("" if is_file else f": {path}"))
    if problems:
        raise SiteError(problems, tip="docs/reference/site-files.md has every key")
    return 0


def _read_anywhere(path: str, given: str) -> SiteConfig:
    """Read a site file whose variables may be set only where its users submit, and name those that are not set here."""
    from hpc_elastic.plan.references import referenced_names
    from hpc_elastic.site.parse import parse_site
    from hpc_elastic.site.search import find_site, read_site_file

    site = parse_site(read_site_file(path), path=path)
    values = [site.run_root, *(site.defaults.sbatch or {}).values()]
    names = [name for value in values if value for name in referenced_names(value) if name not in os.environ]
    if names:
        listed = ", ".join(dict.fromkeys(names))
        print(f"{given}: not set here, and each user has to have it: {listed}", file=sys.stderr)
    return find_site(path, job_dir=os.getcwd(), environ={name: f"/{name}" for name in names} | dict(os.environ))


def _problems_of_template(name: str, path: str) -> list[str]:
    """Return what keeps a site's template from making a script, with the place in the site file."""
    from hpc_elastic.api.preflight import bash_complaint
    from hpc_elastic.api.template_lint import sample_plan
    from hpc_elastic.errors import TemplateError
    from hpc_elastic.job.document import find_place
    from hpc_elastic.render.script import render_script
    from hpc_elastic.render.template import load_template
    from hpc_elastic.site.search import read_site_file

    place = find_place(read_site_file(path), path, ("template",))
    try:
        template = load_template(name, job_dir=os.getcwd())
        complaint = bash_complaint(render_script(sample_plan(template, os.sep), template))
    except TemplateError as error:
        return [f"{place}: {error.message}"]
    return [f"{place}: bash cannot read the script that {name} makes: {complaint}"] if complaint else []
