"""From a job file to a job, with Slurm's programs as fakes; a refusal leaves nothing behind."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from tests.cli.conftest import FakeSlurm
from tests.observe.builders import RunBuilder

Capture = pytest.CaptureFixture[str]
SITE = ["--site", "generic-slurm"]


def runs(workplace: Path) -> list[Path]:
    folder = workplace / "hpc-elastic-runs"
    return sorted(folder.iterdir()) if folder.exists() else []


def test_submit_makes_a_complete_run_directory(workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    assert main(["submit", "job.yaml", *SITE]) == 0
    (run,) = runs(workplace)
    names = {"job.yaml", "plan.json", "job.sh", "submission.json", "secret", "requests.jsonl"}
    assert {path.name for path in run.iterdir()} == names | {"allocations", "agents", "nodes", "attempts"}
    assert (run / "job.yaml").read_text() == (workplace / "job.yaml").read_text()
    assert stat.S_IMODE((run / "secret").stat().st_mode) == 0o600
    assert (run / "secret").stat().st_size == 32
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    assert fake_slurm.calls("sbatch") == [f"sbatch --parsable {run}/job.sh"]
    assert json.loads((run / "submission.json").read_text())["job_id"] == "42"
    assert "submitted digits as job 42 on generic-slurm" in capsys.readouterr().out


def test_submit_json_prints_one_object(workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    assert main(["submit", "job.yaml", "--json", *SITE]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "job_id": "42",
        "run_dir": str(runs(workplace)[0]),
        "name": "digits",
        "site": "generic-slurm",
    }


def test_submitted_run_is_found_by_job_id_name_and_directory(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    main(["submit", "job.yaml", *SITE])
    (run,) = runs(workplace)
    monkeypatch.chdir(tmp_path)
    for wanted in ("42", "digits", run.name, str(run), None):
        capsys.readouterr()
        assert main(["status", "--json", *([wanted] if wanted else [])]) == 0
        data = json.loads(capsys.readouterr().out)
        assert (data["run_dir"], data["state"], data["job_reason"]) == (str(run), "PENDING", "Resources")


def test_dry_run_prints_the_script_and_makes_nothing(workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    before = sorted(workplace.iterdir())
    assert main(["submit", "job.yaml", "--dry-run", *SITE]) == 0
    assert capsys.readouterr().out.startswith("#!/bin/bash\n#SBATCH ")
    assert sorted(workplace.iterdir()) == before
    assert fake_slurm.calls("sbatch") == []


def test_refused_submission_leaves_nothing(workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    fake_slurm.script("sbatch", 'echo "sbatch: error: invalid partition specified: nowhere" >&2; exit 1')
    before = sorted(workplace.iterdir())
    assert main(["submit", "job.yaml", *SITE]) == 4
    assert "invalid partition specified: nowhere" in capsys.readouterr().err
    assert sorted(workplace.iterdir()) == before
    assert main(["status"]) == 2


def test_refused_submission_leaves_an_existing_directory_empty(workplace: Path, fake_slurm: FakeSlurm) -> None:
    fake_slurm.script("sbatch", "exit 1")
    (workplace / "mine").mkdir()
    assert main(["submit", "job.yaml", "--run-dir", "mine", *SITE]) == 4
    assert list((workplace / "mine").iterdir()) == []


def test_submit_shows_what_sbatch_says_of_a_job_that_it_takes(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    fake_slurm.script(
        "sbatch", 'printf "sbatch: time is cut to 2 h\\n\\n\\033[1mBudget left: 77\\033[0m\\n" >&2; echo 42'
    )
    assert main(["submit", "job.yaml", *SITE]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "sbatch" in line] == [
        "hpc-elastic: sbatch: time is cut to 2 h",
        "hpc-elastic: sbatch: Budget left: 77",
    ]


def test_submit_keeps_the_run_of_a_job_that_sbatch_has_submitted_and_does_not_name(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    fake_slurm.script("sbatch", f"pwd -P >{fake_slurm.folder}/cwd; echo 'on its way'; exit 0")
    fake_slurm.script("squeue", f'echo "7|/elsewhere|"; echo "42|$(cat {fake_slurm.folder}/cwd)|"')
    assert main(["submit", "job.yaml", *SITE]) == 0
    (run,) = runs(workplace)
    assert "submitted digits as job 42" in capsys.readouterr().out
    assert json.loads((run / "submission.json").read_text())["job_id"] == "42"


def test_submit_to_a_named_site_without_a_controller_is_slurms_error(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    fake_slurm.no_controller()
    assert main(["submit", "job.yaml", *SITE]) == 4
    assert "Unable to contact slurm controller" in capsys.readouterr().err
    assert runs(workplace) == []


def test_site_is_slurm_if_nobody_named_one_and_slurm_answers(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    assert main(["submit", "job.yaml", "--dry-run"]) == 0
    assert capsys.readouterr().err.startswith("no site named: Slurm answers, so the site is generic-slurm\n")


def test_a_login_node_whose_controller_does_not_answer_is_no_place_for_a_run(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    fake_slurm.no_controller()
    assert main(["submit", "job.yaml"]) == 4
    error = capsys.readouterr().err
    assert "Slurm does not answer: " in error
    assert "Unable to contact slurm controller" in error
    assert "`--site local` runs on this machine" in error
    assert not (workplace / "hpc-elastic-runs").exists()


def test_site_is_local_if_nobody_named_one_and_no_slurm_is_set_up(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    fake_slurm.no_slurm()
    assert main(["submit", "job.yaml", "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert "the run stays on this machine (site local)" in captured.err
    assert "#SBATCH" not in captured.out


def test_sites_of_options_outrank_the_job_files(workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    (workplace / "job.yaml").write_text("site: generic-slurm\n" + (workplace / "job.yaml").read_text())
    assert main(["render", "job.yaml", "--site", "local"]) == 0
    assert "#SBATCH" not in capsys.readouterr().out


def test_run_directory_that_is_not_empty_is_refused(workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    (workplace / "mine").mkdir()
    (workplace / "mine" / "thesis.tex").write_text("chapter 1")
    assert main(["submit", "job.yaml", "--run-dir", "mine", *SITE]) == 5
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in (workplace / "mine").iterdir()] == ["thesis.tex"]
    assert fake_slurm.calls("sbatch") == []


@pytest.mark.long
def test_one_of_two_submissions_into_one_directory_is_refused(workplace: Path, fake_slurm: FakeSlurm) -> None:
    command = [sys.executable, "-m", "hpc_elastic", "submit", "job.yaml", "--run-dir", "mine", *SITE]
    processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(3)]
    assert sorted(process.wait(timeout=60) for process in processes) == [0, 5, 5]
    assert (workplace / "mine" / "submission.json").exists()
    assert len(fake_slurm.calls("sbatch")) == 1


def test_run_directory_may_hold_a_space(workplace: Path, fake_slurm: FakeSlurm) -> None:
    assert main(["submit", "job.yaml", "--run-dir", "my runs/first one", *SITE]) == 0
    assert (workplace / "my runs" / "first one" / "submission.json").exists()
    assert main(["status", "my runs/first one"]) == 0


def test_run_directory_below_a_file_is_refused(workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    assert main(["submit", "job.yaml", "--run-dir", "train.py/run", *SITE]) == 5
    error = capsys.readouterr().err
    assert "Not a directory" in error
    assert error.count("\n") <= 2


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)], check=False)
    if done.returncode:
        pytest.skip("this machine mounts no tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_is_one_message_and_leaves_nothing(
    tiny_disk: Path, workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    (tiny_disk / "ballast").write_bytes(bytes(8192))
    assert main(["submit", "job.yaml", "--run-dir", str(tiny_disk / "run"), *SITE]) == 5
    error = capsys.readouterr().err
    assert "No space left on device" in error
    assert "tip: free some space" in error
    assert "Traceback" not in error
    assert [path.name for path in tiny_disk.iterdir()] == ["ballast"]
    assert fake_slurm.calls("sbatch") == []


def test_a_disk_without_inodes_is_not_told_to_lack_space(
    tiny_disk: Path, workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    subprocess.run(["mount", "-o", "remount,size=256k,nr_inodes=4", str(tiny_disk)], check=True)
    assert main(["submit", "job.yaml", "--run-dir", str(tiny_disk / "run"), *SITE]) == 5
    error = capsys.readouterr().err
    assert "No space left on device (no inode is left, as its file system cannot hold more than its 4 files" in error
    assert "tip: delete some of its files, or choose another place with --run-dir" in error
    assert list(tiny_disk.iterdir()) == []
    assert fake_slurm.calls("sbatch") == []


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["--array", "env.SEED=0..1"]])
def test_disk_that_fills_up_while_the_job_is_submitted_costs_no_record(
    tiny_disk: Path, workplace: Path, fake_slurm: FakeSlurm, capsys: Capture, options: list[str]
) -> None:
    subprocess.run(["mount", "-o", "remount,size=256k", str(tiny_disk)], check=True)
    fake_slurm.script("sbatch", f"cat /dev/zero >{tiny_disk}/ballast 2>/dev/null; echo 42")
    run_dir = tiny_disk / "run"
    assert main(["submit", "job.yaml", "--run-dir", str(run_dir), *options, *SITE]) == 0
    assert os.statvfs(tiny_disk).f_bavail == 0
    capsys.readouterr()
    assert main(["status", str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["job_id"] == "42"
    assert list(run_dir.rglob("*.tmp")) == []
    assert fake_slurm.calls("scancel") == []


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["--array", "env.SEED=0..1"]])
def test_disk_without_room_for_the_record_launches_nothing(
    tiny_disk: Path, workplace: Path, fake_slurm: FakeSlurm, capsys: Capture, options: list[str]
) -> None:
    """Whatever room there is: nothing is launched and nothing remains, or all is there."""
    subprocess.run(["mount", "-o", "remount,size=256k", str(tiny_disk)], check=True)
    outcomes = set()
    for pages in range(0, 64, 4):
        (tiny_disk / "ballast").write_bytes(bytes(4096 * pages))
        code = main(["submit", "job.yaml", "--run-dir", str(tiny_disk / "run"), *options, *SITE])
        outcomes.add(code)
        left = sorted(path.name for path in tiny_disk.iterdir())
        assert (left, len(fake_slurm.calls("sbatch"))) == (["ballast", "run"], 1) if code == 0 else (["ballast"], 0)
        shutil.rmtree(tiny_disk / "run", ignore_errors=True)
        (fake_slurm.folder / "calls").unlink(missing_ok=True)
    assert outcomes == {0, 5}


def test_read_only_place_is_one_message(
    tiny_disk: Path, workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    assert main(["submit", "job.yaml", "--run-dir", str(tiny_disk / "a" / "run"), *SITE]) == 5
    assert "Read-only file system" in capsys.readouterr().err


def test_job_whose_submission_cannot_be_recorded_is_kept_with_all_its_files(
    tiny_disk: Path, workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    subprocess.run(["mount", "-o", "remount,size=64k", str(tiny_disk)], check=True)
    fake_slurm.script("sbatch", f"mount -o remount,ro {tiny_disk} && echo 42")
    run_dir = tiny_disk / "run"
    assert main(["submit", "job.yaml", "--run-dir", str(run_dir), *SITE]) == 5
    error = capsys.readouterr().err
    assert "job 42 was submitted and goes on, but its record is missing" in error
    assert "Read-only file system" in error
    assert fake_slurm.calls("scancel") == []
    assert {"plan.json", "job.sh", "secret", "requests.jsonl"} <= {path.name for path in run_dir.iterdir()}
    assert main(["status", "42"]) == 0
    assert "there is no submission.json" in " ".join(capsys.readouterr().out.split())


def test_index_that_cannot_be_written_stops_nothing(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(workplace / "train.py"))
    assert main(["submit", "job.yaml", *SITE]) == 0
    assert "warning: the run is not in the index" in capsys.readouterr().err
    assert main(["status", "42"]) == 0  # found below the working directory


def test_a_user_without_a_home_is_told_once_that_the_run_is_in_no_list(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = pwd.getpwuid(os.getuid())
    nobodys = pwd.struct_passwd((*entry[:5], "/nonexistent", entry.pw_shell))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: nobodys)
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "")
    assert main(["submit", "job.yaml", *SITE]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("hpc-elastic: warning: the run is not in the index: there is no home for it: HOME is ''")
    assert not Path("/nonexistent").exists()
    assert main(["status", "42"]) == 0  # found below the working directory
    assert main(["list"]) == 0


@pytest.mark.long
def test_index_on_a_file_server_that_hangs_is_not_waited_for(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = workplace / "state" / "hpc_elastic" / "runs.jsonl"
    index.parent.mkdir(parents=True)
    os.mkfifo(index)  # nobody reads it: an open for writing does not return
    monkeypatch.setenv("XDG_STATE_HOME", str(workplace / "state"))
    assert main(["submit", "job.yaml", "--run-dir", "run", *SITE]) == 0
    os.close(os.open(index, os.O_RDONLY | os.O_NONBLOCK))  # lets the thread go
    told = capsys.readouterr()
    assert "as job 42" in told.out
    assert told.err.endswith(f"warning: the run is not in the index: {index} has not been written within 5 s\n")
    assert (workplace / "run" / "submission.json").exists()


@pytest.mark.parametrize("line", ["restart: {max_restart: 3}", "nodes: [1", "time: 30"])
def test_bad_job_file_leaves_nothing(line: str, workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    (workplace / "job.yaml").write_text(f"entrypoint: {{script: train.py}}\n{line}\n")
    assert main(["submit", "job.yaml", *SITE]) == 3
    error = capsys.readouterr().err
    assert "error: job.yaml:" in error
    assert "Traceback" not in error
    assert runs(workplace) == []


def test_wait_returns_the_exit_code_of_a_run_that_was_cancelled_while_pending(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    fake_slurm.script("sbatch", f"echo CANCELLED 0 None >{fake_slurm.folder}/state; echo 42")
    assert main(["submit", "job.yaml", "--wait", *SITE]) == 10
    (run,) = runs(workplace)
    assert json.loads((run / "result.json").read_text())["written_by"] == "login"
    assert "CANCELLED (exit code 10): the job was cancelled before it started" in capsys.readouterr().err


def test_wait_and_status_tell_the_runs_own_end_although_slurm_says_cancelled(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    """So it is where the batch host was lost and an agent ended the job."""
    done = RunBuilder(workplace / "done").submit().allocate().open_attempt(1).end().layout.root
    fake_slurm.script(
        "sbatch",
        f"cp -r {done}/attempts {done}/allocations {done}/result.json {workplace}/run; "
        f"echo CANCELLED 0 None >{fake_slurm.folder}/state; echo 42",
    )
    assert main(["submit", "job.yaml", "--wait", "--run-dir", "run", *SITE]) == 0
    assert "SUCCEEDED: every rank exited 0" in capsys.readouterr().err
    assert main(["status", "run"]) == 0
    assert "state          SUCCEEDED, exit code 0\n" in capsys.readouterr().out


def test_follow_keeps_standard_output_for_the_workers_and_json(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    fake_slurm.script("sbatch", f"echo CANCELLED 0 None >{fake_slurm.folder}/state; echo 42")
    assert main(["submit", "job.yaml", "--follow", "--json", *SITE]) == 10
    captured = capsys.readouterr()
    assert json.loads(captured.out)["job_id"] == "42"
    assert "CANCELLED" in captured.err


@pytest.mark.long
def test_interrupt_while_following_detaches(workplace: Path, fake_slurm: FakeSlurm) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "hpc_elastic", "submit", "job.yaml", "--follow", *SITE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "PENDING (Resources)" in line:
            break
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "detached; the run goes on. `hpc-elastic cancel 42` stops it" in error
    assert fake_slurm.calls("scancel") == []


@pytest.mark.long
def test_check_says_what_it_would_do_and_schema_is_json(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    assert main(["check", "job.yaml", "--set", "nodes=8", *SITE]) == 0
    text = capsys.readouterr().out
    assert "job.yaml is fine" in text
    assert "nodes          8" in text
    assert main(["schema"]) == 0
    assert "$schema" in json.loads(capsys.readouterr().out)
    assert runs(workplace) == []


@pytest.mark.parametrize(
    ("nodes", "limit", "said"),
    [
        ("{min: 3, max: 4}", 64, "at most 64, while 3 nodes or more are left"),
        ("{min: 1, max: 2}", 5, "at most 5, while 1 node or more are left"),
        ("4", 64, "the first one ends the allocation, and the job is started again"),
        ("{min: 3, max: 4}", 0, "the first one ends the run"),
    ],
)
def test_check_says_how_many_lost_nodes_are_survived(
    nodes: str, limit: int, said: str, workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    overrides = ["--set", f"nodes={nodes}", "--set", f"restart.max_node_losses={limit}"]
    assert main(["check", "job.yaml", *overrides, *SITE]) == 0
    assert f"  node losses    {said}\n" in capsys.readouterr().out


@pytest.mark.parametrize("options", [["--set=requeue.max=0"], ["--set=requeue.on=[time_limit]"], ["--site=local"]])
def test_check_says_that_a_lost_node_ends_a_run_that_nothing_starts_again(
    options: list[str], workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    assert main(["check", "job.yaml", "--set", "nodes=4", *SITE, *options]) == 0
    assert "  node losses    the first one ends the run\n" in capsys.readouterr().out


def test_check_shows_an_argument_of_many_lines_in_one(workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    arguments = r'entrypoint.args=["Be brief.\n", "\t"]'
    assert main(["check", "job.yaml", "--set", "python=/py", "--set", arguments, *SITE]) == 0
    assert "  runs           /py train.py 'Be brief.\\n' '\\t'\n" in capsys.readouterr().out


def test_check_says_which_role_runs_what_on_how_many_nodes(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    (workplace / "roles.yaml").write_text(
        "roles:\n"
        "  - {name: trainer, entrypoint: {script: train.py}, nodes: {min: 2, max: 3}, workers_per_node: [2, 1, 1]}\n"
        "  - {name: reader, entrypoint: {command: ./read}, restart: ignore}\n"
    )
    assert main(["check", "roles.yaml", "--set", "roles[1].workers_per_node=3", "--set", "python=/py", *SITE]) == 0
    text = capsys.readouterr().out
    assert "  nodes          3 to 4\n" in text
    assert (
        "  role           trainer: 2 to 3 nodes, workers a node 2, 1, 1\n"
        "    runs         /py train.py\n"
        "    a failure    restarts every worker\n"
        "  role           reader: 1 node, workers a node 3\n"
        "    runs         ./read\n"
        "    a failure    is ignored\n"
    ) in text


@pytest.mark.long
def test_submit_needs_no_torch(workplace: Path, fake_slurm: FakeSlurm) -> None:
    (workplace / "torch.py").write_text("raise ImportError('there is no torch here')\n")
    code = "import sys; from hpc_elastic.cli.main import main; sys.exit(main(sys.argv[1:]))"
    for argv in (["submit", "job.yaml", *SITE], ["status"], ["list"], ["cancel"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *argv], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr


def give_kill_wait(fake_slurm: FakeSlurm) -> None:
    """Have the cluster kill 30 s after a TERM."""
    scontrol = fake_slurm.programs / "scontrol"
    partition = "PartitionName=debug Default=YES GraceTime=0 OverTimeLimit=5 PreemptMode=OFF"
    scontrol.write_text(
        f'#!/bin/bash\ncase "$*" in *config*) echo "KillWait = 30 sec";; *) echo "{partition}";; esac\n'
    )
    scontrol.chmod(0o755)


@pytest.mark.long
def test_submit_warns_of_the_longest_grace_of_an_array_that_varies_it(fake_slurm: FakeSlurm, capsys: Capture) -> None:
    give_kill_wait(fake_slurm)
    assert main(["submit", "--site", "generic-slurm", "job.yaml", "--array", "signals.grace=20s,50s"]) == 0
    warning = "signals.grace is 50 s, but Slurm kills 30 s after the TERM of scancel (KillWait)"
    assert warning in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["--array", "env.SEED=0..1"]])
def test_check_warns_where_slurm_kills_before_the_grace_is_over_and_submit_if_that_was_chosen(
    fake_slurm: FakeSlurm, capsys: Capture, options: list[str]
) -> None:
    give_kill_wait(fake_slurm)
    warning = "signals.grace is 60 s, but Slurm kills 30 s after the TERM of scancel (KillWait)"
    assert main(["submit", "--site", "generic-slurm", "job.yaml", *options]) == 0
    assert warning not in capsys.readouterr().err, "nobody has chosen the grace"
    assert main(["submit", "--site", "generic-slurm", "--set", "signals.grace=60s", "job.yaml", *options]) == 0
    assert warning in capsys.readouterr().err
    assert main(["check", "--site", "generic-slurm", "job.yaml"]) == 0
    told = capsys.readouterr()
    assert warning in told.err
    assert "over time      Slurm lets a job run 5 min beyond its limit (OverTimeLimit)" in told.out
