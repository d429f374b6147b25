"""Arrays by the command line, with Slurm's programs as fakes: what is submitted, shown, found and cancelled."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.api.find import find_run
from hpc_elastic.cli.main import main
from hpc_elastic.rundir.states import RunState
from tests.cli.conftest import FakeSlurm
from tests.observe.builders import RunBuilder, refuse_writes
from tests.slurm_sandbox.sandbox import wait_until

Capture = pytest.CaptureFixture[str]
SITE = ["--site", "generic-slurm"]
JOB = """\
name: digits
nodes: 1
time: 10m
restart: {max_restarts: 1}
entrypoint: {script: train.py, args: ["--lr=${lr}"]}
"""
SWEEP = ["--array", "lr=1e-3,3e-4", "env.SEED=0..1"]


@pytest.fixture(autouse=True)
def job(workplace: Path) -> None:
    (workplace / "job.yaml").write_text(JOB)


def only_array(workplace: Path) -> Path:
    (found,) = (workplace / "hpc-elastic-runs").iterdir()
    return found


def submit(fake_slurm: FakeSlurm, workplace: Path) -> Path:
    """Four runs, of which Slurm says that the first two run and the others wait."""
    assert main(["submit", "job.yaml", *SITE, *SWEEP]) == 0
    rows = ["42|42_2|PENDING|0|0||JobArrayTaskLimit|", "42|42_3|PENDING|0|0||JobArrayTaskLimit|"]
    rows += ["43|42_0|RUNNING|0|0|node1|None|", "44|42_1|RUNNING|0|0|node2|None|"]
    fake_slurm.script("squeue", f"cat <<'.'\n{chr(10).join(rows)}\n.")
    return only_array(workplace)


def plan(folder: Path, task: int) -> Any:
    return json.loads((folder / str(task) / "plan.json").read_text())


def end(folder: Path, task: int, **changes: Any) -> None:
    """A task has run to its end."""
    RunBuilder.at(folder / str(task), f"42_{task}").allocate().open_attempt(1).end(**changes)


@pytest.mark.long
def test_every_run_has_its_own_values(workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    folder = submit(fake_slurm, workplace)
    assert len(fake_slurm.calls("sbatch")) == 1
    seen = [(plan(folder, task)["roles"][0]["entrypoint"]["args"], plan(folder, task)["env"]) for task in range(4)]
    assert seen == [
        (["--lr=1e-3"], {"SEED": "0"}),
        (["--lr=1e-3"], {"SEED": "1"}),
        (["--lr=3e-4"], {"SEED": "0"}),
        (["--lr=3e-4"], {"SEED": "1"}),
    ]
    assert plan(folder, 3)["run"] == f"{folder.name}_3"
    assert (folder / "job.yaml").read_text() == (folder / "2" / "job.yaml").read_text() == JOB
    told = capsys.readouterr().out
    assert "submitted digits as job 42 on generic-slurm, an array of 4 runs" in told
    assert "next: hpc-elastic status 42, logs 42_0, or cancel 42" in told


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ["job.yaml", "--array", "lr=1,2"],
        ["--array", "lr=1,2", "--", "job.yaml"],
        ["--array", "lr=1,2", "job.yaml"],
        ["--array=lr=1,2", "job.yaml", "--array-limit", "1"],
        ["--array", "lr=1,2", "--array-limit=1", "job.yaml"],
    ],
)
def test_the_job_file_may_stand_before_and_behind(words: list[str], workplace: Path, fake_slurm: FakeSlurm) -> None:
    assert main(["submit", *SITE, *words]) == 0
    limit = "%1" if any(word.startswith("--array-limit") for word in words) else ""
    assert f"#SBATCH --array=0-1{limit}\n" in (only_array(workplace) / "job.sh").read_text()


@pytest.mark.long
def test_words_may_be_given_one_by_one(workplace: Path, fake_slurm: FakeSlurm) -> None:
    assert main(["submit", "job.yaml", *SITE, "--array", "lr=1,2", "--array", "env.SEED=1..3"]) == 0
    assert "#SBATCH --array=0-5\n" in (only_array(workplace) / "job.sh").read_text()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--array", "seed=0..3"], 2, "the parameter seed is used nowhere: job.yaml names ${lr}"),
        (["--array", "site=local,generic-slurm"], 2, "an array is submitted to one site"),
        (["--array", "nodes=1,2"], 3, "task 0 asks for --nodes=1, task 1 for --nodes=2"),
        (["--array", "time=1h,2h"], 3, "asks for --time=01:00:00, task 1 for --time=02:00:00"),
        (["--array", "name=a,b"], 3, "asks for --job-name=a, task 1 for --job-name=b"),
        (["--array", "restart.max_restarts=0,-1"], 3, "--array restart.max_restarts: expected at least 0, found -1"),
        (["--array", "restart.max_restart=0,1"], 3, "--array restart.max_restart: unknown key; did you mean"),
        (["--array", "entrypoint.args[1]=a,b"], 3, "has 1 items here, so that it has no [1]"),
        (["--array", "lr=1", "--set", "nodes=0"], 3, "--set nodes: expected at least 1"),
        (["--array", "lr=1", "--follow"], 2, "--follow shows the output of one run"),
        (["--array", "lr=1", "--array-limit", "0"], 2, "the limit of an array is 0"),
        (["--array-limit", "2"], 2, "--array-limit goes with --array"),
        (["--array"], 2, "expected at least one argument"),
    ],
)
def test_an_array_that_makes_no_sense_is_refused(
    words: list[str], code: int, message: str, workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    before = sorted(workplace.iterdir())
    assert main(["submit", "job.yaml", *SITE, *words]) == code
    told = capsys.readouterr().err
    assert message in told
    assert "tip: " in told or code == 3
    assert sorted(workplace.iterdir()) == before
    assert fake_slurm.calls("sbatch") == []


@pytest.mark.long
def test_a_key_that_the_job_file_names_as_a_variable_is_one(workplace: Path, fake_slurm: FakeSlurm) -> None:
    """`time` is a key of the job file, but `${time}` stands in it."""
    (workplace / "job.yaml").write_text(JOB.replace("${lr}", "${time}"))
    assert main(["submit", "job.yaml", *SITE, "--array", "time=1,2"]) == 0
    assert plan(only_array(workplace), 1)["roles"][0]["entrypoint"]["args"] == ["--lr=2"]
    assert plan(only_array(workplace), 1)["time_s"] == 600


@pytest.mark.long
def test_dry_run_of_an_array_makes_nothing(workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    before = sorted(workplace.iterdir())
    assert main(["submit", "job.yaml", "--dry-run", *SITE, *SWEEP]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("#!/bin/bash\n#SBATCH ")
    assert "  3  lr=3e-4 env.SEED=1\n" in captured.err
    assert sorted(workplace.iterdir()) == before


@pytest.mark.long
def test_json_has_the_tasks(workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    assert main(["submit", "job.yaml", "--json", "--run-dir", "mine", *SITE, *SWEEP]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {**told, "tasks": len(told["tasks"])} == {
        "job_id": "42",
        "run_dir": str(workplace / "mine"),
        "name": "digits",
        "site": "generic-slurm",
        "tasks": 4,
    }
    assert told["tasks"][3] == {
        "job_id": "42_3",
        "run_dir": str(workplace / "mine" / "3"),
        "parameters": {"lr": "3e-4", "env.SEED": "1"},
    }


@pytest.mark.long
def test_an_array_and_its_tasks_are_found_by_id_name_and_folder(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = submit(fake_slurm, workplace)
    for where in (tmp_path, workplace):
        monkeypatch.chdir(where)
        for wanted in ("42", "digits", folder.name, str(folder), None):
            capsys.readouterr()
            assert main(["status", "--json", *([wanted] if wanted else [])]) == 0
            assert json.loads(capsys.readouterr().out)["states"] == {"PENDING": 2, "RUNNING": 2}
        for wanted in ("42_1", "digits_1", f"{folder.name}_1", str(folder / "1")):
            assert main(["status", "--json", wanted]) == 0
            data = json.loads(capsys.readouterr().out)
            assert (data["run_dir"], data["state"]) == (str(folder / "1"), "RUNNING")
            assert (data["array_task"], data["parameters"]) == (1, {"lr": "1e-3", "env.SEED": "1"})
        (tmp_path / "state" / "hpc_elastic" / "runs.jsonl").write_text("")  # the second time without the index


@pytest.mark.long
@pytest.mark.parametrize("wanted", ["42_4", "digits_4", "43_0"])
def test_a_task_that_there_is_not_is_said_so(
    wanted: str, workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    submit(fake_slurm, workplace)
    assert main(["status", wanted]) == 2
    assert f"no run '{wanted}'" in capsys.readouterr().err


@pytest.mark.long
def test_logs_of_a_whole_array_ask_for_a_task(workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    submit(fake_slurm, workplace)
    assert main(["logs", "digits"]) == 2
    told = capsys.readouterr().err
    assert "digits is an array of 4 runs" in told
    assert "such as 42_0; `hpc-elastic status 42` lists them" in told


@pytest.mark.long
def test_list_has_a_line_for_an_array_and_asks_slurm_once(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    folder = submit(fake_slurm, workplace)
    end(folder, 0)
    capsys.readouterr()
    assert main(["list"]) == 0
    (line,) = capsys.readouterr().out.splitlines()[1:]
    assert line.startswith("digits  1 SUCCEEDED, 1 RUNNING, 2 PENDING  42 ")
    assert line.endswith(str(folder))
    assert len(fake_slurm.calls("squeue")) == 1
    assert "--jobs=42 " in fake_slurm.calls("squeue")[0]
    assert main(["list", "--json"]) == 0
    assert len(fake_slurm.calls("squeue")) == 2
    (array,) = json.loads(capsys.readouterr().out)
    assert [task["state"] for task in array["tasks"]] == ["SUCCEEDED", "RUNNING", "PENDING", "PENDING"]


@pytest.mark.long
def test_list_shows_tasks_if_asked(workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    submit(fake_slurm, workplace)
    capsys.readouterr()
    assert main(["list", "--tasks"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[:5] for line in lines][2:] == [
        ["digits_2", "lr=3e-4", "env.SEED=0", "PENDING", "42_2"],
        ["digits_3", "lr=3e-4", "env.SEED=1", "PENDING", "42_3"],
    ]
    assert main(["list", "--tasks", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 4


@pytest.mark.long
def test_list_passes_over_an_array_whose_record_is_torn(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    folder = submit(fake_slurm, workplace)
    (folder / "array.json").write_text("[]")
    capsys.readouterr()
    assert main(["list"]) == 0
    error = capsys.readouterr().err
    assert f"{folder}/array.json cannot be read: expected an object, found a list" in error
    assert "no runs yet" not in error


@pytest.mark.long
def test_status_of_an_array_says_where_each_task_stands(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    folder = submit(fake_slurm, workplace)
    end(folder, 0)
    end(folder, 1, state=RunState.FAILED, exit_code=1, cause="rank 0 failed")
    capsys.readouterr()
    assert main(["status", "42"]) == 0
    told = capsys.readouterr().out
    assert "state          1 SUCCEEDED, 2 PENDING, 1 FAILED\n" in told
    assert "next           hpc-elastic explain 42_1, or logs\n" in told
    assert "42_1  FAILED                       lr=1e-3 env.SEED=1  1         rank 0 failed\n" in told
    assert main(["status", "42_1"]) == 0
    assert f"task           1 of {folder.name}: lr=1e-3 env.SEED=1" in " ".join(capsys.readouterr().out.split(" " * 15))


@pytest.mark.long
def test_a_task_that_goes_on_as_a_job_of_its_own_keeps_its_name_and_is_found_by_both(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    folder = submit(fake_slurm, workplace)
    RunBuilder.at(folder / "1", "42_1").allocate().allocate(2, job_id="63").open_attempt(1).end()
    capsys.readouterr()
    assert main(["status", "42"]) == 0
    assert "42_1 (63)  SUCCEEDED" in capsys.readouterr().out
    assert find_run("63").root == find_run("42_1").root == str(folder / "1")


def test_an_array_that_was_copied_is_named_by_its_folder(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    folder = submit(fake_slurm, workplace)
    end(folder, 1, state=RunState.FAILED, exit_code=1, cause="rank 0 failed")
    shutil.copytree(folder, workplace / "copy")
    capsys.readouterr()
    assert main(["status", str(workplace / "copy")]) == 0
    assert f"next           hpc-elastic explain {workplace}/copy/1, or logs\n" in capsys.readouterr().out


@pytest.mark.long
def test_status_of_an_array_is_that_of_the_directories_if_slurm_is_silent(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    folder = submit(fake_slurm, workplace)
    end(folder, 0)
    fake_slurm.no_controller()
    capsys.readouterr()
    assert main(["status", "42"]) == 0
    captured = capsys.readouterr()
    assert "state          1 SUCCEEDED, 3 PENDING\n" in captured.out
    assert captured.err.count("states are from the run directories alone") == 1
    assert len(fake_slurm.calls("squeue")) == 1


@pytest.mark.long
def test_interrupt_while_waiting_for_an_array_detaches(workplace: Path, fake_slurm: FakeSlurm) -> None:
    command = [sys.executable, "-m", "hpc_elastic", "submit", "job.yaml", "--wait", *SITE, *SWEEP]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: fake_slurm.calls("squeue"), "it watches", within_s=60)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "detached; the array goes on. `hpc-elastic cancel 42` stops it" in error
    assert fake_slurm.calls("scancel") == []


@pytest.mark.long
def test_the_exit_code_of_an_array_is_that_of_its_first_failure(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    folder = submit(fake_slurm, workplace)
    for task, code in enumerate((0, 7, 1, 0)):
        end(folder, task, state=RunState.FAILED if code else RunState.SUCCEEDED, exit_code=code)
        assert main(["status", "--json", "42"]) == 0
        told = capsys.readouterr().out
        assert json.loads(told[told.index("{") :])["exit_code"] == (7 if task == 3 else None)


@pytest.mark.long
def test_cancel_of_an_array_that_waits_takes_it_out_of_the_queue(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    folder = submit(fake_slurm, workplace)
    for task in (0, 1):
        end(folder, task)
    fake_slurm.script("scancel", f"echo '42|42|CANCELLED|0|0||None|' >{fake_slurm.folder}/rows")
    fake_slurm.script("squeue", f"cat {fake_slurm.folder}/rows 2>/dev/null || echo '42|42_2|PENDING|0|0||None|'")
    assert main(["cancel", "42"]) == 0
    assert "digits ended: 2 SUCCEEDED, 2 CANCELLED" in capsys.readouterr().out
    assert fake_slurm.calls("scancel")[0] == "scancel --state=PENDING 42"
    assert json.loads((folder / "3" / "result.json").read_text())["reason"] == "stop_requested"
    assert main(["cancel", "42"]) == 0  # as for a run that was cancelled before


@pytest.mark.long
def test_cancel_of_an_array_on_a_full_disk_succeeds_at_once(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = submit(fake_slurm, workplace)
    RunBuilder.at(folder / "0", "42_0").allocate()
    fake_slurm.script("scancel", f"echo '42|42|CANCELLED|0|0||None|' >{fake_slurm.folder}/rows")
    fake_slurm.script("squeue", f"cat {fake_slurm.folder}/rows 2>/dev/null || echo '42|42_0|RUNNING|0|0||None|'")
    refuse_writes(monkeypatch, str(folder))
    assert main(["cancel", "42"]) == 0
    said = capsys.readouterr()
    assert "digits ended: 4 CANCELLED" in said.out
    assert f"cannot write {folder}/0/requests.jsonl: No space left on device; only the scheduler is told" in said.err
    assert said.err.count("only the scheduler is told") == 1
    assert "asked digits to stop" not in said.err
    assert said.err.count("the result could not be written") == 1


def test_task_whose_folder_was_removed_is_named_and_not_told_as_pending(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    folder = submit(fake_slurm, workplace)
    shutil.rmtree(folder / "1")
    capsys.readouterr()
    assert main(["status", "--json", "42"]) == 0
    said = capsys.readouterr()
    assert [task["array_task"] for task in json.loads(said.out)["tasks"]] == [0, 2, 3]
    assert f"{folder}/1 is gone: it was moved or removed" in said.err
    assert main(["status", "42_1"]) == 5
    assert f"{folder}/1 is gone: it was moved or removed" in capsys.readouterr().err


def test_cancel_of_an_array_does_not_wait_for_a_task_whose_folder_was_removed(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    folder = submit(fake_slurm, workplace)
    for task in (0, 1):
        end(folder, task)
    shutil.rmtree(folder / "2")
    fake_slurm.script("scancel", f"echo '42|42|CANCELLED|0|0||None|' >{fake_slurm.folder}/rows")
    fake_slurm.script("squeue", f"cat {fake_slurm.folder}/rows 2>/dev/null || echo '42|42_3|PENDING|0|0||None|'")
    assert main(["cancel", "42"]) == 0
    assert "digits ended: 2 SUCCEEDED, 1 CANCELLED" in capsys.readouterr().out
    assert not (folder / "2").exists()
    assert fake_slurm.calls("scancel")[-1] == "scancel 42"


def test_refused_cancel_of_an_array_tells_that_its_tasks_end_when_they_start(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    folder = submit(fake_slurm, workplace)
    fake_slurm.no_controller()
    assert main(["cancel", "42"]) == 4
    said = " ".join(capsys.readouterr().err.split())
    assert "the tasks end as soon as their agents read them, those that wait when they start" in said
    assert all((folder / str(task) / "requests.jsonl").read_text() for task in range(4))


@pytest.mark.long
def test_there_is_nothing_to_cancel_in_an_array_that_succeeded(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    folder = submit(fake_slurm, workplace)
    for task in range(4):
        end(folder, task)
    assert main(["cancel", "digits"]) == 5
    assert "digits is over already: 4 SUCCEEDED" in capsys.readouterr().err
    assert fake_slurm.calls("scancel") == []


def test_old_lines_of_the_index_are_runs(workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    """They have no number of tasks."""
    main(["submit", "job.yaml", *SITE, "--set", "entrypoint.args=[]"])
    index = Path(os.environ["XDG_STATE_HOME"]) / "hpc_elastic" / "runs.jsonl"
    line = json.loads(index.read_text())
    assert line.pop("tasks") == 0
    index.write_text(json.dumps(line) + "\n")
    assert main(["status", "42"]) == 0
