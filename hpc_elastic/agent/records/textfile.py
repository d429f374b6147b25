"""Writes the Prometheus text file of a run, if the plan asks for one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.plan.references import BadReferenceError, expand_references
from hpc_elastic.rundir.store import write_bytes

TEXTFILE_MODE = 0o644  # the collector runs as another user


class Textfile:
    """A text file that is replaced repeatedly; the first problem with it is logged, and no problem is fatal.

    Args:
        path: the path as the plan has it, with `${NAME}` references.
        environ: the variables for these references.
        say: takes a line for the agent's log.
    """

    def __init__(self, path: str, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._path = path
        self._environ = environ
        self._say = say
        self._is_told = False

    def replace(self, text: str) -> None:
        """Replace the file's content atomically: a reader finds the old text or the new one. Blocks."""
        try:
            path = os.path.abspath(expand_references(self._path, self._environ))
            folder = os.path.dirname(path)
            if not os.path.isdir(folder):  # not created here: no collector would know of it
                self._complain(f"there is no folder {folder} on this node; make it, or choose another place")
            else:
                write_bytes(path, text.encode(), mode=TEXTFILE_MODE)
        except BadReferenceError as error:
            self._complain(str(error))
        except RunDirectoryError as error:
            self._complain(error.message)

    def _complain(self, problem: str) -> None:
        if not self._is_told:
            self._is_told = True
            self._say(f"metrics.textfile: {problem}")
