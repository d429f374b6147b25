"""Which run is meant: the one of this folder, and never another folder's where something would be stopped."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.api.run import Run
from hpc_elastic.cli.main import main
from hpc_elastic.errors import UsageError
from hpc_elastic.rundir import store
from hpc_elastic.rundir.index import index_path
from hpc_elastic.rundir.layout import RunLayout
from tests.cli.conftest import FakeSlurm
from tests.observe.builders import RunBuilder
from tests.tiers import variants

Capture = pytest.CaptureFixture[str]
SUBMIT = ["submit", "job.yaml", "--site", "generic-slurm", "--json"]


@pytest.fixture
def slurm(fake_slurm: FakeSlurm) -> FakeSlurm:
    """One that gives the jobs 1, 2, 3 ..., which are pending until each is cancelled."""
    (fake_slurm.folder / "jobs").mkdir()
    fake_slurm.script("sbatch", f"cd {fake_slurm.folder}/jobs; id=$(($(ls | wc -l) + 1)); echo PENDING >$id; echo $id")
    fake_slurm.script(
        "squeue",
        f'cd {fake_slurm.folder}/jobs; [[ "$*" =~ --jobs=([^\\ ]*) ]]; '
        'for id in ${BASH_REMATCH[1]//,/ }; do echo "$id|$id|$(cat $id)|0|0||None|"; done',
    )
    fake_slurm.script("scancel", f'for id in "$@"; do echo CANCELLED >{fake_slurm.folder}/jobs/$id; done')
    return fake_slurm


def make_folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    for file in ("job.yaml", "train.py"):
        shutil.copy(parent / file, folder / file)
    return folder


@pytest.fixture
def a(workplace: Path) -> Path:
    return make_folder(workplace, "a")


@pytest.fixture
def b(workplace: Path) -> Path:
    return make_folder(workplace, "b")


def submit(folder: Path, capsys: Capture, *options: str) -> tuple[str, str]:
    """Submits in a folder, and stays there; job id and run directory."""
    os.chdir(folder)
    capsys.readouterr()
    assert main([*SUBMIT, *options]) == 0
    said = json.loads(capsys.readouterr().out)
    return said["job_id"], said["run_dir"]


def end(run_dir: str) -> None:
    RunBuilder.at(Path(run_dir), "1").allocate().open_attempt(1).end()


def cancelled(slurm: FakeSlurm) -> list[str]:
    return [call.split()[-1] for call in slurm.calls("scancel")]


@pytest.mark.long
def test_cancel_stops_the_run_of_this_folder_although_another_folders_is_newer(
    a: Path, b: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    job, _ = submit(a, capsys)
    submit(b, capsys)
    os.chdir(a)
    assert main(["cancel"]) == 0
    assert cancelled(slurm) == [job]


@pytest.mark.long
def test_cancel_leaves_another_folders_run_alone_if_this_folders_is_over(
    a: Path, b: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    _, run_dir = submit(a, capsys)
    end(run_dir)
    submit(b, capsys)
    os.chdir(a)
    assert main(["cancel"]) == 5
    assert "digits is over already: SUCCEEDED" in capsys.readouterr().err
    assert cancelled(slurm) == []


@pytest.mark.long
def test_cancel_stops_the_one_run_of_this_folder_that_is_not_over(a: Path, slurm: FakeSlurm, capsys: Capture) -> None:
    job, _ = submit(a, capsys)
    _, newer = submit(a, capsys)
    end(newer)
    assert main(["cancel"]) == 0
    assert cancelled(slurm) == [job]


@pytest.mark.long
def test_cancel_without_a_terminal_names_the_runs_of_this_folder_if_several_are_not_over(
    a: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    jobs = [submit(a, capsys) for _ in range(2)]
    assert main(["cancel"]) == 2
    error = capsys.readouterr().err
    assert "2 runs of this folder are not over" in error
    assert all(run_dir in error for _, run_dir in jobs)
    assert "hpc-elastic cancel 2" in error
    assert cancelled(slurm) == []


@pytest.mark.long
def test_of_several_runs_of_one_job_the_tip_of_cancel_names_a_directory(
    a: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    """`hpc-elastic run`, called twice inside of one allocation."""
    job, _ = submit(a, capsys)
    _, newer = submit(a, capsys)
    record = Path(newer, "submission.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"job_id": job}))
    assert main(["cancel"]) == 2
    assert f"name one of them: `hpc-elastic cancel {newer}`" in capsys.readouterr().err


@pytest.mark.long
def test_cancel_does_not_count_a_run_whose_job_is_over_without_a_result(
    a: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    job, _ = submit(a, capsys)
    gone, _ = submit(a, capsys)
    (slurm.folder / "jobs" / gone).write_text("CANCELLED\n")
    assert main(["cancel"]) == 0
    assert cancelled(slurm) == [job]


def test_cancel_without_a_terminal_takes_no_run_of_another_folder(
    a: Path, b: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    _, run_dir = submit(b, capsys)
    os.chdir(a)
    assert main(["cancel"]) == 2
    error = capsys.readouterr().err
    assert "no run was submitted in this folder" in error
    assert run_dir in error
    assert "hpc-elastic cancel 1" in error
    assert cancelled(slurm) == []


def test_cancel_says_so_if_no_run_of_any_folder_is_left(a: Path, b: Path, slurm: FakeSlurm, capsys: Capture) -> None:
    _, run_dir = submit(b, capsys)
    end(run_dir)
    os.chdir(a)
    assert main(["cancel"]) == 2
    assert "no run was submitted in this folder, and all others are over" in capsys.readouterr().err
    assert slurm.calls("squeue") == []


@pytest.mark.long
@pytest.mark.parametrize(("answer", "code", "stopped"), [("y", 0, ["1"]), ("", 2, []), ("n", 2, [])])
def test_cancel_asks_on_a_terminal_before_it_takes_another_folders_run(
    a: Path, b: Path, slurm: FakeSlurm, capsys: Capture, answer: str, code: int, stopped: list[str]
) -> None:
    submit(b, capsys)
    done, shown = on_terminal(a, answer)
    assert "no run was submitted in this folder" in shown
    assert "cancel it? [y/N]" in shown
    assert (done, cancelled(slurm)) == (code, stopped)


@pytest.mark.long
@pytest.mark.parametrize(
    ("answer", "code", "stopped"),
    [
        ("2", 0, ["1"]),
        ("", 2, []),
        ("3", 2, []),
        *variants(
            *((answer, 2, list[str]()) for answer in ("0", "y")),
            of="test_cancel_asks_on_a_terminal_which_run_of_this_folder_is_meant",
        ),
    ],
)
def test_cancel_asks_on_a_terminal_which_run_of_this_folder_is_meant(
    a: Path, slurm: FakeSlurm, capsys: Capture, answer: str, code: int, stopped: list[str]
) -> None:
    submit(a, capsys)
    submit(a, capsys)
    done, shown = on_terminal(a, answer)
    assert "which one?" in shown
    assert (done, cancelled(slurm)) == (code, stopped)


@pytest.mark.long
def test_each_verb_asks_for_what_it_does(a: Path, b: Path, slurm: FakeSlurm, capsys: Capture) -> None:
    submit(b, capsys)
    done, shown = on_terminal(a, "n", "restart")
    assert (done, "restart it? [y/N]" in shown, "cancel" in shown) == (2, True, False), shown
    os.chdir(a)
    assert main(["stop"]) == 2
    assert "hpc-elastic stop 1" in capsys.readouterr().err


def on_terminal(folder: Path, answer: str, verb: str = "cancel") -> tuple[int, str]:
    """`hpc-elastic cancel`, or another verb, in a folder with a terminal; its exit code and what the terminal shows."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "hpc_elastic", verb], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # EIO: nobody has the other end any more
        pass
    os.close(ours)
    return process.wait(timeout=60), shown.decode()


