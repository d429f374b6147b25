"""How runs on this machine are stopped, killed and started twice; scripts without torch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.integration.conftest import Door, Run
from tests.slurm_sandbox.cluster import wait_until
from tests.tiers import variants
from tests.without_torch import hide_torch

pytestmark = pytest.mark.local

# Waits until it is stopped; says how.
WAITS = """
import os, signal, sys

def stopped(number, frame):
    print("stopped by", signal.Signals(number).name, flush=True)
    sys.exit(1)

signal.signal(signal.SIGTERM, stopped)
print("waiting", os.environ["RANK"], flush=True)
while True:
    signal.pause()
"""
# Stopped, it needs until there is a file called go.
SAVES = """
import os, signal, sys, time

told = []
signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
print("waiting", os.environ["RANK"], flush=True)
while not told:  # not by a pause, before which the signal may come
    time.sleep(0.02)
print("saving", flush=True)
while not os.path.exists("go"):
    pass
print("saved", flush=True)
sys.exit(1)
"""
# Ignores TERM, and starts a program in a session of its own.
STUBBORN = """
import os, signal, subprocess

signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("waiting", os.environ["RANK"], flush=True)
while True:
    signal.pause()
"""
# The same with an environment of its own too. An agent finds it below itself; when the agent is killed, nobody can.
HIDES = """
import os, signal, subprocess

signal.signal(signal.SIGTERM, signal.SIG_IGN)
hidden = subprocess.Popen(
    ["sh", "-c", 'trap "" TERM; echo $$ >"$1"; while :; do sleep 1000; done', "sh", f"hidden-{os.environ['RANK']}"],
    env={}, start_new_session=True,
)
while not os.path.exists(f"hidden-{os.environ['RANK']}") or not open(f"hidden-{os.environ['RANK']}").read().strip():
    pass
print("waiting", os.environ["RANK"], flush=True)
while True:
    signal.pause()
"""
# Raises in its first attempt; what it does after its traceback would last for ever in rank 0.
LINGERS = """
import atexit, os, threading

def linger():
    print("lingering", flush=True)
    threading.Event().wait()

def note():
    print("atexit", flush=True)

atexit.register(note)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "0":
        threading.Thread(target=linger).start()
        raise ValueError("on purpose")
    threading.Event().wait()
