"""The lines of `check --explain`: every value with where it came from, and what the scheduler is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from hpc_elastic.api.prepare import PreparedRun
from hpc_elastic.job.document import find_place
from hpc_elastic.job.parse import find_places
from hpc_elastic.printable import printable_line
from hpc_elastic.render.directives import sbatch_directives
from hpc_elastic.resolve.origins import KeyOrigin, find_origins
from hpc_elastic.scheduler.environment import options_of_shell
from hpc_elastic.site.search import read_site_file

_WIDEST_KEY = 34


def value_lines(prepared: PreparedRun, *, overrides: Sequence[str]) -> Iterator[str]:
    """Yield a line for each value, then the options of sbatch.

    Args:
        prepared: the run.
        overrides: `key.path=value` of `--set`.
    """
    source, site, plan = prepared.source, prepared.site, prepared.plan
    in_job = find_places(source.text, file=source.file, overrides=overrides)
    site_text = read_site_file(site.path)

    def place(origin: KeyOrigin) -> str:
        if origin.source == "job":
            return in_job(origin.place)
        if origin.source == "default":
            return "default"
        for length in range(len(origin.place), 0, -1):
            found, colon, _ = find_place(site_text, site.path, origin.place[:length]).rpartition(": ")
            if colon:
                return f"site {found}"
        return f"site {site.path}"

    yield "where every value comes from:"
    for origin in find_origins(prepared.job, site):
        yield printable_line(f"  {origin.key:<{_WIDEST_KEY}} {origin.value}  [{place(origin)}]")
    if plan.scheduler != "slurm":
        return
    for option, value in options_of_shell(os.environ).items():
        if option not in plan.sbatch:
            name = f"SBATCH_{option.upper()}"
            yield printable_line(f"  {'sbatch.' + option:<{_WIDEST_KEY}} {value}  [{name} of this shell]")
    yield ""
    yield "what sbatch is asked:"
    for directive in sbatch_directives(plan):
        yield printable_line(f"  {directive}")
