"""Runs on this machine that lose agents, their head among them, and go on; the workers are the soak test's."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc_elastic.errors import ExitCode
from tests.integration.conftest import Door, Run
from tests.integration.test_local_stops import assert_over, is_alive, script_pid
from tests.slurm_sandbox.cluster import wait_until
from tests.soak import trainer
from tests.soak.campaign import kill_everything
from tests.soak.patient import Patient
from tests.soak.rules import broken_rules, parse_marks
from tests.tiers import variants
from tests.without_torch import hide_torch

pytestmark = pytest.mark.local

LEASE_S = 4.0  # a node of these has a processor within it also where four of them share two with other tests
JOB = f"""
name: survives
site: local
workers_per_node: 1
time: 10m
entrypoint: {{{{script: {trainer.__file__}, args: [{{folder}}]}}}}
elastic: {{{{lease: {LEASE_S}s, join_timeout: 30s}}}}
restart: {{{{max_restarts: 0}}}}
signals: {{{{grace: 5s, restart_grace: 1s}}}}
nodes: {{nodes}}
"""

Start = Callable[..., "Case"]


class Case:
    """A run that is at work."""

    def __init__(self, door: Door, run: Run) -> None:
        self.door = door
        self.run = run
        self.patient = Patient(run)
        self.wait_for_attempt(1)
        self.agents = self.patient.agents()

    def wait_for_attempt(self, attempt: int, *, within_s: float = 30) -> list[str]:
        """The nodes of an attempt by rank, once every rank of it is at work."""
        begun: dict[int, str] = {}

        def is_at_work() -> bool:
            path = self.door.folder / "marks"
            marks = parse_marks(path.read_text().splitlines()) if path.exists() else []
            made = [mark for mark in marks if mark.attempt == attempt]
            begun.update({mark.rank: mark.node for mark in made})
            return bool(made) and len(begun) == made[0].world_size

        wait_until(is_at_work, f"attempt {attempt} works", within_s=within_s, otherwise=self.run.story)
        return [node for _, node in sorted(begun.items())]

    def signal(self, node: str, number: signal.Signals) -> None:
        """Signals the node's agent."""
        os.kill(self.agents[node], number)

    def finish(self) -> None:
        """Lets the workers come to their end."""
        (self.door.folder / "finish").touch()

    def assert_succeeds(self, *, attempts: int, node_losses: int, killed: tuple[str, ...] = ()) -> None:
        """It comes to its end with all that must hold of it, and no worker's failure was spent."""
        self.finish()
        result = self.run.wait_until_over()
        assert (result["state"], result["exit_code"], result["attempts"]) == ("SUCCEEDED", 0, attempts), self.story()
        self.run.assert_nothing_left()
        claims = self.patient.claims()
        assert claims[-1]["spend"] == {"restarts": 0, "node_losses": node_losses}, self.story()
        marks = parse_marks((self.door.folder / "marks").read_text().splitlines())
        assert list(broken_rules(marks, claims)) == [], self.story()
        assert Path(self.run.layout.exit_code).read_text() == "0\n"
        self.run.assert_records_valid(killed=killed)

    def story(self) -> str:
        return self.run.story()

    def events(self, name: str) -> list[str]:
        """The messages of all events of a name, over all nodes."""
        lines = [line for path in self.run.path.glob("nodes/*/events.jsonl") for line in path.read_text().splitlines()]
        return [event["message"] for event in map(json.loads, lines) if event["name"] == name]


@pytest.fixture
def start(door: Door) -> Iterator[Start]:
    """Starts a run; whatever is left of it in the end is killed."""
    runs: list[Run] = []

    def start_run(nodes: str, *, more: str = "") -> Case:
        door.write("job.yaml", JOB.format(folder=door.folder, nodes=nodes) + more)
        runs.append(door.submit("job.yaml"))
        return Case(door, runs[-1])

    yield start_run
    for run in runs:
        kill_everything(run)