"""


def write_job(door: Door, script: str = WAITS, *, more: str = "signals: {grace: 5s, restart_grace: 1s}") -> None:
    door.write("wait.py", script)
    job = "name: waits\nsite: local\nnodes: 2\nworkers_per_node: 2\nentrypoint: {script: wait.py}\n"
    door.write("job.yaml", f"{job}{more}\n")


def start(door: Door, script: str = WAITS, **options: str) -> Run:
    write_job(door, script, **options)
    run = door.submit("job.yaml")
    wait_for_workers(run)
    return run


def wait_for_workers(run: Run) -> None:
    for rank in range(4):
        run.wait_for_output("waiting", rank=rank)
    run.wait_until_started()


def script_pid(run: Run) -> int:
    return int(run.job_id.split("-")[1])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def assert_over(run: Run, state: str, exit_code: int, *, killed: Collection[str] = ()) -> dict[str, object]:
    result: dict[str, object] = run.wait_until_over()
    assert (result["state"], result["exit_code"]) == (state, exit_code), f"{result}\n{run.story()}"
    run.assert_nothing_left()
    run.assert_records_valid(killed=killed)
    return result


@pytest.mark.variant(of="test_cancel_of_a_running_run_gives_the_workers_their_grace")
def test_cancel_stops_the_workers_with_term(door: Door) -> None:
    run = start(door)
    done = door.run("cancel", "waits")
    assert "CANCELLED" in done.stdout
    result = assert_over(run, "CANCELLED", 10)
    assert str(result["cause"]).startswith("cancelled by ")
    assert all("stopped by SIGTERM" in run.stdout(1, rank) for rank in range(4))
    done = door.run("status", run.job_id, exit_code=None)
    assert "CANCELLED" in done.stdout
    done = door.run("cancel", "waits")
    assert "is over already: CANCELLED" in done.stdout


def test_term_to_the_script_cuts_the_grace_of_a_cancel_short(door: Door) -> None:
    """The second Ctrl-C of `hpc-elastic run`."""
    run = start(door, WAITS.replace("sys.exit(1)", "pass"), more="signals: {grace: 2m}")
    cancel = subprocess.Popen([*door.command, "cancel", run.job_id], cwd=door.folder, env=door.environ)
    try:
        for rank in range(4):
            run.wait_for_output("stopped by SIGTERM", rank=rank)
        os.kill(script_pid(run), signal.SIGTERM)
        run.wait_until_over(within_s=90)  # less than the grace
        assert_over(run, "CANCELLED", 10)
        assert cancel.wait(timeout=60) == 0
    finally:
        cancel.kill()
        cancel.wait()


def test_a_run_on_another_machine_is_not_taken_for_dead(door: Door) -> None:
    """A shared home: the processes of a run on one login node cannot be seen from the next."""
    run = start(door)
    submission = run.read(run.layout.submission)
    Path(run.layout.submission).write_text(json.dumps({**submission, "host": "login2"}))
    seen = json.loads(door.run("status", run.job_id, "--json").stdout)
    assert (seen["state"], seen["job_state"]) == ("RUNNING", None)
    assert "login2" in seen["note"]
    assert "RUNNING" in door.run("list").stdout
    door.run("cancel", run.job_id)
    assert_over(run, "CANCELLED", 10)


@pytest.mark.variant(of="test_term_to_the_script_cuts_the_grace_of_a_cancel_short")
def test_term_to_the_script_stops_the_run(door: Door) -> None:
    run = start(door)
    os.kill(script_pid(run), signal.SIGTERM)
    assert_over(run, "CANCELLED", 10)
    assert all("stopped by SIGTERM" in run.stdout(1, rank) for rank in range(4))


@pytest.mark.parametrize(
    "number", [signal.SIGHUP, *variants(signal.SIGQUIT, of="test_a_signal_to_an_agent_stops_the_run_with_grace")]
)
def test_a_signal_to_an_agent_stops_the_run_with_grace(door: Door, number: signal.Signals) -> None:
    run = start(door)
    os.kill(run.agent_pid("local1"), number)
    result = assert_over(run, "CANCELLED", 10)
    assert str(result["cause"]).startswith(f"local1 got {number.name} from outside")
    assert all("stopped by SIGTERM" in run.stdout(1, rank) for rank in range(4))


def test_a_term_that_reaches_an_agent_after_the_stop_it_caused_cuts_no_grace_short(door: Door) -> None:
    """The script signals one agent after the other; the first one's message to the second may be faster."""
    run = start(door, SAVES)
    os.kill(run.agent_pid("local0"), signal.SIGTERM)
    for rank in range(4):
        run.wait_for_output("saving", rank=rank)
    os.kill(run.agent_pid("local1"), signal.SIGTERM)
    log = Path(run.layout.agent_output("local1"))
    wait_until(lambda: "got SIGTERM" in log.read_text(), "the second agent has its TERM", otherwise=run.story)
    door.write("go", "")
    assert_over(run, "CANCELLED", 10)
    assert all("saved" in run.stdout(1, rank) for rank in range(4))


@pytest.mark.variant(of="test_cancel_kills_what_ignores_term")
def test_a_worker_that_ignores_term_is_killed_with_all_it_started(door: Door) -> None:
    run = start(door, HIDES, more="signals: {grace: 1s, restart_grace: 1s}")
    hidden = [int((door.folder / f"hidden-{rank}").read_text()) for rank in range(4)]
    door.run("cancel")
    assert_over(run, "CANCELLED", 10)
    assert not [pid for pid in hidden if is_alive(pid)]


