"""Runs where the user's environment has variables that change how every Python starts, runs and ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.conftest import Door

pytestmark = pytest.mark.local

VARIABLES = {
    "PYTHONINSPECT": "1",
    "PYTHONSTARTUP": "startup.py",
    "PYTHONOPTIMIZE": "2",
    "PYTHONUTF8": "0",
    "PYTHONWARNINGS": "error",
    "PYTHONBREAKPOINT": "nowhere.set_trace",
    "PYTHONDEVMODE": "1",
    "PYTHONASYNCIODEBUG": "1",
    "PYTHONMALLOC": "debug",
    "PYTHONNODEBUGRANGES": "1",
    "PYTHONSAFEPATH": "1",
    "PYTHONHASHSEED": "7",
    "PYTHONDONTWRITEBYTECODE": "1",
}
SCRIPT = """
import json, os, sys
names = ("inspect", "optimize", "utf8_mode", "dev_mode", "hash_randomization", "dont_write_bytecode")
own = {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
print(json.dumps({"own": own, "flags": {name: int(getattr(sys.flags, name)) for name in names}}))
if os.environ["HPC_ELASTIC_ATTEMPT"] == "1":
    raise ValueError("fails once")
"""


def test_a_run_goes_on_under_all_of_pythons_variables_and_workers_have_them(door: Door) -> None:
    """PYTHONINSPECT has Python answer a SystemExit with a traceback and exit code 1."""
    door.write("startup.py", "raise RuntimeError('only for people who type')\n")
    door.environ.update(VARIABLES, LANG="C", LC_ALL="C")
    door.write("train.py", SCRIPT)
    door.write("job.yaml", "name: probe\nsite: local\nworkers_per_node: 1\nentrypoint: {script: train.py}\n")
    run = door.submit("job.yaml", wait=True)
    assert run.result()["restarts"] == 1
    said = json.loads(run.stdout(2, 0))
    assert {name: said["own"].get(name) for name in VARIABLES} == VARIABLES
    assert said["flags"] == {
        "inspect": 1,
        "optimize": 2,
        "utf8_mode": 0,
        "dev_mode": 1,
        "hash_randomization": 1,
        "dont_write_bytecode": 1,
    }
    shown = [door.run(verb, run.job_id) for verb in ("status", "explain")]
    assert ["Traceback" in each.stdout + each.stderr for each in shown] == [False, False]
    for output in (*run.path.glob("*.out"), *run.path.glob("agents/*.out")):
        assert "SystemExit" not in Path(output).read_text()


@pytest.mark.variant(of="test_a_run_goes_on_under_all_of_pythons_variables_and_workers_have_them")
def test_a_command_line_that_fails_exits_with_its_own_code_under_pythoninspect(door: Door) -> None:
    door.environ["PYTHONINSPECT"] = "1"
    done = door.run("submit", "missing.yaml", exit_code=2)
    assert "Traceback" not in done.stderr
