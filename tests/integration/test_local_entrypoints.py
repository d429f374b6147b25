"""What can be run, and what becomes of its output: scripts, modules and programs without torch."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Door, Run

pytestmark = pytest.mark.local

# Says who it is and what it was given.
WHO = """
import os, sys
print(*(os.environ[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")))
print(sys.argv[1:])
"""


def write_job(door: Door, entrypoint: str, *, nodes: int = 2, more: str = "") -> None:
    text = f"name: probe\nsite: local\nnodes: {nodes}\ntime: 10m\nentrypoint: {entrypoint}\n"
    if "workers_per_node" not in more:
        text += "workers_per_node: 2\n"
    if "restart" not in more:
        text += "restart: {max_restarts: 0}\n"
    door.write("job.yaml", f"{text}{more}\n")


def submit(door: Door, entrypoint: str, *, nodes: int = 2, more: str = "", exit_code: int = 0) -> Run:
    """Submits a job with this entrypoint and waits for its end."""
    write_job(door, entrypoint, nodes=nodes, more=more)
    run = door.submit("job.yaml", wait=True, exit_code=exit_code)
    assert run.result()["exit_code"] == exit_code, run.story()
    run.assert_nothing_left()
    run.assert_records_valid()
    return run


def test_a_module_runs_from_the_working_directory(door: Door) -> None:
    (door.folder / "mine").mkdir()
    door.write("mine/__init__.py", "")
    door.write("mine/who.py", WHO)
    run = submit(door, "{module: mine.who, args: ['--name', 'two words', '-x']}")
    assert run.stdout(1, 3) == "3 1 1 4 2\n['--name', 'two words', '-x']\n"


def test_arguments_may_have_many_lines(door: Door) -> None:
    door.write("who.py", WHO)
    run = submit(door, r'{script: who.py, args: ["Be brief.\n\n- a:\t\"b\"\n", "\n"]}', nodes=1)
    assert run.stdout(1, 0).splitlines()[1] == repr(['Be brief.\n\n- a:\t"b"\n', "\n"])


@pytest.mark.variant(of="test_nodes_have_ranks_in_their_order_with_different_numbers_of_workers")
def test_nodes_may_have_different_numbers_of_workers(door: Door) -> None:
    door.write("who.py", WHO)
    run = submit(door, "{script: who.py}", more="workers_per_node: [2, 1]")
    assert [run.stdout(1, rank).splitlines()[0] for rank in range(3)] == ["0 0 0 3 2", "1 1 0 3 2", "2 0 1 3 1"]


def test_a_shell_script_that_fails_has_its_last_words_as_the_cause(door: Door) -> None:
    door.write("train.sh", '#!/bin/sh\n[ "$RANK" != 1 ] || { echo "no data for $1" >&2; exit 9; }\n').chmod(0o700)
    run = submit(door, "{command: ./train.sh, args: [here]}", exit_code=1)
    result = run.result()
    assert result["cause"] == "rank 1 on local0 failed with exit code 9: no data for here"
    error = run.read(run.layout.error(1, 1))
    assert (error["exit_code"], error["class"], error["stderr_tail"]) == (9, "exit_code", "no data for here\n")


def test_a_binary_that_dies_of_a_signal_is_recorded(door: Door) -> None:
    run = submit(door, "{command: sh, args: [-c, 'kill -SEGV $$$$']}", nodes=1, exit_code=1)
    assert "was killed by SIGSEGV" in run.result()["cause"]
    assert {failure["signal_name"] for failure in run.result()["failures"].values()} == {"SIGSEGV"}


def test_a_program_that_is_not_there_is_named(door: Door) -> None:
    run = submit(door, "{command: no-such-program}", nodes=1, more="setup: ['true']", exit_code=1)
    assert "no-such-program" in run.result()["cause"]
    assert "not found" in run.result()["cause"]


def test_a_script_that_is_not_there_is_named(door: Door) -> None:
    run = submit(door, "{script: nowhere.py}", nodes=1, more="setup: ['true']", exit_code=3)
    assert "nowhere.py is not a file" in run.result()["cause"]


def test_a_working_directory_that_is_not_there_is_named(door: Door) -> None:
    door.write("who.py", WHO)
    write_job(door, "{script: who.py}", more=f"workdir: {door.folder / 'nowhere'}")
    done = door.run("submit", "job.yaml", "--wait", exit_code=3)
    assert f"workdir: there is no directory {door.folder / 'nowhere'}" in done.stderr


@pytest.mark.variant(of="test_the_wait_for_the_last_ranks_is_bounded_by_exit_timeout")
def test_ranks_that_end_first_wait_for_the_last(door: Door) -> None:
    door.write(
        "uneven.py",
        """
import os, pathlib, time
rank = int(os.environ["RANK"])
pathlib.Path(f"done-{rank}").touch()
if rank == 3:  # goes on until the agents have said that they wait
    log = pathlib.Path(os.environ["HPC_ELASTIC_RUN_DIR"], "attempts/0001/nodes")
    while not (log / "local0.json").exists():
        time.sleep(0.05)
""",
    )
    run = submit(door, "{script: uneven.py}")
    assert run.result()["state"] == "SUCCEEDED"


def test_a_run_succeeds_without_the_rank_that_outlasts_exit_timeout_if_it_is_to(door: Door) -> None:
    door.write("endless.py", "import os, signal\nif os.environ['RANK'] == '3':\n    signal.pause()\n")
    run = submit(door, "{script: endless.py}", more="elastic: {exit_timeout: 1s, after_exit_timeout: succeed}")
    result = run.result()
    assert (result["state"], result["exit_code"], result["reason"]) == ("SUCCEEDED", 0, "exit_timeout")
    assert result["cause"].endswith("elastic.exit_timeout, but for those that still ran on local1, which is ignored")
    assert run.read(run.layout.node_result(1, "local1"))["state"] == "STOPPED"


def test_a_failure_restarts_ranks_that_had_succeeded(door: Door) -> None:
    door.write(
        "late.py",
        """
import os, pathlib, sys, time
attempt = os.environ["HPC_ELASTIC_ATTEMPT"]
print("attempt", attempt, flush=True)
if os.environ["RANK"] == "3" and attempt == "1":
    while not pathlib.Path(os.environ["HPC_ELASTIC_RUN_DIR"], "attempts/0001/nodes/local0.json").exists():
        time.sleep(0.05)
    sys.exit(5)
""",
    )
    run = submit(door, "{script: late.py}", more="restart: {max_restarts: 1}")
    assert [run.stdout(2, rank) for rank in range(4)] == ["attempt 2\n"] * 4
    assert run.result()["restarts"] == 1


def test_a_helper_that_outlives_its_rank_may_finish_after_success(door: Door) -> None:
    door.write(
        "upload.py",
        """
import subprocess
upload = ["/bin/sh", "-c", "/bin/sleep 1; echo uploaded >uploaded"]
subprocess.Popen(upload, start_new_session=True, env={})
""",
    )
    run = submit(door, "{script: upload.py}", nodes=1, more="workers_per_node: 1")
    assert (door.folder / "uploaded").read_text() == "uploaded\n", run.story()


@pytest.mark.variant(of="test_the_end_does_not_wait_for_ever_for_what_a_success_left_behind")
def test_a_helper_that_never_ends_is_stopped_after_grace(door: Door) -> None:
    door.write("daemon.py", 'import subprocess\nsubprocess.Popen(["sleep", "10000"], start_new_session=True)\n')
    run = submit(door, "{script: daemon.py}", nodes=1, more="signals: {grace: 1s, restart_grace: 1s}")
    assert run.result()["state"] == "SUCCEEDED"


def test_output_of_any_bytes_arrives_unchanged(door: Door) -> None:
    door.write(
        "bytes.py",
        r"""
import os
words = "\u00e9\u4e2d\U0001f600\n".encode() + b"\xff\xfe\r\x1b[31mred\n" + b"no end"
for descriptor in (1, 2):
    os.write(descriptor, bytes(range(256)) + words)
raise SystemExit(1)
""",
    )
    run = submit(door, "{script: bytes.py}", nodes=1, more="workers_per_node: 1", exit_code=1)
    written = Path(run.layout.stdout(1, 0)).read_bytes()
    assert written == Path(run.layout.stderr(1, 0)).read_bytes()
    assert written.startswith(bytes(range(256)))
    assert written.endswith(b"no end")
    logs = subprocess.run([*door.command, "logs", run.job_id], capture_output=True, env=door.environ, check=True)
    assert logs.stdout == logs.stderr == written
    for verb in (["status"], ["status", "--json"], ["list"]):
        door.run(*verb, exit_code=None)


def test_much_output_and_endless_lines_arrive_unchanged_and_are_repeated(door: Door) -> None:
    door.write(
        "much.py",
        """
import sys
print("x" * 3_000_000)
for number in range(100_000):
    print(f"line {number:06d}", "y" * 60)
print("the end")
""",
    )
    run = submit(door, "{script: much.py}", nodes=1, more="logs: {tee: [1]}")
    text = run.stdout(1, 1)
    assert len(text) > 10_000_000
    assert text.endswith("the end\n")
    assert text == run.stdout(1, 0)
    teed = Path(run.layout.agent_output("local0")).read_text()
    assert "[local0:1] the end" in teed
    assert "[local0:0]" not in teed
    numbers = re.findall(r"^\[local0:1\] line (\d+)", teed, re.MULTILINE)
    assert numbers == sorted(set(numbers))


@pytest.mark.variant(of="test_logs_shows_the_rank_the_attempt_and_the_agent")
def test_rank_0_is_repeated_in_the_agents_log(door: Door) -> None:
    door.write("who.py", WHO)
    run = submit(door, "{script: who.py}")
    assert "[local0:0] 0 0 0 4 2\n" in Path(run.layout.agent_output("local0")).read_text()
    assert "[local1:" not in Path(run.layout.agent_output("local1")).read_text()


def test_logs_shows_the_rank_the_attempt_and_the_agent(door: Door) -> None:
    door.write(
        "twice.py",
        """
import os, sys
print("out", os.environ["RANK"], os.environ["HPC_ELASTIC_ATTEMPT"])
print("err", os.environ["RANK"], file=sys.stderr)
sys.exit(os.environ["HPC_ELASTIC_ATTEMPT"] == "1")
""",
    )
    run = submit(door, "{script: twice.py}", more="restart: {max_restarts: 1}")
    last = door.run("logs")
    assert (last.stdout, last.stderr) == ("out 0 2\n", f"hpc-elastic: logs of {run.path}\nerr 0\n")
    assert door.run("logs", "probe", "--rank", "3", "--attempt", "2").stdout == "out 3 2\n"
    assert "attempt 2" in door.run("logs", "--node", "local0").stdout
    assert "every rank exited 0" in door.run("logs", "--script").stdout
    assert "no attempt 7" in door.run("logs", "--attempt", "7", exit_code=2).stderr
    assert "rank 9" in door.run("logs", "--rank", "9", exit_code=2).stderr
    assert "local0" in door.run("logs", "--node", "nowhere", exit_code=2).stderr
    followed = door.run("logs", "--follow")
    assert "out 0 2\n" in followed.stdout


def test_a_run_ends_once_although_its_folder_of_scripts_is_gone(door: Door) -> None:
    gone = door.folder / "gone"
    gone.mkdir()
    door.write("gone/vanish.py", "import os, shutil\nos.chdir('..'); shutil.rmtree('gone')\nraise SystemExit(1)\n")
    run = submit(
        door, f"{{script: {gone / 'vanish.py'}}}", nodes=1, more=f"workdir: {gone}\nworkers_per_node: 1", exit_code=1
    )
    assert not gone.exists()
    assert run.result()["state"] == "FAILED"


@pytest.mark.variant(of="test_the_next_attempt_starts_no_earlier_than_the_pause")
def test_a_pause_is_made_before_each_restart(door: Door) -> None:
    door.write("fails.py", "import time, os\nprint(time.monotonic())\nraise SystemExit(1)\n")
    backoff = "restart: {max_restarts: 2, backoff: {first: 1s, factor: 2, max: 60s}}\nworkers_per_node: 1"
    run = submit(door, "{script: fails.py}", nodes=1, more=backoff, exit_code=1)
    first, second, third = (float(run.stdout(attempt, 0)) for attempt in (1, 2, 3))
    assert second - first >= 1
    assert third - second >= 2
    assert "all 2 restarts of max_restarts are used up" in run.result()["cause"]
    assert run.result()["restarts"] == 2


def test_the_same_failure_without_progress_ends_the_run_with_8(door: Door) -> None:
    door.write("stuck.py", "raise RuntimeError('batch 17 is bad')\n")
    more = "restart: {max_restarts: 10, no_progress_limit: 3}\nprogress: {file: '*.pt'}\nworkers_per_node: 1"
    run = submit(door, "{script: stuck.py}", nodes=1, more=more, exit_code=8)
    result = run.result()
    assert (result["state"], result["attempts"]) == ("FAILED", 3)
    assert "batch 17 is bad" in result["cause"]
    assert "no progress" in result["cause"]


def test_progress_between_failures_lets_the_run_go_on(door: Door) -> None:
    door.write(
        "gets_on.py",
        """
import os, pathlib
attempt = int(os.environ["HPC_ELASTIC_ATTEMPT"])
pathlib.Path(f"step-{attempt}.pt").touch()
if attempt < 5:
    raise RuntimeError("again")
""",
    )
    more = "restart: {max_restarts: 10, no_progress_limit: 2}\nprogress: {file: '*.pt'}\nworkers_per_node: 1"
    run = submit(door, "{script: gets_on.py}", nodes=1, more=more)
    assert run.result()["attempts"] == 5


STEPS = """
import os
from hpc_elastic.worker import heartbeat
first, last = [(0, 5), (3, 7), (5, 7), (1, 6)][int(os.environ["HPC_ELASTIC_ATTEMPT"]) - 1]
for step in range(first, last + 1):
    heartbeat(step)
raise RuntimeError("the loss is not a number")
"""


def test_a_run_that_repeats_its_steps_ends_with_8(door: Door) -> None:
    door.write("steps.py", STEPS)
    more = "restart: {max_restarts: 10, no_progress_limit: 3}\nworkers_per_node: 2"
    run = submit(door, "{script: steps.py}", nodes=2, more=more, exit_code=8)
    result = run.result()
    assert (result["reason"], result["attempts"]) == ("no_progress", 4)  # attempt 2 got from step 5 to 7
    run.assert_records_valid()


def test_a_setup_line_that_fails_ends_the_run_with_3(door: Door) -> None:
    door.write("who.py", WHO)
    door.write(
        "job.yaml",
        "name: probe\nsite: local\ntime: 10m\nsetup: ['true', module load nothing]\nentrypoint: {script: who.py}\n",
    )
    run = door.submit("job.yaml", wait=True, exit_code=3)
    assert "module load nothing" in run.result()["cause"]
    assert run.result()["written_by"] == "login"
    run.assert_records_valid()


def test_variables_of_setup_and_env_arrive(door: Door) -> None:
    door.write("show.py", "import os\nprint(os.environ['FROM_SETUP'], os.environ['FROM_ENV'], os.environ['BOTH'])\n")
    more = """\
setup: [export FROM_SETUP='a $b' BOTH=setup]
env: {FROM_ENV: "${FROM_SETUP}/$$x", BOTH: env}
workers_per_node: 1"""
    run = submit(door, "{script: show.py}", nodes=1, more=more)
    assert run.stdout(1, 0) == "a $b a $b/$x env\n"


def test_an_unset_reference_ends_the_run_with_3(door: Door) -> None:
    door.write("who.py", WHO)
    run = submit(door, "{script: who.py, args: ['${NO_SUCH_NAME}']}", exit_code=3)
    assert "NO_SUCH_NAME" in run.result()["cause"]


def test_no_bash_on_path_is_said(door: Door) -> None:
    door.write("who.py", WHO)
    door.write("job.yaml", "site: local\ntime: 10m\nentrypoint: {script: who.py}\n")
    door.environ["PATH"] = str(door.folder)
    done = door.run("submit", "job.yaml", exit_code=4)
    assert "bash" in done.stderr
    assert not (door.folder / "hpc-elastic-runs").exists()


def test_a_log_is_cut_at_its_size_and_the_error_file_has_what_came_before(door: Door) -> None:
    door.write(
        "much.py",
        """
import sys
for burst in range(3):
    for number in range(3000):
        print(f"line {burst}{number:04d}", file=sys.stderr)
raise ValueError("after the cut")
""",
    )
    run = submit(door, "{script: much.py}", nodes=1, more="logs: {max_size: 64K}\nworkers_per_node: 1", exit_code=1)
    assert Path(f"{run.layout.stderr(1, 0)}.1").stat().st_size <= 64 * 1024
    log = Path(run.layout.stderr(1, 0))
    kept = (Path(f"{log}.1").read_text() + log.read_text()).split("Traceback")[0].splitlines()
    written = [f"line {burst}{number:04d}" for burst in range(3) for number in range(3000)]
    assert kept == written[-len(kept) :], "nothing is lost at a cut"
    assert len(kept) > 2000
    error = json.loads(Path(run.layout.error(1, 0)).read_text())
    assert error["message"]["message"] == "ValueError: after the cut"
    assert "line 22999\n" in error["stderr_tail"]
    teed = Path(run.layout.agent_output("local0")).read_text()
    assert re.findall(r"^\[local0:0\] line (\d+)$", teed, re.MULTILINE) == [
        f"{burst}{number:04d}" for burst in range(3) for number in range(3000)
    ]


def test_what_is_not_redirected_is_in_the_agents_log_and_in_no_error_file(door: Door) -> None:
    door.write(
        "loud.py",
        """
import os, sys, time
# Each line at once: without a buffer print writes it in parts, and the agent's own lines may come between.
os.write(1, f"to out {os.environ['RANK']}\\n".encode())
os.write(2, f"to err {os.environ['RANK']}\\n".encode())
other = os.environ["HPC_ELASTIC_RUN_DIR"] + "/attempts/0001/ranks/00001/stderr.log"
while not (os.path.exists(other) and os.path.getsize(other)):
    time.sleep(0.05)
sys.exit(3 if os.environ["RANK"] == "0" else 0)
""",
    )
    run = submit(door, "{script: loud.py}", nodes=1, more="logs: {redirects: '1:both', tee: none}", exit_code=1)
    agent = Path(run.layout.agent_output("local0")).read_text().splitlines()
    assert {"to out 0", "to err 0"} <= set(agent)
    assert not {"to out 1", "to err 1"} & set(agent)
    assert os.listdir(run.layout.rank(1, 0)) == ["error.json"]
    assert json.loads(Path(run.layout.error(1, 0)).read_text())["stderr_tail"] == ""
    assert run.stdout(1, 1) == "to out 1\n"