@pytest.mark.long
def test_name_means_this_folders_run_of_that_name(a: Path, b: Path, slurm: FakeSlurm, capsys: Capture) -> None:
    job, run_dir = submit(a, capsys)
    submit(b, capsys)
    os.chdir(a)
    assert main(["status", "digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run_dir"] == run_dir
    assert main(["cancel", "digits"]) == 0
    assert cancelled(slurm) == [job]


@pytest.mark.long
def test_cancel_of_a_name_takes_the_only_unfinished_run_of_that_name(
    a: Path, b: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    job, _ = submit(b, capsys)
    os.chdir(a)
    assert main(["cancel", "digits"]) == 0
    assert cancelled(slurm) == [job]


@pytest.mark.long
def test_cancel_refuses_a_name_that_several_unfinished_runs_elsewhere_have(
    a: Path, b: Path, workplace: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    submit(a, capsys)
    submit(b, capsys)
    os.chdir(workplace)
    assert main(["cancel", "digits"]) == 2
    assert "2 runs of the name digits are not over" in capsys.readouterr().err
    assert main(["cancel", "2"]) == 0
    assert cancelled(slurm) == ["2"]


@pytest.mark.long
def test_run_belongs_to_the_folder_of_its_submission_wherever_its_files_are(
    a: Path, b: Path, tmp_path: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    os.chdir(a)
    assert main(["submit", str(b / "job.yaml"), *SUBMIT[2:], "--run-dir", str(tmp_path / "elsewhere")]) == 0
    submit(b, capsys)
    os.chdir(a)
    assert main(["status", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["run_dir"] == str(tmp_path / "elsewhere")
    assert captured.err == ""


@pytest.mark.long
def test_folder_is_the_same_through_a_symbolic_link(
    a: Path, b: Path, tmp_path: Path, slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(a)
    job, _ = submit(link, capsys)
    submit(b, capsys)
    os.chdir(a)
    monkeypatch.setenv("PWD", str(link))
    assert main(["cancel"]) == 0
    assert cancelled(slurm) == [job]


@pytest.mark.long
def test_run_directory_that_one_stands_in_is_meant(a: Path, slurm: FakeSlurm, capsys: Capture) -> None:
    _, run_dir = submit(a, capsys)
    submit(a, capsys)
    os.chdir(run_dir)
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run_dir"] == run_dir
    assert main(["cancel"]) == 0
    assert cancelled(slurm) == ["1"]


def test_run_whose_directory_one_stands_below_is_meant_if_this_folder_has_none(
    a: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    _, run_dir = submit(a, capsys)
    submit(a, capsys)
    ranks = Path(run_dir, "attempts", "0001", "ranks")
    ranks.mkdir(parents=True)
    os.chdir(ranks)
    assert main(["status", "--json"]) == 0
    shown = capsys.readouterr()
    assert (json.loads(shown.out)["run_dir"], shown.err) == (run_dir, "")
    assert main(["cancel"]) == 0
    assert cancelled(slurm) == ["1"]


@pytest.mark.long
def test_run_of_this_folder_is_meant_before_the_one_whose_directory_it_lies_in(
    a: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    _, run_dir = submit(a, capsys)
    job, _ = submit(make_folder(a, os.path.join(run_dir, "inside")), capsys)
    assert main(["cancel"]) == 0
    assert cancelled(slurm) == [job]


def test_name_of_a_run_whose_directory_is_gone_says_so_and_how_its_job_ends(
    a: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    job, run_dir = submit(a, capsys)
    shutil.rmtree(run_dir)
    for words in (["status", job], ["cancel", job], ["logs", "digits"]):
        capsys.readouterr()
        assert main(words) == 5
        error = capsys.readouterr().err
        assert f"the directory of run '{words[1]}', {run_dir}, was moved or removed" in error
        assert f"`scancel {job}` ends it" in error
    assert cancelled(slurm) == []


@pytest.mark.parametrize(
    "words", [["cancel", "digits"], ["cancel"], ["status", "digits"], ["status"], ["explain"]], ids=" ".join
)
def test_no_older_run_stands_in_for_a_newer_one_whose_directory_is_gone_while_its_job_is_there(
    words: list[str], a: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    """`status` would show its end, and `cancel` say that there is nothing to cancel."""
    _, older = submit(a, capsys)
    end(older)
    job, run_dir = submit(a, capsys)
    shutil.rmtree(run_dir)
    assert main(words) == 5
    error = capsys.readouterr().err
    assert f"{run_dir}, was moved or removed" in error
    assert f"`scancel {job}` ends it; an older one is in {older}" in error
    assert cancelled(slurm) == []


@pytest.mark.parametrize("words", [["cancel", "digits"], ["cancel"], ["status"], ["status", "digits"]])
def test_run_whose_directory_was_deleted_after_its_end_is_passed_over(
    words: list[str], a: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    """All such runs are asked for together, and an older one of which the job is there would be told."""
    _, older = submit(a, capsys)
    end(older)
    over = [submit(a, capsys) for _ in range(2)]
    for job, run_dir in over:
        (slurm.folder / "jobs" / job).write_text("COMPLETED\n")
        shutil.rmtree(run_dir)
    capsys.readouterr()
    assert main(words) == (5 if "cancel" in words else 0)
    shown = capsys.readouterr()
    assert "was moved or removed" not in shown.err
    assert older in shown.err + shown.out or "digits is over already: SUCCEEDED" in shown.err
    assert len(slurm.calls("squeue")) == 1


def test_only_run_of_this_folder_whose_directory_is_gone_is_told_instead_of_none(
    a: Path, b: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    _, other = submit(b, capsys)
    end(other)
    job, run_dir = submit(a, capsys)
    shutil.rmtree(run_dir)
    for words in (["cancel"], ["status"], ["cancel", "digits"]):
        assert main(words) == 5
        error = capsys.readouterr().err
        assert f"{run_dir}, was moved or removed" in error
        assert f"`scancel {job}` ends it" in error
    os.chdir(b)
    assert main(["status"]) == 0, "a run of another folder is not meant"
    (slurm.folder / "jobs" / job).write_text("COMPLETED\n")
    os.chdir(a)
    assert main(["cancel"]) == 2
    assert "no run was submitted in this folder, and all others are over" in capsys.readouterr().err


@pytest.mark.parametrize(("is_there", "code"), [(True, 5), (False, 0)])
def test_run_whose_directory_is_gone_is_told_while_slurm_is_silent_and_not_where_there_is_none(
    is_there: bool, code: int, a: Path, slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silence passes; on a machine without Slurm the older run could never be named again."""
    _, older = submit(a, capsys)
    end(older)
    _, run_dir = submit(a, capsys)
    shutil.rmtree(run_dir)
    if is_there:
        slurm.no_controller()
    else:
        monkeypatch.setenv("PATH", "")
    assert main(["status"]) == code
    assert (f"{run_dir}, was moved or removed" in capsys.readouterr().err) is is_there


@pytest.mark.parametrize(("found", "code"), [("theirs|/other", 0), ("digits|/other", 5)])
def test_job_of_another_cluster_with_the_number_of_a_run_that_is_gone_is_not_told(
    found: str, code: int, a: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    """Who submitted elsewhere may look at another cluster's job: the index has the machine, and the name."""
    _, older = submit(a, capsys)
    end(older)
    _, run_dir = submit(a, capsys)
    shutil.rmtree(run_dir)
    index = Path(index_path(os.environ))
    entries = [json.loads(line) | {"host": "login2"} for line in index.read_text().splitlines()]
    index.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    slurm.script("squeue", f'case "$*" in *WorkDir*) echo "{found}" ;; *) echo "2|2|RUNNING|0|0||None|" ;; esac')
    assert main(["status", "digits"]) == code


def test_run_that_was_renamed_beside_the_others_is_found_by_its_name(
    a: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    _, older = submit(a, capsys)
    end(older)
    _, run_dir = submit(a, capsys)
    os.rename(run_dir, f"{run_dir}-kept")
    assert main(["status", "digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run_dir"] == f"{run_dir}-kept"


def test_run_that_has_lost_its_plan_is_cancelled_by_its_submission(a: Path, slurm: FakeSlurm, capsys: Capture) -> None:
    job, run_dir = submit(a, capsys)
    os.unlink(RunLayout(run_dir).plan)
    assert main(["status", "--json", job]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["scheduler"], shown["site"], shown["job_state"]) == ("slurm", "generic-slurm", "PENDING")
    assert main(["cancel", job]) == 0
    assert cancelled(slurm) == [job]


@pytest.mark.long
def test_array_is_the_run_of_its_folder(a: Path, b: Path, slurm: FakeSlurm, capsys: Capture) -> None:
    job, run_dir = submit(a, capsys, "--array", "env.SEED=0..1")
    submit(b, capsys)
    os.chdir(a)
    slurm.script(
        "squeue",
        f"[ -e {slurm.folder}/gone ] && state=CANCELLED || state=PENDING; "
        'for task in 0 1; do echo "1|1_$task|$state|0|0||None|"; done',
    )
    slurm.script("scancel", f"touch {slurm.folder}/gone")
    assert main(["cancel"]) == 0
    assert {call.split()[-1] for call in slurm.calls("scancel")} == {job}
    assert json.loads(Path(run_dir, "1", "result.json").read_text())["state"] == "CANCELLED"


def test_reading_verbs_say_which_run_they_mean_if_none_is_of_this_folder(
    a: Path, b: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    _, run_dir = submit(b, capsys)
    RunBuilder.at(Path(run_dir), "1").allocate().open_attempt(1).write_rank(1, 0, "epoch 1\n").end()
    os.chdir(a)
    for verb in ("status", "logs"):
        assert main([verb]) == 0
        error = capsys.readouterr().err
        assert "no run was submitted in this folder" in error
        assert run_dir in error


def test_logs_say_which_run_they_are_of_if_none_was_named(a: Path, slurm: FakeSlurm, capsys: Capture) -> None:
    _, run_dir = submit(a, capsys)
    RunBuilder.at(Path(run_dir), "1").allocate().open_attempt(1).write_rank(1, 0, "epoch 1\n").end()
    assert main(["logs"]) == 0
    assert f"logs of {run_dir}" in capsys.readouterr().err
    assert main(["logs", run_dir]) == 0
    assert capsys.readouterr().err == ""


def test_python_finds_no_run_of_another_folder(a: Path, b: Path, slurm: FakeSlurm, capsys: Capture) -> None:
    _, run_dir = submit(b, capsys)
    assert Run.find().run_dir == run_dir
    os.chdir(a)
    with pytest.raises(UsageError, match="no run was submitted in this folder"):
        Run.find()
    assert Run.find("digits").run_dir == run_dir


@pytest.mark.parametrize("how", ["chained", "by hand"])
def test_a_run_is_found_by_the_id_of_a_later_job(workplace: Path, slurm: FakeSlurm, capsys: Capture, how: str) -> None:
    _, run_dir = submit(workplace, capsys)
    run = RunBuilder.at(Path(run_dir), "1").allocate()
    if how == "chained":  # the job waits for the end of the allocation
        store.append_line(run.layout.requests, {"format_version": 1, "kind": "chain", "allocation": 1, "id": "63"})
    else:
        run.allocate(2, job_id="63")
    for verb in ("status", "cancel"):
        assert main([verb, "62"]) == 2
        assert "no run '62'" in capsys.readouterr().err
    assert main(["status", "63"]) == 0
    assert f"run directory  {run_dir}\n" in capsys.readouterr().out


def test_python_finds_a_run_by_a_number_and_by_a_path(workplace: Path, slurm: FakeSlurm, capsys: Capture) -> None:
    job, run_dir = submit(workplace, capsys, "--run-dir", "mine")
    assert Run.find(int(job)).run_dir == run_dir
    assert Run.find(Path("mine")).run_dir == run_dir


@pytest.mark.long
def test_run_that_the_index_lost_is_found_below_its_folder(a: Path, b: Path, slurm: FakeSlurm, capsys: Capture) -> None:
    job, run_dir = submit(a, capsys)
    os.unlink(index_path(os.environ))
    _, newer = submit(b, capsys)
    os.chdir(a)
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[-1] for line in listed.splitlines()[1:]] == [newer, run_dir]
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run_dir"] == run_dir
    assert main(["cancel"]) == 0
    assert cancelled(slurm) == [job]


@pytest.mark.long
def test_run_of_an_index_without_folders_is_of_the_folder_above_the_default_place(
    a: Path, b: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    job, _ = submit(a, capsys)
    submit(b, capsys)
    index = Path(index_path(os.environ))
    entries = [json.loads(line) for line in index.read_text().splitlines()]
    for entry in entries:
        del entry["folder"]
    index.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    os.chdir(a)
    assert main(["cancel"]) == 0
    assert cancelled(slurm) == [job]


def test_folder_that_was_moved_has_its_runs(a: Path, workplace: Path, slurm: FakeSlurm, capsys: Capture) -> None:
    _, run_dir = submit(a, capsys)
    moved = a.rename(workplace / "moved")
    os.chdir(moved)
    assert main(["status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["run_dir"]
    assert found == RunLayout(moved / "hpc-elastic-runs" / Path(run_dir).name).root


@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("--array", "env.SEED=0..1")])
def test_copy_of_a_folder_has_not_the_runs_of_the_original(
    a: Path, workplace: Path, slurm: FakeSlurm, capsys: Capture, options: tuple[str, ...]
) -> None:
    job, run_dir = submit(a, capsys, *options)
    copy = Path(shutil.copytree(a, workplace / "copy"))
    os.chdir(copy)
    assert main(["list", "--json"]) == 0
    assert [item["run_dir"] for item in json.loads(capsys.readouterr().out)] == [run_dir]
    assert main(["cancel"]) == 2
    assert "no run was submitted in this folder; elsewhere 1 run is not over" in capsys.readouterr().err
    own, _ = submit(copy, capsys)
    assert main(["cancel"]) == 0
    assert cancelled(slurm) == [own]
    os.unlink(index_path(os.environ))
    capsys.readouterr()
    assert main(["status", job, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run_dir"] == run_dir


@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("--array", "env.SEED=0..1")])
def test_copy_of_a_run_is_not_cancelled_in_place_of_the_original(
    a: Path, workplace: Path, slurm: FakeSlurm, capsys: Capture, options: tuple[str, ...]
) -> None:
    _, run_dir = submit(a, capsys, *options)
    copy = Path(shutil.copytree(run_dir, workplace / "copy"))
    os.chdir(copy)
    for verb in (["cancel"], ["cancel", str(copy)]):
        assert main(verb) == 5
        assert f"{copy} is a copy, and the run itself is in {run_dir}" in capsys.readouterr().err
    assert cancelled(slurm) == []
    assert [path for path in copy.rglob("requests.jsonl") if path.stat().st_size] == []


def test_run_that_has_two_names_is_no_copy(a: Path, workplace: Path, slurm: FakeSlurm, capsys: Capture) -> None:
    job, run_dir = submit(a, capsys)
    (workplace / "link").symlink_to(run_dir)
    assert main(["cancel", str(workplace / "link")]) == 0
    assert cancelled(slurm) == [job]


@pytest.mark.long
@pytest.mark.parametrize("has_index", [True, False])
def test_folders_that_share_the_place_of_their_runs_have_their_own(
    a: Path, b: Path, tmp_path: Path, slurm: FakeSlurm, capsys: Capture, has_index: bool
) -> None:
    (tmp_path / "shared").mkdir()
    for folder in (a, b):
        (folder / "hpc-elastic-runs").symlink_to(tmp_path / "shared")
    job, run_dir = submit(a, capsys)
    _, newer = submit(b, capsys)
    if not has_index:
        os.unlink(index_path(os.environ))
    os.chdir(a)
    assert main(["list", "--json"]) == 0
    assert [item["run_dir"] for item in json.loads(capsys.readouterr().out)] == [newer, run_dir]
    assert main(["cancel"]) == 0
    assert cancelled(slurm) == [job]


@pytest.mark.long
def test_run_of_a_torn_line_of_the_index_is_found_below_its_folder(
    a: Path, b: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    job, run_dir = submit(a, capsys)
    index = Path(index_path(os.environ))
    index.write_text(index.read_text().partition('"submitted"')[0])
    _, newer = submit(b, capsys)
    both, *again = index.read_text().splitlines()  # once more where other machines may write over it
    with pytest.raises(json.JSONDecodeError):
        json.loads(both)
    assert len(again) == store.may_be_shared(str(index))
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run_dir"] == newer
    os.chdir(a)
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run_dir"] == run_dir
    assert main(["cancel", "digits"]) == 0
    assert cancelled(slurm) == [job]


@pytest.mark.parametrize("folder", ["\\u0000", "\\ud800"])
def test_folder_in_the_index_that_is_no_path_is_passed_over(
    a: Path, slurm: FakeSlurm, capsys: Capture, folder: str
) -> None:
    job, _ = submit(a, capsys)
    index = Path(index_path(os.environ))
    line = json.loads(index.read_text()) | {"run_dir": "/", "folder": "here"}
    with index.open("a") as file:
        file.write(json.dumps(line).replace("here", folder) + "\n")
    assert main(["cancel"]) == 0
    assert cancelled(slurm) == [job]


@pytest.mark.long
@pytest.mark.parametrize(("folder_number", "is_of_this_folder"), [(1, False), (None, True)])
def test_folder_of_this_name_on_another_machine_is_another_one_unless_it_is_shared(
    a: Path, tmp_path: Path, slurm: FakeSlurm, capsys: Capture, folder_number: int | None, is_of_this_folder: bool
) -> None:
    job, _ = submit(a, capsys, "--run-dir", str(tmp_path / "shared"))
    index = Path(index_path(os.environ))
    line = json.loads(index.read_text()) | {"host": "login2"}
    index.write_text(json.dumps(line | ({"folder_number": folder_number} if folder_number else {})) + "\n")
    assert main(["cancel"]) == (0 if is_of_this_folder else 2)
    assert cancelled(slurm) == ([job] if is_of_this_folder else [])


@pytest.mark.long
def test_cancel_takes_no_other_run_of_this_folder_for_one_that_cannot_be_read(
    a: Path, slurm: FakeSlurm, capsys: Capture
) -> None:
    submit(a, capsys)
    _, newer = submit(a, capsys)
    Path(newer, "result.json").write_bytes(b"")
    assert main(["cancel"]) == 2
    error = capsys.readouterr().err
    assert f"{newer}/result.json cannot be read: it is empty" in error
    assert "1 run of this folder is not over, and 1 cannot be read" in error
    assert cancelled(slurm) == []


@pytest.mark.parametrize("verb", ["status", "explain"])
def test_commands_to_go_on_with_name_the_directory_if_the_job_id_means_another_run_or_none(
    tmp_path: Path, workplace: Path, slurm: FakeSlurm, capsys: Capture, verb: str
) -> None:
    foreign = RunBuilder(tmp_path / "of another cluster").submit("1").allocate().open_attempt(1).layout.root
    job, run_dir = "", ""
    for is_known in (False, True):  # nobody knows its job id here; then a run of this folder has the same one
        if is_known:
            job, run_dir = submit(workplace, capsys)
        assert main([verb, foreign]) == 0
        said = capsys.readouterr().out
        assert f"hpc-elastic logs '{foreign}' --follow" in said
        assert "hpc-elastic logs 1 " not in said
    end(run_dir)
    assert main([verb, run_dir]) == 0
    assert f"hpc-elastic logs {job}\n" in capsys.readouterr().out
