"""Makes one fault for real, in a run of its own, and says what is wrong about what the run tells of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.faults.acts import Hand
from tests.faults.explained import differences, laid_out
from tests.faults.fault import Fault
from tests.faults.judge import misses, shown_raw
from tests.faults.surroundings import Surroundings
from tests.integration.conftest import Door, Run
from tests.slurm_sandbox.cluster import wait_until
from tests.soak.campaign import kill_everything
from tests.soak.patient import Patient

SCRIPTS = Path(__file__).with_name("scripts")
HERE_WITHIN_S = 90.0
OVER_WITHIN_S = 120.0
_PYTHON = '#!/bin/bash\nexec {python} "$@"\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a fault: `wrong` has a line for each thing that is not as expected."""

    fault: Fault
    wrong: tuple[str, ...]
    seconds: float
    result: Any
    claims: list[Any]
    explanation: str = ""
    laid_out: str = ""  # the same without what differs in each run
    unlike: tuple[str, ...] = ()  # what `explain` says otherwise than the fault's golden, if nothing is wrong


def play(fault: Fault, folder: Path) -> Outcome:
    """Make the fault in an empty folder, and judge what is told of it.

    Raises:
        CannotBeMadeError: this machine lacks what the fault needs.
        AssertionError: the run did not get so far that the fault could be made, or did not end.
    """
    door = prepare_door(folder)
    project = door.folder
    around = Surroundings(fault.around, project)
    door.command = (*around.prefix, *door.command)
    _write_project(fault, project)
    began = time.monotonic()
    run: Run | None = None
    try:
        run = door.submit("job.yaml")
        if fault.act:
            _wait_for_work(fault, run)
            Hand(door, run, around.undo).do(fault.act)
        result = _result(door, run)
        seconds = time.monotonic() - began
        claims = Patient(run).claims()
        explanation, text = _explain(door, run)
        wrong = (*misses(fault, result, claims), *shown_raw(explanation + _script_output(run)))
        return Outcome(
            fault=fault,
            wrong=wrong,
            seconds=seconds,
            result=result,
            claims=claims,
            explanation=explanation,
            laid_out=text,
            unlike=() if wrong else tuple(differences(fault, text)),  # a wrong cause has no right explanation
        )
    finally:
        if run is not None:
            kill_everything(run)
        around.leave()


def prepare_door(folder: Path) -> Door:
    """Make a project folder below `folder`, and return the command in it, in an environment of its own."""
    project = folder / "project"
    project.mkdir(parents=True)
    hidden = ("SLURM_", "SBATCH_", "HPC_ELASTIC_", "PYTEST_")  # the last has the name of the test
    environ = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    if "PYTHONPATH" in environ:  # of another checkout's environment: the command runs in the project's folder
        environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, environ["PYTHONPATH"].split(os.pathsep)))
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ.get('PATH', '')}"  # for scripts that call python3
    return Door(project, {**environ, "XDG_STATE_HOME": str(folder / "state")})


def _write_project(fault: Fault, project: Path) -> None:
    """Write job.yaml, the script as job.py, and what it imports of its neighbours."""
    name = fault.script or fault.name
    source = next(path for path in (SCRIPTS / f"{name}.py", SCRIPTS / f"{name}.txt") if path.exists())
    text = source.read_text()
    (project / "job.py").write_text(text)
    if re.search(r"^from group import", text, re.MULTILINE):
        shutil.copy(SCRIPTS / "group.py", project)
    shutil.copy(SCRIPTS / "common.py", project)
    job = {
        "name": "job",
        "site": "local",
        "nodes": fault.nodes,
        "workers_per_node": fault.workers,
        "entrypoint": {"script": "job.py"},
        "elastic": {"lease": "2s", "join_timeout": "30s"},
        "restart": {"max_restarts": fault.restarts},
        "signals": {"grace": "3s", "restart_grace": "3s"},
    }
    for key, value in fault.job.items():
        old = job.get(key)
        is_more = isinstance(old, dict) and isinstance(value, dict) and key != "entrypoint"
        job[key] = {**old, **value} if is_more and isinstance(old, dict) else value
    if "torch" not in text and "from group" not in text:
        job.setdefault("start", "spawn")  # a fork server would import torch for nothing
    (project / "job.yaml").write_text(yaml.safe_dump(job))
    if job.get("python") == "./python.sh":
        _write_program(project / "python.sh", _PYTHON.format(python=sys.executable))
    for file, content in fault.files.items():
        (project / file).parent.mkdir(parents=True, exist_ok=True)
        _write_program(project / file, content)


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    if path.suffix == ".sh":
        path.chmod(0o755)


def _wait_for_work(fault: Fault, run: Run) -> None:
    """Waits until every rank is at work; a run that ends before that fails at once."""
    ranks = range(fault.nodes * fault.workers)

    def is_at_work() -> bool:
        assert not run.is_over(), f"the run is over: {run.result()['cause']}\n{run.story()}"
        return all("here" in run.stdout(1, rank) for rank in ranks)

    wait_until(is_at_work, "every rank is at work", within_s=HERE_WITHIN_S, otherwise=run.story)
    run.wait_until_started()


def _result(door: Door, run: Run) -> Any:
    """Return the result, which `status` writes if the script ended without one."""

    def is_over() -> bool:
        return run.is_over() or not _is_alive(Patient(run).script())

    wait_until(is_over, "the run is over", within_s=OVER_WITHIN_S, otherwise=run.story)
    if not run.is_over():
        door.run("status", run.layout.root, exit_code=None)
    return run.wait_until_over()


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _script_output(run: Run) -> str:
    return "".join(path.read_text(errors="replace") for path in run.path.glob("*.out"))


def _explain(door: Door, run: Run) -> tuple[str, str]:
    """Return what `hpc-elastic explain` says, and the same without what differs in each run."""
    text = door.run("explain", run.layout.root).stdout
    found = json.loads(door.run("explain", run.layout.root, "--json").stdout)
    return text, laid_out(found, door.folder)
