"""What an agent refuses before it begins, and how its process is set up."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import hpc_elastic
from hpc_elastic.agent.main import _record_crash, main
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.rendezvous.findings import Findings
from hpc_elastic.errors import ExitCode, RendezvousCause
from hpc_elastic.plan.launch_plan import dump_plan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.scheduler.allocation import Allocation
from tests.agent.answers import Answers
from tests.plans import make_local_plan, make_run_plan


@pytest.mark.parametrize("secret", [b"", b"s" * 31])
def test_rejects_a_secret_that_could_be_guessed(
    tmp_path: Path, secret: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = RunLayout(str(tmp_path))
    Path(layout.plan).write_text(dump_plan(make_run_plan(tmp_path)))
    Path(layout.secret).write_bytes(secret)
    assert main([str(tmp_path)]) == ExitCode.RUN_DIRECTORY
    told = capsys.readouterr().err
    assert told.splitlines() == [
        (
            f"hpc-elastic agent: error: {layout.secret} holds {len(secret)} bytes, not 32: "
            "it was changed after the submission"
        ),
        "tip: submit the job again",
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "more"),
    [("agent.main", []), ("agent.conclude", ["0", "0"]), ("agent.stage", [])],
    ids=lambda value: str(value),
)
def test_a_full_standard_error_does_not_change_the_exit_code(tmp_path: Path, module: str, more: list[str]) -> None:
    """It is a file of the run directory, whose disk or quota is what most of these lines are about."""
    layout, package = RunLayout(str(tmp_path)), Path(hpc_elastic.__file__).parent
    if module == "agent.main":
        Path(layout.plan).write_text(dump_plan(make_run_plan(tmp_path)))
        Path(layout.secret).write_bytes(b"short")
    command = [sys.executable, str(package / "launch.py"), f"hpc_elastic.{module}", str(tmp_path), *more]
    with open("/dev/full", "wb") as full:
        full_code = subprocess.run(command, stderr=full, check=False).returncode
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.stderr != ""
    assert full_code == told.returncode == ExitCode.RUN_DIRECTORY


@pytest.mark.long
def test_collections_of_garbage_do_not_look_at_what_imports_have_made() -> None:
    """Else a full one is put off until a quarter as many objects are there again, and costs milliseconds."""
    code = (
        "import gc; from hpc_elastic.agent import main; main._set_imports_apart();"
        "print(gc.get_freeze_count() > 10_000, len(gc.get_objects()) < 1000)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"


@pytest.mark.long
def test_an_agent_that_gets_no_more_files_says_so_in_one_line_and_the_head_does_not_wait_for_it(tmp_path: Path) -> None:
    package = Path(hpc_elastic.__file__).parent
    plan = make_local_plan(run_dir=str(tmp_path), package_dir=str(package), workdir=str(tmp_path))
    layout = RunLayout(str(tmp_path))
    Path(layout.plan).write_text(dump_plan(plan))
    Path(layout.secret).write_bytes(b"s" * 32)
    place = {"HPC_ELASTIC_LOCAL_JOB_ID": "local-1-2", "HPC_ELASTIC_LOCAL_NODES": "2", "HPC_ELASTIC_LOCAL_NODE_ID": "1"}
    done = subprocess.run(
        [sys.executable, str(package / "launch.py"), "hpc_elastic.agent.main", str(tmp_path)],
        env={**os.environ, **place},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = (
        "the system refuses this agent another open file: Too many open files; limits here: 10 open files (ulimit -n)"
    )
    assert done.returncode == ExitCode.NODE_LOST
    assert f"hpc-elastic agent (job local-1-2, start 0): error: {said}" in done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    head = Allocation(
        job_id="local-1-2", restart_count=0, array_task=None, node_id=0, nodes=("local0", "local1"), is_local=True
    )
    (found,) = Findings(plan, head).read(["local1"], Endpoint(address="127.0.0.2", port=25000))
    assert (found.missing.cause, found.gave_up) == (RendezvousCause.AGENT_FAILED, True)
    assert str(found.missing) == f"local1 cannot take part, for its agent failed: {said}"


@pytest.mark.parametrize("is_head", [True, False])
def test_a_head_whose_agent_fails_tells_those_who_look_for_it(is_head: bool, tmp_path: Path) -> None:
    plan, layout = make_run_plan(tmp_path), RunLayout(str(tmp_path))
    place = Allocation(
        job_id="local-1-2", restart_count=0, array_task=None, node_id=0, nodes=("local0", "local1"), is_local=True
    )
    journal = Journal(layout, plan, place, questions=Answers())
    journal.claim_allocation(Endpoint(address="127.0.0.2", port=25000))
    journal.is_head = is_head
    _record_crash(layout, plan, place, journal, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    assert journal.read_records(needs_world=False).has_head_failed is is_head
