"""`hpc-elastic doctor`: tries what runs need of this cluster, here and on nodes, and says what to do about the rest."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, NoReturn

from hpc_elastic.cli.arguments import VerbParser, add_json, terminal_width
from hpc_elastic.cli.output import write_whole
from hpc_elastic.errors import UsageError
from hpc_elastic.scheduler.slurm.allocated import count_nodes
from hpc_elastic.units import parse_duration

if TYPE_CHECKING:
    from hpc_elastic.api.prepare import PreparedRun
    from hpc_elastic.cli.foreground import ForegroundScheduler
    from hpc_elastic.doctor.examine import Examined
    from hpc_elastic.plan.launch_plan import LaunchPlan
    from hpc_elastic.scheduler.protocol import Scheduler

_WAIT = "10m"
_NODES = 2
_SETTLES_WITHIN_S = 15.0
_EXAMPLES = """\
  hpc-elastic doctor
  hpc-elastic doctor --nodes 4 --set sbatch.account=abc
  hpc-elastic doctor --site ./mycluster.yaml --json
  hpc-elastic doctor --write ./mycluster.yaml

The job of 10 minutes at most is started as runs are: with the site's setup
lines, Python, options and template. Inside salloc or an sbatch script its
nodes are used. The exit code is 1 if a check failed, else 0. Ctrl-C ends the
job.
"""


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "doctor",
        usage="[--site NAME] [--nodes N] [options]",
        description="Try what runs need of this cluster: Slurm's settings, the shared folder, and in\n"
        "a short job names, interfaces, ports, clocks, Python, torch, GPUs and limits.",
        examples=_EXAMPLES,
    )
    parser.add_argument("--site", metavar="NAME", help="the site; default: what is found, as for `submit`")
    parser.add_argument("--nodes", metavar="N", help=f"how many nodes; default {_NODES}; 0: no job, only here")
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a key of the job: --set sbatch.partition=gpu",
    )
    parser.add_argument("--wait", metavar="TIME", default=_WAIT, help=f"how long the job may wait; default {_WAIT}")
    parser.add_argument("--write", metavar="FILE", help="draft a site file from what is found; never over another file")
    add_json(parser, "print one object: site, job_id, nodes, verdict, checks")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    from hpc_elastic.cli.look import note
    from hpc_elastic.cli.output import print_json
    from hpc_elastic.cli.run import check_allocation, find_allocation
    from hpc_elastic.doctor.examine import examine
    from hpc_elastic.doctor.present import table, to_object
    from hpc_elastic.doctor.probe_job import prepare_probe
    from hpc_elastic.doctor.results import Severity, worst

    pending_s, allocation = _seconds(arguments.wait), find_allocation(os.environ)
    nodes = _count(arguments.nodes, os.environ if allocation else {})
    if arguments.write:
        _check_new(arguments.write)
    prepared = prepare_probe(
        max(1, nodes),
        site_name=arguments.site,
        overrides=arguments.overrides,
        is_allocated=allocation is not None or nodes == 0,  # no job: nothing is asked of a partition
        say=note,
    )
    if allocation is not None and prepared.plan.scheduler == "slurm":
        check_allocation(prepared.plan, allocation, os.environ)
    with _scheduler_of(prepared.plan, allocation) as scheduler:
        examined = examine(prepared, scheduler if nodes else None, pending_s=pending_s, say=note)
    if arguments.json:
        job_id, names = (examined.outcome.job_id, examined.outcome.nodes) if examined.outcome else (None, ())
        print_json(to_object(examined.groups, site=prepared.site.name, job_id=job_id, nodes=names))
    else:
        has_colours = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
        print(table(examined.groups, terminal_width(), has_colours=has_colours))
    if arguments.write:
        _write(arguments.write, prepared, examined)
        note(f"wrote {arguments.write}; read it before you use it")
    return int(worst(examined.results) is Severity.FAIL)


def _seconds(text: str) -> float:
    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise UsageError(f"--wait: {error}") from None


def _count(text: str | None, environ: Mapping[str, str]) -> int:
    """Return the number of nodes: what is asked for, else all of the allocation, else two."""
    given = text or count_nodes(environ) or str(_NODES)
    if not given.isdecimal() or not given.isascii() or len(given) > 5:
        raise UsageError(f"--nodes is {given!r}, expected a number", tip="--nodes 0 looks at this machine only")
    return int(given)


def _site_name(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def _check_new(path: str) -> None:
    """Refuse a path at which no site file can be drafted, before anything takes time."""
    from hpc_elastic.job.values import check_name

    if os.path.lexists(path):
        raise UsageError(f"{path} is there already", tip="--write never changes a file: name another one")
    if not path.endswith((".yaml", ".yml")):
        raise UsageError(f"{path} is no name of a site file", tip="a site file ends in .yaml, as mycluster.yaml")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder}", tip="make it first: `mkdir -p`")
    try:
        check_name(_site_name(path))
    except ValueError as error:
        raise UsageError(f"{path}: a site is called as its file: {error}") from None


def _write(path: str, prepared: PreparedRun, examined: Examined) -> None:
    """Write a draft that `sites check` accepts, whole or not at all, and never over another file.

    Raises:
        UsageError: the file has come to be meanwhile, or cannot be written.
    """
    from hpc_elastic.api.identity import host_name, user_name
    from hpc_elastic.doctor.draft import DraftFacts, draft_site
    from hpc_elastic.site.parse import parse_site

    site = prepared.site
    facts = DraftFacts(
        name=_site_name(path),
        contact=f"{user_name()}@{host_name()}",
        day=date.today().isoformat(),
        scheduler=prepared.plan.scheduler,
        config=examined.slurm.config,
        partitions=examined.slurm.partitions,
        told=examined.told,
        results=examined.results,
        interface=site.network.interface,
        port_range=site.network.port_range,
        run_root=site.run_root,
        scratch=site.scratch,
    )
    text = draft_site(facts)
    parse_site(text, path=os.path.abspath(path))
    try:
        write_whole(path, text, mode="x")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", tip="name another file with --write") from error


@contextmanager
def _scheduler_of(plan: LaunchPlan, allocation: str | None) -> Iterator[Scheduler]:
    """Give the scheduler that starts the job; TERM and HUP end the block as Ctrl-C does, so that it is cancelled."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        if allocation is None or plan.scheduler != "slurm":
            from hpc_elastic.scheduler.registry import make_scheduler

            yield make_scheduler(plan.scheduler, run_dir=plan.run_dir)
        else:
            from hpc_elastic.cli.foreground import ForegroundScheduler

            foreground = ForegroundScheduler(allocation)
            try:
                yield foreground
            finally:
                _settle(foreground, allocation)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _settle(foreground: ForegroundScheduler, allocation: str) -> None:
    """Wait for the script in this allocation, which was told to end, and kill it if it does not."""
    ends_at = time.monotonic() + _SETTLES_WITHIN_S
    while foreground.has_started and not foreground.query([allocation])[allocation].state.is_terminal:
        if time.monotonic() > ends_at:
            foreground.signal(signal.SIGKILL)
            return
        time.sleep(0.1)
