"""`hpc-elastic explain` on the command line, and text of workers at every place where people read it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.api.result import RunFailed, raise_unless_succeeded, read_result
from hpc_elastic.cli.attend import attend
from hpc_elastic.cli.main import main
from hpc_elastic.observe.display import PlainDisplay
from hpc_elastic.observe.snapshot import take_snapshot
from hpc_elastic.rundir.index import IndexEntry, append_entry, index_path
from hpc_elastic.rundir.records import RunState
from hpc_elastic.scheduler.registry import make_scheduler
from tests.cli.conftest import FakeSlurm
from tests.integration.environments import find_python
from tests.observe.builders import TIME, RunBuilder
from tests.observe.failed_runs import KINDS, LINE, exception, hostile, start
from tests.tiers import longer

REPOSITORY = Path(__file__).resolve().parents[2]
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
Capture = pytest.CaptureFixture[str]


def known(run: RunBuilder) -> RunBuilder:
    """Make the run one that is found by its name and job id."""
    entry = IndexEntry(
        run=run.plan.run,
        name="digits",
        job_id="42",
        site="generic-slurm",
        scheduler="slurm",
        run_dir=run.layout.root,
        submitted=TIME,
    )
    append_entry(index_path(os.environ), entry)
    return run


@pytest.mark.parametrize("wanted", ["42", "digits", "path", None])
def test_run_is_chosen_as_other_verbs_choose_it(
    wanted: str | None, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = known(KINDS["exception"](tmp_path / "run"))
    if wanted is None:
        monkeypatch.chdir(run.layout.root)
    assert main(["explain", *filter(None, [run.layout.root if wanted == "path" else wanted])]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"digits: FAILED, exit code 1\ncause     {LINE}")
    assert captured.err == ""


def test_job_that_is_gone_is_asked_for_as_status_does(fake_slurm: FakeSlurm, tmp_path: Path, capsys: Capture) -> None:
    run = KINDS["pending"](tmp_path / "run")
    fake_slurm.say("PENDING", reason="Resources")
    assert main(["explain", run.layout.root]) == 0
    assert "the run has not started: it waits for Resources" in capsys.readouterr().out
    assert fake_slurm.calls("squeue")


@pytest.mark.parametrize(
    ("reason", "cause", "command"),
    [
        ("JobHeldUser", "the job is held (JobHeldUser)", "scontrol release 42"),
        (
            "JobHeldAdmin",
            "an administrator holds the job, or Slurm does: it was requeued while suspended (JobHeldAdmin)",
            "scontrol release 42",
        ),
        ("DependencyNeverSatisfied", "what it depends on will never be (DependencyNeverSatisfied)", "scontrol show"),
        ("PartitionDown", "its partition starts no jobs now (PartitionDown)", "sinfo --summarize"),
        ("QOSMaxJobsPerUserLimit", "its account or QOS is at a limit (QOSMaxJobsPerUserLimit)", "squeue --me"),
        (
            "QOSMaxWallDurationPerJobLimit",
            "it asks for more, or less, than one job of its account or QOS may have (QOSMaxWallDurationPerJobLimit)",
            "sacctmgr show assoc",
        ),
        ("AssocMaxGRESPerNode", "it asks for more, or less, than one job of its account", "sacctmgr show assoc"),
        ("QOSMaxLicensePerJob", "it asks for more, or less, than one job of its account", "sacctmgr show assoc"),
        ("QOSMinGRES", "it asks for more, or less, than one job of its account", "sacctmgr show assoc"),
        ("AssocGrpCPUMinutesLimit", "its account or QOS has used up its share of time (", "sshare"),
        ("QOSGrpWallLimit", "its account or QOS has used up its share of time (", "sshare"),
        ("AssocGrpCPURunMinutesLimit", "its account or QOS is at a limit (", "squeue --me"),
        ("QOSMaxCpuPerUserLimit", "its account or QOS is at a limit (", "squeue --me"),
        (
            "launch failed requeued held",
            "Slurm could not start it on its nodes, and holds it (launch failed requeued held)",
            "scontrol release 42",
        ),
        (
            "ReqNodeNotAvail, UnavailableNodes:node2",
            "nodes that it needs are down, drained or reserved (",
            "sinfo --list",
        ),
        ("SomethingNew", "it waits for SomethingNew", "hpc-elastic cancel 42"),
    ],
)
def test_a_job_that_waits_is_explained_by_the_schedulers_reason(
    reason: str, cause: str, command: str, fake_slurm: FakeSlurm, tmp_path: Path, capsys: Capture
) -> None:
    run = known(KINDS["pending"](tmp_path / "run"))
    fake_slurm.say("PENDING", reason=reason)
    assert main(["explain", "--json", run.layout.root]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cause"].startswith(f"the run has not started: {cause}")
    assert any(line.startswith(command) for line in found["next"])


def test_a_job_that_was_requeued_and_is_held_is_explained_with_the_command_that_releases_it(
    fake_slurm: FakeSlurm, tmp_path: Path, capsys: Capture
) -> None:
    run = known(start(tmp_path / "run").end_allocation(1, "requeued"))
    fake_slurm.say("PENDING", reason="job requeued in held state")
    assert main(["explain", "--json", run.layout.root]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == "REQUEUED"
    assert found["cause"].endswith("; the job is held (job requeued in held state)")
    assert found["next"][0] == "scontrol release 42"
    assert found["advice"][-1] == "release the job: as long as it is held it does not start"


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        (
            "JobHeldUser",
            "hpc-elastic: job 42 does not start by itself: the job is held (JobHeldUser); `scontrol release 42`\n",
        ),
        (
            "AssocMaxCpuPerJobLimit",
            "hpc-elastic: job 42 does not start by itself: it asks for more, or less, than one job of its account",
        ),
        (
            "Reservation r7 was deleted",
            "hpc-elastic: job 42 does not start by itself: its reservation is over, and Slurm holds it (Reservation r7",
        ),
        ("Reservation", ""),
        ("QOSNotAllowed", "hpc-elastic: job 42 does not start by itself: its account or QOS is not valid here ("),
        ("QOSMaxJobsPerUserLimit", ""),
        ("AssocGrpCPUMinutesLimit", ""),
        ("Priority", ""),
    ],
)
def test_who_waits_for_a_job_is_told_once_that_it_does_not_start_by_itself(
    reason: str, line: str, fake_slurm: FakeSlurm, tmp_path: Path, capsys: Capture
) -> None:
    run = KINDS["pending"](tmp_path / "run")
    fake_slurm.say("PENDING", reason=reason)
    snapshot = take_snapshot(run.layout, make_scheduler("slurm"))
    attend(run.layout, [snapshot, snapshot], is_followed=False, output=sys.stdout)
    err = capsys.readouterr().err
    assert err.startswith(line)
    assert err.count("does not start by itself") == bool(line)


def test_json_is_one_object(tmp_path: Path, capsys: Capture) -> None:
    run = hostile(tmp_path / "run")
    assert main(["explain", "--json", run.layout.root]) == 0
    text = capsys.readouterr().out
    assert text.replace("\n", "").isprintable()
    found = json.loads(text)
    assert (found["format_version"], found["state"], found["rank"]) == (1, "FAILED", 3)
    assert "\x1b[2J" in found["cause"]


@pytest.mark.parametrize("arguments", [["--attempt", "7"], ["--attempt", "0"], ["--attempt", "x"]])
def test_attempt_that_is_not_there_is_one_clear_message(arguments: list[str], tmp_path: Path, capsys: Capture) -> None:
    run = KINDS["exception"](tmp_path / "run")
    assert main(["explain", *arguments, run.layout.root]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hpc-elastic: error: ")
    assert "Traceback" not in error


@pytest.mark.long
def test_record_that_cannot_be_read_does_not_end_the_explanation(tmp_path: Path, capsys: Capture) -> None:
    run = KINDS["exception"](tmp_path / "run")
    Path(run.layout.result).write_bytes(b"")
    assert main(["explain", run.layout.root]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "result.json cannot be read: it is empty" in shown
    assert LINE in shown


@pytest.mark.long
def test_a_record_that_cannot_be_read_is_named_once(tmp_path: Path, capsys: Capture) -> None:
    run = KINDS["exception"](tmp_path / "run")
    Path(run.layout.result).write_bytes(b"")
    assert main(["explain", run.layout.root]) == 0
    assert " ".join(capsys.readouterr().out.split()).count("result.json cannot be read") == 1


@pytest.mark.parametrize("columns", ["40", "120"])
def test_array_has_a_line_for_each_task(
    columns: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hpc-elastic-runs").mkdir()  # where its job id is known
    folder = make_array(tmp_path / "hpc-elastic-runs")
    assert main(["explain", str(folder)]) == 0
    text = capsys.readouterr().out
    lines = [line for line in text.splitlines() if not line.startswith("  ")]
    assert lines[0] == "digits: 1 SUCCEEDED, 1 FAILED"
    assert [line.split(":")[0] for line in lines[1:]] == ["42_0 (lr=1)", "42_1 (lr=2)", "next"]
    assert LINE in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= int(columns)


def test_array_as_json_has_the_cause_of_each_task(tmp_path: Path, capsys: Capture) -> None:
    folder = make_array(tmp_path)
    assert main(["explain", "--json", str(folder)]) == 0
    tasks = json.loads(capsys.readouterr().out)["tasks"]
    assert [task["state"] for task in tasks] == ["SUCCEEDED", "FAILED"]
    assert tasks[1]["root_cause"]["rank"] == 3
    assert main(["explain", "--attempt", "1", str(folder)]) == 2


def make_array(tmp_path: Path) -> Path:
    folder = tmp_path / "array"
    folder.mkdir()
    KINDS["succeeded"](folder / "0")
    KINDS["exception"](folder / "1")
    for number in (0, 1):
        path = folder / str(number) / "submission.json"
        changed = {"job_id": f"42_{number}", "array": str(folder), "array_task": number}
        path.write_text(json.dumps(json.loads(path.read_text()) | changed | {"parameters": {"lr": str(number + 1)}}))
        path = folder / str(number) / "allocations" / "0001.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"job_id": f"42_{number}"}))
    record = {"format_version": 1, "name": "digits", "scheduler": "slurm", "job_id": "42", "tasks": ["a", "b"]}
    (folder / "array.json").write_text(json.dumps(record))
    return folder


# Text of workers at every place where people read it.


@pytest.mark.parametrize(
    "arguments", [["status"], ["explain"], ["status", "--json"], ["explain", "--json"]], ids=" ".join
)
def test_no_verb_prints_what_a_worker_wrote_to_the_terminal(
    arguments: list[str], tmp_path: Path, capsys: Capture
) -> None:
    run = hostile(tmp_path / "run")
    assert main([*arguments, run.layout.root]) == 0
    captured = capsys.readouterr()
    assert "gone" in captured.out
    assert (captured.out + captured.err).replace("\n", "").isprintable()


def test_list_shows_a_name_that_is_safe(tmp_path: Path, capsys: Capture) -> None:
    run = known(RunBuilder(tmp_path / "run", name="a\x1b[2Jb").submit().allocate().open_attempt(1).end())
    assert main(["list"]) == 0
    assert "a\\x1b[2Jb" in capsys.readouterr().out
    assert main(["status", run.layout.root]) == 0
    assert capsys.readouterr().out.startswith("a\\x1b[2Jb\n")


def test_wait_prints_a_cause_that_is_safe_and_one_line(tmp_path: Path, capsys: Capture) -> None:
    cause = "rank 0 failed: \x1b[2J\nSUCCEEDED: every rank exited 0"
    run = RunBuilder(tmp_path / "run").submit().allocate().end(RunState.FAILED, exit_code=1, cause=cause)
    snapshot = take_snapshot(run.layout, None)
    assert attend(run.layout, [snapshot], is_followed=False, output=sys.stdout) == 1
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == "FAILED (exit code 1): rank 0 failed: \\x1b[2J\\nSUCCEEDED: every rank exited 0"
    assert all(line.startswith("see: ") for line in rest)


def test_followed_run_shows_our_lines_safe_and_the_workers_as_they_are() -> None:
    progress, output = io.StringIO(), io.StringIO()
    display = PlainDisplay(progress, output)
    display.say("attempt 2; after: \x1b[2J\nboom")
    display.output("\x1b[31mred\x1b[0m")
    assert progress.getvalue().endswith("attempt 2; after: \\x1b[2J\\nboom\n")
    assert output.getvalue() == "\x1b[31mred\x1b[0m\n"


def test_exception_in_python_has_a_message_that_is_safe(tmp_path: Path) -> None:
    result = read_result(hostile(tmp_path / "run").layout)
    with pytest.raises(RunFailed) as caught:
        raise_unless_succeeded("digits", result)
    assert caught.value.message.replace("\n", "").isprintable()


def test_errors_of_the_command_line_are_safe(capsys: Capture) -> None:
    assert main(["status", "a\x1b[2Jb"]) == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.long
def test_encoding_without_such_characters_prints_them_escaped(tmp_path: Path) -> None:
    run = hostile(tmp_path / "run")
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "hpc_elastic", "explain", run.layout.root]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert "\\x1b[2J" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("version", ["this", *longer(*(each for each in VERSIONS if find_python(each) is not None))])
def test_explain_works_in_an_interpreter_that_has_no_package_at_all(version: str, tmp_path: Path) -> None:
    run = exception(tmp_path / "run")
    python = sys.executable if version == "this" else find_python(version)
    ours = {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1", "XDG_STATE_HOME": str(tmp_path)}
    # -S: without the packages that this interpreter has
    command = [str(python), "-S", "-m", "hpc_elastic", "explain", run.layout.root]
    done = subprocess.run(command, env={**os.environ, **ours}, cwd="/", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ValueError: no such batch" in done.stdout


@pytest.mark.long
def test_explain_of_a_pipe_loads_no_library_that_only_terminals_need(tmp_path: Path) -> None:
    run = exception(tmp_path / "run")
    code = (
        "import sys; from hpc_elastic.cli.main import main; main(sys.argv[1:]); "
        "loaded = {'rich', 'pydantic', 'jinja2', 'yaml', 'plotly', 'asyncio', 'torch'} & set(sys.modules); "
        "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    )
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", code, "explain", run.layout.root]
    done = subprocess.run(command, env=environ, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