@pytest.mark.variant(of="test_the_batch_host_loses_power_while_it_trains")
def test_the_others_go_on_if_an_agent_is_killed(start: Start) -> None:
    case = start("{min: 2, max: 4}")
    case.signal("local2", signal.SIGKILL)
    assert case.wait_for_attempt(2) == ["local0", "local1", "local3"]
    assert case.run.read(case.run.layout.claim(2))["head"] == "local0"
    case.assert_succeeds(attempts=2, node_losses=1, killed=("local2",))
    assert any("local2" in message for message in case.events("node.lost"))


def test_the_others_go_on_if_the_head_is_killed(start: Start) -> None:
    case = start("{min: 2, max: 4}")
    case.signal("local0", signal.SIGKILL)
    assert case.wait_for_attempt(2) == ["local1", "local2", "local3"]
    assert case.run.read(case.run.layout.claim(2))["head"] == "local1"
    case.assert_succeeds(attempts=2, node_losses=1, killed=("local0",))
    assert case.run.result()["written_by"] == "local1"


@pytest.mark.variant(of="test_the_others_go_on_if_the_head_is_killed")
def test_one_head_after_the_other_may_be_killed_down_to_min(start: Start) -> None:
    case = start("{min: 1, max: 4}")
    for number in range(3):
        case.signal(f"local{number}", signal.SIGKILL)
        nodes = case.wait_for_attempt(number + 2)
        assert nodes == [f"local{left}" for left in range(number + 1, 4)]
    case.assert_succeeds(attempts=4, node_losses=3, killed=("local0", "local1", "local2"))


@pytest.mark.variant(of="test_a_job_whose_agents_and_workers_were_all_killed_is_over_and_does_not_start_again")
def test_agents_that_are_all_killed_leave_a_result_from_their_script(start: Start) -> None:
    case = start("2")
    for node in ("local0", "local1"):
        case.signal(node, signal.SIGKILL)
    result = case.run.wait_until_over()
    assert (result["state"], result["exit_code"], result["written_by"]) == ("UNKNOWN", 7, "script"), case.story()
    assert result["cause"].endswith("(SIGKILL)")
    case.run.assert_nothing_left()
    assert "UNKNOWN" in case.door.run("status", case.run.layout.root).stdout


@pytest.mark.variant(of="test_a_killed_agent_ends_the_run_at_once_and_leaves_no_worker")
def test_below_min_the_run_ends_at_once_with_7_and_names_the_nodes(start: Start) -> None:
    case = start("{min: 3, max: 4}")
    case.signal("local1", signal.SIGKILL)
    case.wait_for_attempt(2)
    case.signal("local3", signal.SIGKILL)
    result = case.run.wait_until_over(within_s=15)
    assert (result["state"], result["exit_code"], result["reason"]) == ("FAILED", 7, "node_lost"), case.story()
    assert "local3" in result["cause"]
    case.run.assert_nothing_left()
    case.run.assert_records_valid(killed=("local1", "local3"))


@pytest.mark.variant(of="test_the_others_go_on_if_the_head_is_killed")
def test_a_run_whose_head_was_killed_is_seen_and_cancelled_as_any_other(start: Start) -> None:
    case = start("{min: 2, max: 3}")
    case.signal("local0", signal.SIGKILL)
    case.wait_for_attempt(2)
    seen = json.loads(case.door.run("status", case.run.job_id, "--json").stdout)
    assert (seen["state"], seen["attempts"], seen["nodes"]) == ("RUNNING", 2, ["local1", "local2"])
    done = case.door.run("cancel", case.run.job_id)
    assert "CANCELLED" in done.stdout
    result = case.run.wait_until_over()
    assert (result["state"], result["exit_code"]) == ("CANCELLED", 10), case.story()
    case.run.assert_nothing_left()
    wait_until(lambda: not is_alive(script_pid(case.run)), "the script is over")


@pytest.mark.variant(of="test_the_batch_host_loses_power_while_it_trains")
def test_submit_wait_returns_the_runs_exit_code_although_its_head_was_killed(door: Door) -> None:
    door.write("job.yaml", JOB.format(folder=door.folder, nodes="{min: 2, max: 3}"))
    submit = subprocess.Popen([*door.command, "submit", "job.yaml", "--wait"], cwd=door.folder, env=door.environ)
    try:
        wait_until(lambda: list(door.folder.glob("hpc-elastic-runs/*/submission.json")), "there is a run")
        (submission,) = door.folder.glob("hpc-elastic-runs/*/submission.json")
        case = Case(door, Run.at(submission.parent))
        case.signal("local0", signal.SIGKILL)
        case.wait_for_attempt(2)
        case.assert_succeeds(attempts=2, node_losses=1, killed=("local0",))
        assert submit.wait(timeout=30) == 0
    finally:
        submit.kill()
        submit.wait()


