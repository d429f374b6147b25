"""torchrun's options that `hpc-elastic run` does not take: each is refused with its replacement (torch 2.13)."""

from __future__ import annotations

from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any, NoReturn

from hpc_elastic.errors import UsageError

_RENDEZVOUS = "leave it out: the agents meet through the run directory, and nothing has to be named"
_ADDRESSES = "leave it out: Slurm says which node this is, and the agents find a free port and publish its address"
REPLACEMENTS = {
    "--rdzv-backend": _RENDEZVOUS,
    "--rdzv-endpoint": _RENDEZVOUS,
    "--rdzv-id": "leave it out: each run has an id of its own; --name gives it a name",
    "--rdzv-conf": "its values are keys: --set elastic.join_timeout=10m, --set elastic.lease=10s",
    "--standalone": "use --site local, which is the default outside of an allocation",
    "--monitor-interval": "leave it out: the end of a worker is seen at once",
    "--start-method": "use --set start=spawn, start=fork or start=auto",
    "--event-log-handler": "leave it out: events are in nodes/<node>/events.jsonl of the run directory",
    "--role": "use --set role=NAME; several roles go to the key roles of a job file",
    "--no-python": "write a job file with `entrypoint: {command: PROGRAM, args: [...]}`",
    "--run-path": "leave it out: a script is run by its path, in a process that may have torch imported already",
    "--log-dir": "use --run-dir DIR: the logs of all ranks are below attempts/ in it",
    "--node-rank": _ADDRESSES,
    "--master-addr": _ADDRESSES,
    "--master-port": _ADDRESSES,
    "--local-addr": "leave it out; which interface the agents use is network.interface of the site file",
    "--logs-specs": "use the keys of logs, such as --set logs.redirects=3; a plug-in cannot be named",
    "--numa-binding": "binding of workers is not supported yet; sbatch's and srun's own options bind the agents",
    "--signals-to-handle": "leave it out: TERM and INT stop the run with grace, and no other signal ends an agent",
    "--shutdown-timeout": "use --set signals.grace=60s, and signals.restart_grace for restarts",
    "--virtual-local-rank": "it is not supported; LOCAL_RANK says which GPU of the node is the worker's",
}


def refuse_torchrun_options(parser: ArgumentParser) -> None:
    """Make the parser name the replacement of each of them."""
    for option in REPLACEMENTS:
        parser.add_argument(
            *dict.fromkeys((option, f"--{option[2:].replace('-', '_')}")), action=_Refusal, help=SUPPRESS
        )


class _Refusal(Action):
    """An option that is known and not taken; it has no value, or one."""

    def __init__(self, option_strings: Sequence[str], dest: str, **keywords: Any) -> None:
        super().__init__(option_strings, dest, nargs="?", **keywords)

    def __call__(
        self,
        parser: ArgumentParser,  # noqa: ARG002  (argparse calls it so)
        namespace: Namespace,  # noqa: ARG002
        values: object,  # noqa: ARG002
        option_string: str | None = None,
    ) -> NoReturn:
        """Raise the error with the replacement."""
        raise UsageError(
            f"{option_string} is an option of torchrun, and not of `hpc-elastic run`",
            tip=REPLACEMENTS[self.option_strings[0]],
        )
