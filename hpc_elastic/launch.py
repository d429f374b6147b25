"""Runs a module of this package by file path: `PYTHON launch.py hpc_elastic.agent.main ARGUMENTS`.

The package is put into `sys.modules` from its folder. It needs no installation under this Python,
and its parent, which may be another environment's site-packages, stays off the search path: there
it would shadow this Python's torch. PYTHONPATH is not touched, so children do not find us either.
"""

# Python 3.6, which many clusters call python3, must be able to read this file and say what is wrong:
# hence no __future__ import of annotations, and the check before the first definition.

import sys

OLDEST_PYTHON = (3, 10)
SETUP_IS_WRONG = 3  # errors.ExitCode.SETUP

if sys.version_info < OLDEST_PYTHON:
    sys.stderr.write(
        f"hpc-elastic: found Python {sys.version_info[0]}.{sys.version_info[1]} at {sys.executable}, expected 3.10 "
        "or later; load a newer one in `setup:`, or name one in `python:` of job.yaml\n"
    )
    sys.exit(SETUP_IS_WRONG)

import importlib.util  # noqa: E402
import os  # noqa: E402

PACKAGE = "hpc_elastic"


def register_package(directory: str) -> None:
    """Make the package importable as `hpc_elastic` from `directory`, wherever that is."""
    location = os.path.join(directory, "__init__.py")
    spec = importlib.util.spec_from_file_location(PACKAGE, location, submodule_search_locations=[directory])
    if spec is None or spec.loader is None:
        sys.exit(f"hpc-elastic: {location} cannot be imported; is the installation complete?")
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)


def main(arguments: list[str]) -> int:
    """Import the named module and call its `main` with the rest of the arguments.

    Returns:
        What that `main` returns: the exit code.
    """
    directory = os.path.dirname(os.path.abspath(__file__))
    # Python put this folder on the search path, unless -I, -P or PYTHONSAFEPATH told it not to.
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        del sys.path[0]
    register_package(directory)
    if not arguments or not arguments[0].startswith(PACKAGE + "."):
        sys.exit(f"usage: {sys.executable} {__file__} {PACKAGE}.MODULE [ARGUMENT ...]")
    if arguments[0].startswith(PACKAGE + ".agent."):
        # Theirs is a file of the run directory, whose disk may be full; a worker hears of that from its own writes.
        importlib.import_module(PACKAGE + ".lossy_stderr").make_stderr_lossy()
    exit_code: int = importlib.import_module(arguments[0]).main(arguments[1:])
    return exit_code


def leave(exit_code: int) -> None:
    """End this process with the exit code of a `main`, also with PYTHONINSPECT, which `sys.exit` does not end.

    Python shows a traceback of the SystemExit then, and exits with 1. A worker that succeeds returns from here, so that
    its threads and what it has registered for its exit run to their end.
    """
    if not sys.flags.inspect:
        sys.exit(exit_code)
    if exit_code != 0:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
