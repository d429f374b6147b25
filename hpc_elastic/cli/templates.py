"""`hpc-elastic templates`: the templates that there are, what a site changes in them, and whether one works."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence

from hpc_elastic.cli.arguments import VerbParser
from hpc_elastic.errors import TemplateError, UsageError

_EXAMPLES = """\
  hpc-elastic templates list
  hpc-elastic templates show slurm/job.sh.j2
  hpc-elastic templates diff mycluster
  hpc-elastic templates lint ./mycluster.sh.j2
"""
_TAKES = {"list": "no name", "show": "the name of a template", "diff": "a site", "lint": "a template"}


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "templates",
        usage="list | show NAME | diff SITE | lint FILE [options]",
        description="Look at templates: list ours, print one, show what a site's own one changes\n"
        "in the script, or try one: render it with hostile values, give it to bash and\n"
        "shellcheck, and run the script with an srun that ends with 42.",
        examples=_EXAMPLES,
    )
    parser.add_argument("action", metavar="ACTION", choices=list(_TAKES), help="list, show, diff or lint")
    parser.add_argument("name", metavar="NAME", nargs="?", help="a template, a site, or the path of one")
    parser.add_argument("--no-run", action="store_true", help="lint: do not run the script, which calls what it calls")
    parser.add_argument(
        "--launcher",
        metavar="PROGRAM",
        action="append",
        default=[],
        help="lint: a program that starts the agents instead of srun",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_intermixed_args(argv)
    action, name = arguments.action, arguments.name
    if (name is None) != (action == "list"):
        raise UsageError(f"templates {action} takes {_TAKES[action]}", tip="`hpc-elastic templates --help` says more")
    if action == "list":
        return _list()
    if action == "show":
        return _show(name)
    return _diff(name) if action == "diff" else _lint(name, arguments.no_run, arguments.launcher)


def _list() -> int:
    from hpc_elastic.shipped import shipped_directory

    root = shipped_directory("templates")
    for folder, _, files in sorted(os.walk(root)):
        for file in sorted(file for file in files if file.endswith(".j2")):
            print(os.path.relpath(os.path.join(folder, file), root))
    print(f"in {root}", file=sys.stderr)
    return 0


def _show(name: str) -> int:
    from hpc_elastic.render.template import read_template

    source = read_template(name, job_dir=os.getcwd())
    print(f"# {source.path}", file=sys.stderr)
    print(source.text, end="")
    return 0


def _diff(site_name: str) -> int:
    """Print what the site's template changes in the script of a small job, beside what the job itself asks for."""
    from hpc_elastic.api.template_lint import sample_plan
    from hpc_elastic.render.script import render_script
    from hpc_elastic.render.template import load_template
    from hpc_elastic.site.search import find_site, is_site_path

    name = os.path.abspath(site_name) if is_site_path(site_name) else site_name
    site = find_site(name, job_dir=os.getcwd(), environ=os.environ)
    ours = f"{site.scheduler}/job.sh.j2"
    theirs = site.defaults.template or site.template
    if theirs is None or theirs == ours:
        print(f"site {site.name} has no template of its own: {ours} is used as it is", file=sys.stderr)
        return 0

    def lines(template_name: str) -> list[str]:
        template = load_template(template_name, job_dir=os.getcwd())
        return render_script(sample_plan(template, os.sep), template).splitlines(keepends=True)

    sys.stdout.writelines(difflib.unified_diff(lines(ours), lines(theirs), fromfile=ours, tofile=theirs))
    return 0


def _lint(name: str, is_only_read: bool, launchers: Sequence[str]) -> int:
    from hpc_elastic.api.template_lint import lint_template

    problems = lint_template(name, runs=not is_only_read, launchers=launchers)
    if problems:
        raise TemplateError("\n".join(problems), tip="templates/README.md has the contract")
    print(f"{name} is fine" + (" as far as it can be read; the script was not run" if is_only_read else ""))
    return 0