@pytest.mark.variant(of="test_the_others_go_on_if_the_head_is_killed")
def test_the_script_exits_with_the_runs_code_although_its_first_agent_was_killed(start: Start) -> None:
    case = start("{min: 2, max: 3}")
    for pid in [script_pid(case.run), *case.run.agents()]:
        with contextlib.suppress(ProcessLookupError):  # a guard ends by itself when its agent has
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not case.run.agents() and not case.run.processes(), "nothing is left of the first start")
    again = subprocess.Popen(["bash", case.run.layout.script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        case.wait_for_attempt(2)
        agents = {seen.node: seen.pid for seen in case.patient.processes() if seen.what == "agent"}
        os.kill(agents["local0"], signal.SIGKILL)
        case.wait_for_attempt(3)
        case.finish()
        case.run.wait_until_over()
        assert again.wait(timeout=30) == 0, case.story()
    finally:
        again.kill()
        again.communicate()
    case.run.assert_nothing_left()


@pytest.mark.variant(of="test_the_others_go_on_if_the_head_is_killed")
def test_term_to_the_script_stops_a_run_whose_head_was_killed(start: Start) -> None:
    case = start("{min: 2, max: 3}")
    case.signal("local0", signal.SIGKILL)
    case.wait_for_attempt(2)
    os.kill(script_pid(case.run), signal.SIGTERM)
    result = case.run.wait_until_over()
    assert (result["state"], result["exit_code"]) == ("CANCELLED", 10), case.story()
    case.run.assert_nothing_left()


@pytest.mark.variant(of="test_a_spare_of_another_role_takes_the_place_of_a_lost_node_and_runs_its_program")
def test_a_spare_takes_the_place_of_an_agent_that_was_killed(start: Start) -> None:
    case = start("3", more="spares: 1\n")
    assert case.wait_for_attempt(1) == ["local0", "local1", "local2"]
    assert len(case.agents) == 4
    case.signal("local1", signal.SIGKILL)
    assert case.wait_for_attempt(2) == ["local0", "local3", "local2"]
    case.assert_succeeds(attempts=2, node_losses=1, killed=("local1",))


@pytest.mark.variant(of="test_a_spare_of_another_role_takes_the_place_of_a_lost_node_and_runs_its_program")
def test_a_spare_that_is_not_needed_costs_nothing_and_leaves_in_the_end(start: Start) -> None:
    case = start("2", more="spares: 2\n")
    case.assert_succeeds(attempts=1, node_losses=0)
    wait_until(lambda: not is_alive(script_pid(case.run)), "the script is over")
    said = [path.read_text() for path in case.run.path.glob("agents/*.out")]
    assert not any("error" in text for text in said), said


@pytest.mark.variant(of="test_a_spare_of_another_role_takes_the_place_of_a_lost_node_and_runs_its_program")
def test_a_spare_that_is_killed_changes_nothing(start: Start) -> None:
    case = start("2", more="spares: 1\n")
    case.signal("local2", signal.SIGKILL)
    wait_until(lambda: not is_alive(case.agents["local2"]), "the spare is dead")
    case.assert_succeeds(attempts=1, node_losses=0, killed=("local2",))


@pytest.mark.variant(of="test_a_spare_of_another_role_takes_the_place_of_a_lost_node_and_runs_its_program")
def test_a_spare_becomes_a_node_of_the_run_after_the_head_was_killed(start: Start) -> None:
    case = start("2", more="spares: 1\n")
    case.signal("local0", signal.SIGKILL)
    assert set(case.wait_for_attempt(2)) == {"local1", "local2"}
    case.assert_succeeds(attempts=2, node_losses=1, killed=("local0",))


@pytest.mark.variant(of="test_a_frozen_agent_has_its_workers_killed_by_its_guard_and_leaves_when_it_wakes")
@pytest.mark.parametrize("node", ["local0", "local1"])
def test_an_agent_that_was_frozen_beyond_its_lease_finds_its_workers_gone_and_takes_part_again(
    start: Start, node: str
) -> None:
    case = start("{min: 1, max: 3}")
    case.signal(node, signal.SIGSTOP)
    others = [other for other in ("local0", "local1", "local2") if other != node]
    assert case.wait_for_attempt(2) == others
    case.signal(node, signal.SIGCONT)
    parked = Path(case.run.layout.agent_output(others[0]))
    wait_until(lambda: re.search(rf"\b{node}\b.*wait", parked.read_text()), "it is back", otherwise=case.story)
    case.signal(others[1], signal.SIGKILL)
    assert case.wait_for_attempt(3) == [others[0], node]  # in the hole of the one that was lost last
    case.assert_succeeds(attempts=3, node_losses=2, killed=(others[1],))


@pytest.mark.variant(of="test_a_frozen_agent_has_its_workers_killed_by_its_guard_and_leaves_when_it_wakes")
def test_an_agent_that_is_frozen_to_the_end_of_the_run_leaves_when_it_wakes(start: Start) -> None:
    case = start("{min: 1, max: 2}")
    case.signal("local1", signal.SIGSTOP)
    case.wait_for_attempt(2)
    case.finish()
    result = case.run.wait_until_over()
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", 2), case.story()
    assert "SUCCEEDED" in case.door.run("status", case.run.job_id).stdout
    wait_until(lambda: {seen.node for seen in case.patient.processes()} == {"local1"}, "only the frozen one is left")
    case.signal("local1", signal.SIGCONT)
    case.run.assert_nothing_left()
    wait_until(lambda: not is_alive(script_pid(case.run)), "the script is over")


@pytest.mark.variant(of="test_the_others_go_on_if_the_head_is_killed")
def test_the_head_is_killed_while_a_restart_is_under_way(start: Start) -> None:
    case = start("{min: 2, max: 4}")
    case.signal("local3", signal.SIGKILL)
    case.signal("local0", signal.SIGKILL)
    wait_until(lambda: len(case.patient.claims()) >= 2, "there is a second attempt", otherwise=case.story)
    attempts: list[int] = []

    def works() -> bool:
        claim = case.patient.claims()[-1]
        attempts[:] = [claim["attempt"]]
        return sorted(claim["members"]) == ["local1", "local2"]

    wait_until(works, "the two that are left are a world", otherwise=case.story)
    assert case.wait_for_attempt(attempts[0]) == ["local1", "local2"]
    case.assert_succeeds(attempts=attempts[0], node_losses=2, killed=("local0", "local3"))


def guards_of(case: Case, node: str) -> list[int]:
    return [seen.pid for seen in case.patient.processes() if (seen.what, seen.node) == ("guard", node)]


def test_a_killed_guard_is_started_again_and_no_attempt_is_lost(start: Start) -> None:
    case = start("2")
    (guard,) = guards_of(case, "local1")
    os.kill(guard, signal.SIGKILL)
    wait_until(lambda: guards_of(case, "local1") not in ([], [guard]), "there is another guard", otherwise=case.story)
    case.assert_succeeds(attempts=1, node_losses=0)
    assert "the guard of the workers ended (killed by signal 9); starting another one" in case.story()


@pytest.mark.variant(of="test_a_deadline_that_passes_while_there_is_no_guard_is_kept_by_the_next_one")
def test_the_guard_that_took_the_place_of_a_killed_one_kills_for_a_frozen_agent(start: Start) -> None:
    case = start("{min: 1, max: 2}")
    (guard,) = guards_of(case, "local1")
    os.kill(guard, signal.SIGKILL)
    wait_until(lambda: guards_of(case, "local1") not in ([], [guard]), "there is another guard", otherwise=case.story)
    case.signal("local1", signal.SIGSTOP)
    assert case.wait_for_attempt(2) == ["local0"]
    case.finish()
    result = case.run.wait_until_over()
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", 2), case.story()
    wait_until(lambda: {seen.what for seen in case.patient.processes()} <= {"agent", "guard"}, "no worker is left")
    case.signal("local1", signal.SIGCONT)
    case.run.assert_nothing_left()


@pytest.mark.variant(of="test_a_killed_guard_is_started_again_and_no_attempt_is_lost")
def test_a_worker_that_is_killed_long_after_its_nodes_guard_has_failed(start: Start) -> None:
    case = start("2")
    (guard,) = guards_of(case, "local1")
    os.kill(guard, signal.SIGKILL)
    silent_until = time.monotonic() + 2 * LEASE_S
    wait_until(lambda: time.monotonic() > silent_until, "what the guard knew last is long over")
    (worker,) = [seen.pid for seen in case.patient.processes() if (seen.what, seen.node) == ("worker", "local1")]
    os.kill(worker, signal.SIGKILL)
    result = case.run.wait_until_over(within_s=30)
    assert (result["exit_code"], result["reason"]) == (1, "restarts_used_up"), case.story()
    case.run.assert_nothing_left()


@pytest.mark.variant(of="test_killing_the_script_alone_leaves_the_agents_in_charge")
def test_killing_the_script_and_then_the_head_leaves_the_others_in_charge(start: Start) -> None:
    case = start("{min: 2, max: 3}")
    os.kill(script_pid(case.run), signal.SIGKILL)
    wait_until(lambda: not is_alive(script_pid(case.run)), "the script is over")
    case.signal("local0", signal.SIGKILL)
    case.wait_for_attempt(2)
    assert "RUNNING" in case.door.run("status", case.run.job_id, exit_code=None).stdout
    case.assert_succeeds(attempts=2, node_losses=1, killed=("local0",))


@pytest.mark.variant(of="test_the_others_go_on_if_the_head_is_killed")
def test_a_run_that_lost_its_head_and_was_cancelled_left_no_process(start: Start) -> None:
    """The scheduler's own way to the end: everything that carries the job, whoever is head."""
    case = start("{min: 2, max: 3}")
    case.signal("local0", signal.SIGKILL)
    case.wait_for_attempt(2)
    os.kill(script_pid(case.run), signal.SIGKILL)
    case.door.run("cancel", case.run.job_id)
    assert_over(case.run, "CANCELLED", 10)


def test_a_second_start_of_a_run_on_its_nodes_leaves_the_workers_of_the_first_alone(door: Door) -> None:
    """Slurm may accept a chained submission twice, and give both jobs a node that others share."""
    script = "import pathlib, time\nprint('started', flush=True)\n"
    door.write("train.py", f"{script}while not pathlib.Path('go').exists():\n    time.sleep(0.05)\n")
    door.write("job.yaml", "name: twice\nsite: local\nnodes: 2\nworkers_per_node: 2\nentrypoint: {script: train.py}\n")
    run = door.submit("job.yaml")
    for rank in range(4):
        run.wait_for_output("started", rank=rank)
    environ = hide_torch(door.environ, door.folder.parent / "without-torch")
    start_again = ["bash", run.layout.script]
    second = subprocess.run(start_again, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == ExitCode.RUN_DIRECTORY, second
    door.write("go", "")
    wait_until(Path(run.layout.result).exists, "the run is over")
    result = run.result()
    assert (result["state"], result["attempts"], result["restarts"]) == ("SUCCEEDED", 1, 0)


@pytest.mark.parametrize(
    "first",
    ["local3", *variants("local0", "", of="test_nodes_that_all_stood_still_together_are_neither_lost_nor_named")],
)
def test_nodes_that_all_stood_still_together_are_neither_lost_nor_named(start: Start, first: str) -> None:
    """As `scontrol suspend` does; the one that goes on first is the head, another one, or none."""
    case = start("{min: 2, max: 4}")
    pids = {seen.pid: seen.node for seen in case.patient.processes()}
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(1.5 * LEASE_S)  # what is waited for is that their leases run out, by their own clocks
    for pid in sorted(pids, key=lambda pid: pids[pid] != first):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        if pids[pid] == first:
            time.sleep(0.05)
    assert case.wait_for_attempt(2) == ["local0", "local1", "local2", "local3"], case.story()
    case.assert_succeeds(attempts=2, node_losses=0)
    assert re.fullmatch(r"local0 stood still for \d+ s, and heard nothing", case.patient.claims()[1]["reason"])
