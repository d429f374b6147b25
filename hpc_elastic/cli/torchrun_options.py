"""Options of torchrun (torch 2.13, distributed/run.py): which `hpc-elastic run` takes, and what replaces the others.

Of an option that is taken, torchrun's meaning is kept where there is one here. Every other option is refused with its
replacement. torchrun also reads each option from a variable `PET_...`; those are not read, and `run` says so.
"""

from __future__ import annotations

import json
from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from hpc_elastic.errors import UsageError

_RENDEZVOUS = "leave it out: the agents meet through the run directory, and nothing has to be named"
_ADDRESSES = "leave it out: Slurm says which node this is, and the agents find a free port and publish its address"
REPLACEMENTS = {
    "--rdzv-backend": _RENDEZVOUS,
    "--rdzv-endpoint": _RENDEZVOUS,
    "--rdzv-conf": "its values are keys: --set elastic.join_timeout=10m, --set elastic.lease=10s",
    "--monitor-interval": "leave it out: the end of a worker is seen at once",
    "--event-log-handler": "leave it out: events are in nodes/<node>/events.jsonl of the run directory",
    "--node-rank": _ADDRESSES,
    "--master-addr": _ADDRESSES,
    "--master-port": _ADDRESSES,
    "--local-addr": "leave it out; which interface the agents use is network.interface of the site file",
    "--logs-specs": "use the keys of logs, such as --set logs.redirects=3; a plug-in cannot be named",
}
STARTS = {"spawn": "spawn", "fork": "fork", "forkserver": "fork"}
BINDINGS = {"node": "numa", "exclusive": "cores"}
STOPPING_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")  # torchrun's default, which is what agents handle
_PREFIX = "PET_"


def add_torchrun_options(parser: ArgumentParser) -> None:
    """Add the options that are taken, in both of torchrun's spellings, and make the parser refuse the others."""
    group = parser.add_argument_group("options of torchrun")

    def add(option: str, **keywords: Any) -> None:
        group.add_argument(*_spellings(option), **keywords)

    add("--standalone", action="store_true", help="run on this machine, also inside an allocation")
    add("--role", metavar="NAME", help="the role that workers are told; key role")
    add("--rdzv-id", metavar="ID", help="the run's name, as --name")
    add("--start-method", metavar="METHOD", help="spawn, fork or forkserver; key start")
    add("--no-python", action="store_true", help="the target is a program, which is not run by Python")
    add("--run-path", action="store_true", help="the target is a script, which is so in any case")
    add("--log-dir", metavar="DIR", help="where the run directory is made, with a name of its own")
    add("--shutdown-timeout", metavar="SECONDS", help="the time between TERM and KILL; keys of signals")
    add("--numa-binding", metavar="MODE", help="node or exclusive; key binding")
    add("--virtual-local-rank", action="store_true", help="each worker has one GPU and LOCAL_RANK 0")
    add("--signals-to-handle", metavar="LIST", help=f"{', '.join(STOPPING_SIGNALS)} stop a run in any case")
    for option in REPLACEMENTS:
        parser.add_argument(*_spellings(option), action=_Refusal, help=SUPPRESS)


def read_torchrun_options(arguments: Namespace) -> dict[str, str]:
    """Return the given options as keys of a job file with values in YAML; the job's check finds wrong values.

    Raises:
        UsageError: a value of torchrun's that means nothing here.
    """
    given: dict[str, str] = {}
    if arguments.rdzv_id is not None and arguments.name is None:
        given["name"] = json.dumps(arguments.rdzv_id)
    if arguments.role is not None:
        given["role"] = json.dumps(arguments.role)
    if (method := arguments.start_method) is not None:
        given["start"] = _chosen("--start-method", method, STARTS)
    if (seconds := arguments.shutdown_timeout) is not None:
        if not seconds.isdecimal():
            raise UsageError(f"--shutdown-timeout is {seconds!r}, expected whole seconds")
        given |= dict.fromkeys(("signals.grace", "signals.restart_grace"), f"{seconds}s")
    if (mode := arguments.numa_binding) is not None:
        given["binding"] = _chosen("--numa-binding", mode, BINDINGS)
    if arguments.virtual_local_rank:
        given["virtual_local_rank"] = "true"
    _check_signals(arguments.signals_to_handle)
    return given


def choose_site(arguments: Namespace) -> str | None:
    """Return the site that the command line names, None if it names none.

    Raises:
        UsageError: `--standalone` and a site that is not this machine, or two places for the run directory.
    """
    if arguments.log_dir is not None and arguments.run_dir is not None:
        raise UsageError(
            "--log-dir and --run-dir both say where the run directory is",
            tip="--run-dir is that directory, --log-dir one in which it is made",
        )
    site: str | None = arguments.site
    if arguments.standalone and site not in (None, "local"):
        raise UsageError(f"--standalone means this machine, and --site is {site}", tip="leave one of the two out")
    return "local" if arguments.standalone else site


def choose_kind(arguments: Namespace) -> str:
    """Return what the target is: `script`, `module` or `command`; `--run-path` outdoes `--no-python`, as in torchrun.

    Raises:
        UsageError: a module that is not to be run by Python.
    """
    if arguments.module and arguments.no_python:
        raise UsageError("-m names a Python module, and --no-python a program", tip="leave one of the two out")
    if arguments.no_python and not arguments.run_path:
        return "command"
    return "module" if arguments.module else "script"


def ignored_variables(environ: Mapping[str, str], parser: ArgumentParser) -> list[str]:
    """Return the variables from which torchrun would read options, each with the option that says the same here."""
    options = sorted(parser._option_string_actions, reverse=True)  # of two spellings the one with dashes comes last
    known = {_PREFIX + option[2:].replace("-", "_").upper(): option for option in options if option.startswith("--")}
    return [f"{name} ({known[name]})" for name in sorted(environ) if name in known]


def _spellings(option: str) -> tuple[str, ...]:
    """Return an option as torchrun takes it: `--start-method` and `--start_method`."""
    return tuple(dict.fromkeys((option, f"--{option[2:].replace('-', '_')}")))


def _chosen(option: str, value: str, choices: Mapping[str, str]) -> str:
    if value not in choices:
        raise UsageError(f"{option} is {value!r}, expected {' or '.join(choices)}", tip=_TIPS.get(value))
    return choices[value]


_NEAREST = "node is nearest to it: all CPUs of the NUMA node of the worker's GPU"
_TIPS = {"socket": _NEAREST, "core-complex": _NEAREST}


def _check_signals(text: str | None) -> None:
    for name in filter(None, (word.strip() for word in (text or "").split(","))):
        if name not in STOPPING_SIGNALS:
            raise UsageError(
                f"--signals-to-handle names {name}, which does not stop a run",
                tip=f"{', '.join(STOPPING_SIGNALS)} do, in any case; SIGUSR1 and SIGUSR2 are left to the workers",
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
