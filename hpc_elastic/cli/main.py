"""The one place where a command line becomes a call, and an error becomes words and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import NoReturn

from hpc_elastic import __version__
from hpc_elastic.api.identity import working_directory
from hpc_elastic.cli import INTERRUPTED
from hpc_elastic.cli.output import drop_output, is_output_error, make_streams_tolerant, replace_closed_streams
from hpc_elastic.cli.stuck_disk import watched_disk
from hpc_elastic.cli.verbs import MODULES, PROGRAM, help_text
from hpc_elastic.errors import HpcElasticError, UsageError
from hpc_elastic.printable import printable

# EX_SOFTWARE and EX_IOERR of sysexits.h; none of the documented codes is a lie then
INTERNAL_ERROR = 70
NO_OUTPUT = 74
_READERS = frozenset({"explain", "list", "logs", "nodes", "report", "status", "watch"})  # of run directories


def run() -> NoReturn:
    """Run the command line of this process; the console entry point."""
    replace_closed_streams()
    make_streams_tolerant()
    code = main(sys.argv[1:])
    if sys.flags.inspect:  # PYTHONINSPECT: Python would show a traceback of the SystemExit, and ask for another line
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str]) -> int:
    """Run one command line, without the program's name, and return the exit code."""
    try:
        code = _dispatch(argv)
        sys.stdout.flush()  # here, where a closed pipe is still ours to handle
        return code
    except HpcElasticError as error:
        _complain(error)
        return int(error.exit_code)
    except KeyboardInterrupt as interrupt:  # its text names the job that goes on all the same
        print(f"{PROGRAM}: interrupted{printable(f'; {interrupt}' if str(interrupt) else '')}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `hpc-elastic logs | head`: the reader has what it wanted
        drop_output()
        return 0
    except Exception as error:
        known = _explain(error)
        if known is None:
            return _internal_error(error)
        _complain(known)
        return NO_OUTPUT if is_output_error(error) else int(known.exit_code)


def _dispatch(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        if len(argv) > 1 and argv[0] == "help":
            return _dispatch([argv[1], "--help"])
        print(help_text(), end="")
        return 0 if argv else 2
    if argv[0] in ("-V", "--version"):
        print(f"{PROGRAM} {__version__}")
        return 0
    module = MODULES.get(argv[0])
    if module is None:
        raise _unknown(argv[0])
    try:
        with watched_disk() if argv[0] in _READERS else nullcontext():
            code: int = importlib.import_module(f"hpc_elastic.cli.{module}").main(argv[1:])
    except SystemExit as exit_:  # argparse, after --help
        return int(exit_.code or 0)
    return code


def _unknown(verb: str) -> UsageError:
    from difflib import get_close_matches

    close = get_close_matches(verb, MODULES, n=1)
    if verb.endswith((".yaml", ".yml")):
        return UsageError(f"{verb} is not a verb", tip=f"did you mean `{PROGRAM} submit {verb}`?")
    if close:
        return UsageError(f"there is no verb {verb!r}", tip=f"did you mean `{PROGRAM} {close[0]}`?")
    return UsageError(f"there is no verb {verb!r}", tip=f"the verbs are {', '.join(MODULES)}")


def _complain(error: HpcElasticError) -> None:
    print(f"{PROGRAM}: error: {printable(error.message)}", file=sys.stderr)
    if error.tip:
        print(f"  tip: {printable(error.tip)}", file=sys.stderr)


def _explain(error: Exception) -> HpcElasticError | None:
    """Return an error for an exception that is no defect of this package, although no module handled it; else None."""
    if is_output_error(error):
        drop_output()
        return HpcElasticError(f"cannot write the output: {getattr(error, 'strerror', error)}")
    if isinstance(error, FileNotFoundError) and working_directory() is None:
        return UsageError("the folder that this shell is in was removed", tip="change to one that exists: `cd`")
    return None


def _internal_error(error: Exception) -> int:
    print(f"{PROGRAM}: internal error: {type(error).__name__}: {printable(str(error))}", file=sys.stderr)
    if os.environ.get("HPC_ELASTIC_DEBUG"):
        import traceback

        traceback.print_exc()
    else:
        print("  tip: HPC_ELASTIC_DEBUG=1 shows where; please report it with that", file=sys.stderr)
    return INTERNAL_ERROR
