"""Runs the tests of the simulation that have schedules of their own, with an edit: what do they hold it against?

Theory of operation. What is drawn seldom meets a node that is lost in the moment in which a role gathers by itself.
Some tests place such a schedule by hand, or go through all places (`explore`), and say how the run has to end. They
are a part of the simulation as the drawn schedules are, and cost a hundred times as much for an edit, so only what
those have not noticed is held against them. A test that plants a bug of its own says nothing of another one, and is
left out.

The edit comes as a plugin of pytest, this module, which reads it from the environment before anything else is loaded.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

EDIT = "HPC_ELASTIC_SIMULATED_EDIT"  # the mutation, in JSON
FILES = (
    *("asked_saves", "begun_states", "contested", "explore", "first_heads", "flapping", "goodbyes", "health"),
    *("job_end", "latecomers", "limits", "machines", "moved", "places", "requests", "runs", "saves", "scale", "spares"),
    *("starts", "waits"),
)
OTHERS = "planted or is_found or another_process or drawn or no_rule_is_broken"  # which plant a bug, or draw schedules
ENDS_WITHIN_S = 900.0  # some two minutes on a machine that others use
DOES_NOT_END = "they do not end"


def failed_test(checkout: Path, edit: str | None) -> str:
    """Return the first of these tests that fails, empty if all pass.

    Args:
        checkout: where it is run; a copy, without what others change in it meanwhile.
        edit: the mutation, in JSON; None for the code as it is.

    Raises:
        RuntimeError: they could not be run.
    """
    names = [f"tests/simulation/test_{name}.py" for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", __name__, "-rfE"]
    command += ["-m", "not variant", "-k", f"not ({OTHERS})", *names]
    try:
        ended = subprocess.run(
            command,
            cwd=checkout,
            env=_environment(edit),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=ENDS_WITHIN_S,
        )
    except subprocess.TimeoutExpired:
        return DOES_NOT_END
    if ended.returncode == 0:
        return ""
    if found := re.search(r"^(?:FAILED|ERROR) tests/simulation/(\S+)", ended.stdout, re.MULTILINE):
        return found[1]
    raise RuntimeError(f"{' '.join(command)} ended with {ended.returncode}: {(ended.stdout + ended.stderr)[-2000:]}")


def _environment(edit: str | None) -> Mapping[str, str]:
    # What a run of the tests has set is for that run, its versions of Slurm and its processes, and not for this one.
    others = {name: value for name, value in os.environ.items() if not name.startswith(("HPC_ELASTIC_", "PYTEST_"))}
    return others if edit is None else others | {EDIT: edit}


if EDIT in os.environ:
    from tests.simulation.mutate import load_edited

    load_edited(os.environ[EDIT])
