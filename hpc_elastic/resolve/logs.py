"""Resolves the `logs` section of a job, and torch's variable for log prefixes, into a LogsPlan."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_elastic.job.defaults import DEFAULTS
from hpc_elastic.job.spec import JobSpec, LogsSpec
from hpc_elastic.plan.launch_plan import LogsPlan
from hpc_elastic.plan.log_prefix import PREFIX_VARIABLE
from hpc_elastic.plan.references import quote_dollars
from hpc_elastic.plan.std_streams import NO_STREAMS, LocalStreams
from hpc_elastic.resolve.merge import merge_sections

RANKS_FOR_NODE_LOGS = 1000  # from so many ranks on, a file a node is the default, to spare inodes


def resolve_logs(asked: JobSpec, *, most_ranks: int) -> LogsPlan:
    """Decide where the workers' output goes.

    Args:
        most_ranks: how many ranks the run may have.
        asked: the job merged over its site, without our defaults: a prefix there overrides torch's variable,
            which overrides our default.
    """
    given = asked.logs or LogsSpec()
    logs = merge_sections(given, DEFAULTS.logs or LogsSpec())
    template = (asked.env or {}).get(PREFIX_VARIABLE)
    prefix = logs.prefix if given.prefix is not None or template is None else _unquoted(template)
    per = logs.per or ("rank" if most_ranks < RANKS_FOR_NODE_LOGS else "node")
    if logs.tee is None or logs.redirects is None or prefix is None:
        raise TypeError("a key without a value after the defaults: DEFAULTS lacks it")
    return LogsPlan(
        per=per,
        tee_ranks=() if isinstance(logs.tee, LocalStreams) else logs.tee,
        tee=logs.tee if isinstance(logs.tee, LocalStreams) else NO_STREAMS,
        redirects=logs.redirects,
        local_ranks_filter=logs.local_ranks_filter,
        prefix=prefix,
        duplicate_stdout_filters=logs.duplicate_stdout_filters or (),
        duplicate_stderr_filters=logs.duplicate_stderr_filters or (),
        max_size_bytes=logs.max_size,
    )


def resolve_env(env: Mapping[str, str | None]) -> dict[str, str]:
    """Return the workers' variables; torch's prefix template reaches them unexpanded, its names are no variables."""
    given = {name: value for name, value in env.items() if value is not None}
    if PREFIX_VARIABLE in given:
        given[PREFIX_VARIABLE] = quote_dollars(_unquoted(given[PREFIX_VARIABLE]))
    return given


def _unquoted(template: str) -> str:
    """Undo the doubled dollar signs of a template in `env`."""
    return template.replace("$$", "$")