def test_a_script_by_hand_runs_in_the_foreground_with_its_exit_code(door: Door) -> None:
    write_job(door, "raise SystemExit(3)", more="restart: {max_restarts: 0}")
    run = door.submit("job.yaml", wait=True, exit_code=1)
    again = subprocess.run(["bash", run.layout.script], capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 5
    assert "this run is over" in again.stderr


@pytest.mark.variant(of="test_a_second_job_of_a_run_that_is_alive_is_refused")
def test_a_second_start_is_refused_while_the_first_is_alive(door: Door) -> None:
    run = start(door)
    second = subprocess.run(["bash", run.layout.script], capture_output=True, text=True, timeout=120, check=False)
    assert second.returncode == 5, second.stderr
    said = "".join(path.read_text() for path in run.path.glob("agents/*.out"))
    assert "is still alive" in said
    assert not run.is_over()
    assert len(list(Path(run.layout.allocations).iterdir())) == 1
    door.run("cancel")
    assert_over(run, "CANCELLED", 10)


@pytest.mark.variant(of="test_a_killed_agent_ends_the_run_at_once_and_leaves_no_worker")
@pytest.mark.parametrize("node", ["local0", "local1"])
def test_a_killed_agent_ends_the_run_with_7_and_leaves_nothing(door: Door, node: str) -> None:
    run = start(door, STUBBORN)
    os.kill(run.agent_pid(node), signal.SIGKILL)
    run.assert_nothing_left(within_s=30)
    waited = door.run("status", run.job_id, "--json", exit_code=None)
    result = assert_over(run, "FAILED", 7)
    assert node in str(result["cause"]), waited.stdout
    wait_until(lambda: not is_alive(script_pid(run)), "the script is over")


def test_killing_the_script_alone_leaves_the_agents_in_charge(door: Door) -> None:
    run = start(door)
    os.kill(script_pid(run), signal.SIGKILL)
    wait_until(lambda: not is_alive(script_pid(run)), "the script is over")
    assert "RUNNING" in door.run("status", run.job_id, exit_code=None).stdout
    assert len(run.agents()) >= 2
    door.run("cancel", run.job_id)
    assert_over(run, "CANCELLED", 10)


def test_a_script_by_hand_claims_the_next_allocation_if_the_first_died_unwritten(door: Door) -> None:
    run = start(door)
    for pid in [script_pid(run), *run.agents()]:
        with contextlib.suppress(ProcessLookupError):  # a guard ends by itself when its agent has
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not run.agents(), "every agent and guard is dead")
    for pid in run.processes():
        with contextlib.suppress(ProcessLookupError):  # it was dying with its agent
            os.kill(pid, signal.SIGKILL)
    second = subprocess.Popen(
        ["bash", run.layout.script],
        env=hide_torch(door.environ, door.folder.parent / "without-torch"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        for rank in range(4):
            run.wait_for_output("waiting", attempt=2, rank=rank)
        assert run.read(run.layout.allocation(2))["job_id"].startswith(f"local-{second.pid}-")
        assert run.read(run.layout.claim(2))["allocation"] == 2
        assert "RUNNING" in door.run("status", run.job_id).stdout
        door.run("cancel", run.job_id)
        assert second.wait(timeout=60) == 10
    finally:
        second.kill()
        second.communicate()
    assert_over(run, "CANCELLED", 10, killed=("local0", "local1"))


def test_an_exception_restarts_all_ranks_although_a_thread_of_its_process_never_ends(door: Door) -> None:
    write_job(door, LINGERS, more="signals: {grace: 5s, restart_grace: 1s}")
    run = door.submit("job.yaml")
    result = assert_over(run, "SUCCEEDED", 0)
    assert (result["attempts"], result["restarts"]) == (2, 1)
    assert run.stdout(1, 0) == "lingering\n"
    assert run.stdout(2, 0) == "atexit\n"
    failures = run.read(run.layout.node_result(1, "local0"))["failures"]
    assert {rank: (failure["exitcode"], failure["class"]) for rank, failure in failures.items()} == {
        "0": (1, "exception")
    }


@pytest.mark.variant(of="test_the_local_script_ends_its_agents_at_the_time_limit")
def test_the_time_limit_ends_a_run_before_it_is_over(door: Door) -> None:
    door.write("train.py", WAITS)
    door.write(
        "job.yaml",
        "name: probe\nsite: local\nnodes: 2\nworkers_per_node: 1\ntime: 20s\nentrypoint: {script: train.py}\n",
    )
    run = door.submit("job.yaml", wait=True, exit_code=7)
    result = run.result()
    assert (result["state"], result["reason"], result["exit_code"]) == ("FAILED", "time_limit", 7), run.story()
    assert result["cause"].startswith("the job's time limit was reached")
    assert "stopped by SIGTERM" in run.stdout(1, 0)
    assert "the time limit of 20 s is over" not in (run.path / f"{run.job_id}.out").read_text()
    run.assert_nothing_left()
    run.assert_records_valid()
