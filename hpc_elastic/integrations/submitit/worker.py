"""Runs submitit's worker program with our job environment: `python -m hpc_elastic.integrations.submitit.worker FOLDER`.

submitit finds the environment by the metadata of an installed package, which are missing where this package is only on
`PYTHONPATH`.
"""

from __future__ import annotations

import contextlib
import os
import platform
from typing import cast

from submitit.core import job_environment, plugins
from submitit.core.submission import submitit_main

from hpc_elastic.integrations.submitit.environment import (
    PICKLE_VARIABLE,
    PYTHON_VARIABLE,
    HpcElasticJobEnvironment,
)
from hpc_elastic.rundir.function_file import FunctionHeader, has_bytecode, python_mismatch
from hpc_elastic.worker.function_call import FunctionError


def main() -> None:
    """Call the function of this job.

    Raises:
        FunctionError: this Python cannot run the function's bytecode.
    """
    _check_python(os.environ[PICKLE_VARIABLE], submitted_by=os.environ.get(PYTHON_VARIABLE))
    known = cast("dict[str, job_environment.JobEnvironment]", plugins.get_job_environments())  # submitit's own
    known.setdefault(HpcElasticJobEnvironment.name(), HpcElasticJobEnvironment())
    pid = os.getpid()
    try:
        submitit_main()
    except BaseException:
        if os.getpid() == pid:  # not a child that the function has forked
            _remove_unfinished_result()
        raise


def _remove_unfinished_result() -> None:
    """Remove what submitit (1.5.4) leaves of a value that could not be written.

    It may be gigabytes, and have filled the disk on which the agents are to record this failure.
    """
    path = HpcElasticJobEnvironment().paths.result_pickle
    with contextlib.suppress(OSError):
        os.unlink(f"{path}.save_tmp")


def _check_python(pickle: str, *, submitted_by: str | None) -> None:
    """Refuse bytecode of another Python: read by this one it may be a segmentation fault."""
    here = platform.python_version()
    if submitted_by in (None, here):
        return
    with open(pickle, "rb") as file:
        is_by_value = has_bytecode(file.read())
    header = FunctionHeader(function="the function", python=submitted_by or "", is_by_value=is_by_value)
    if (mismatch := python_mismatch(header, here)) is not None:
        raise FunctionError(mismatch)


if __name__ == "__main__":
    main()
