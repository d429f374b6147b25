"""What agents without a head write, and what the head makes of it."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.agent.net.reach import Finding
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.rendezvous.findings import Findings
from hpc_elastic.errors import RendezvousCause
from hpc_elastic.membership.gathering import Diagnosis
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.scheduler.allocation import Allocation
from tests.agent.answers import Answers
from tests.plans import make_run_plan

HEAD = Endpoint(address="10.0.0.1", port=25000)
FINDING = Finding(
    cause=RendezvousCause.CANNOT_ROUTE,
    detail="cannot route to node0 (10.0.0.1): No route to host",
    head="node0",
    address="10.0.0.1",
    port=25000,
)


def a_place(node_id: int, *, restart_count: int = 0) -> Allocation:
    return Allocation(
        job_id="42",
        restart_count=restart_count,
        array_task=None,
        node_id=node_id,
        nodes=("node0", "node1"),
        is_local=False,
    )


def write(root: Path, finding: Finding = FINDING, *, gave_up: bool = False, restart_count: int = 0) -> None:
    findings = Findings(make_run_plan(root), a_place(1, restart_count=restart_count))
    findings.write(finding, tries=1, gave_up=gave_up, versions={"python": "3.11.2"})


def read(root: Path) -> Diagnosis:
    (diagnosis,) = Findings(make_run_plan(root), a_place(0)).read(["node1"], HEAD)
    return diagnosis


def test_the_head_reads_what_a_node_found(tmp_path: Path) -> None:
    write(tmp_path)
    diagnosis = read(tmp_path)
    assert str(diagnosis.missing) == "node1 cannot route to node0 (10.0.0.1): No route to host"
    assert diagnosis.missing.cause is RendezvousCause.CANNOT_ROUTE
    assert not diagnosis.gave_up


def test_the_head_reads_that_a_node_gave_up(tmp_path: Path) -> None:
    write(tmp_path, gave_up=True)
    assert read(tmp_path).gave_up


def test_a_finding_is_gone_once_the_node_has_joined(tmp_path: Path) -> None:
    findings = Findings(make_run_plan(tmp_path), a_place(1))
    findings.remove()
    write(tmp_path)
    findings.remove()
    assert read(tmp_path).missing.cause is RendezvousCause.NEVER_STARTED


def test_a_finding_of_an_earlier_start_of_the_job_says_nothing(tmp_path: Path) -> None:
    write(tmp_path, restart_count=1)
    assert read(tmp_path).missing.cause is RendezvousCause.NEVER_STARTED


def test_a_torn_record_says_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    path = Path(RunLayout(tmp_path).rendezvous("node1"))
    path.write_text(path.read_text()[:50])
    assert read(tmp_path).missing.cause is RendezvousCause.NEVER_STARTED
    path.write_text('{"cause": "a cause of a later version"}')
    assert read(tmp_path).missing.cause is RendezvousCause.NEVER_STARTED


@pytest.mark.parametrize("line", ["", "hpc-elastic node1: this node is head"])
def test_a_node_that_was_head_in_this_start_is_not_said_to_have_never_started(tmp_path: Path, line: str) -> None:
    plan, layout = make_run_plan(tmp_path), RunLayout(tmp_path)
    Journal(layout, plan, a_place(1), questions=Answers()).claim_allocation(HEAD)
    if line:
        Path(layout.agents).mkdir()
        Path(layout.agent_output("node1")).write_text(f"{line}\n")
    missing = read(tmp_path).missing
    assert missing.cause is RendezvousCause.HEAD_LOST
    sign = f"agents/node1.out ends with: {line}" if line else "there is no agents/node1.out"
    assert str(missing) == f"node1 was the head, and was lost: {sign}"


def test_a_head_of_an_earlier_start_of_the_job_has_not_been_head_in_this_one(tmp_path: Path) -> None:
    plan, layout = make_run_plan(tmp_path), RunLayout(tmp_path)
    Journal(layout, plan, a_place(1), questions=Answers()).claim_allocation(HEAD)
    (found,) = Findings(plan, a_place(0, restart_count=1)).read(["node1"], HEAD)
    assert found.missing.cause is RendezvousCause.NEVER_STARTED


def test_who_is_refused_where_the_head_listens_met_a_firewall(tmp_path: Path) -> None:
    write(tmp_path, replace(FINDING, cause=RendezvousCause.REFUSED))
    missing = read(tmp_path).missing
    assert missing.cause is RendezvousCause.BLOCKED_PORT
    assert missing.detail == (
        "met a blocked port: node0 (10.0.0.1) on port 25000: refused, although the head listens there; "
        "open network.port_range 20000-32000 between the nodes"
    )


LAUNCHED = "hpc_elastic: run directory /run\nhpc_elastic: starting an agent on each of 2 nodes (start 0)\n"


@pytest.mark.parametrize(
    ("said", "is_over", "ended"),
    [
        ("task 1 launch failed: Slurmd could not connect IO", True, True),
        ("node1: task 1: Exited with exit code 2", True, True),
        ("node1: task 1: Exited with exit code 127", True, True),
        ("node1: task 1: Killed", True, True),
        ("node1: task 1: Exited with exit code 6", True, False),  # the agent's own
        ("node1: task 1: Exited with exit code 75", True, False),
        ("node0: task 0: Exited with exit code 2", False, False),
    ],
)
@pytest.mark.parametrize("has_written", [False, True])
def test_who_srun_says_has_ended_is_over(
    tmp_path: Path, said: str, *, is_over: bool, ended: bool, has_written: bool
) -> None:
    if has_written:
        write(tmp_path)
    Path(RunLayout(tmp_path).script_output("42")).write_text(f"{LAUNCHED}srun: error: {said}\n")
    found = read(tmp_path)
    assert (found.gave_up, found.ended) == (is_over, ended)
    cause = RendezvousCause.CANNOT_ROUTE if has_written else RendezvousCause.NEVER_STARTED
    assert found.missing.cause is cause
    words = said.split(": ", 2)[-1] if "launch" not in said else "launch failed: Slurmd could not connect IO"
    is_quoted = f"has never started its agent: srun: {words}; there is no agents/node1.out" in found.missing.detail
    assert is_quoted == (is_over and not has_written)


@pytest.mark.parametrize("code", [1, 6])
def test_a_node_whose_task_prolog_fails_is_at_fault_whatever_it_exits_with(code: int, tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    said = f"srun: error: node1: task 1: Exited with exit code {code}\n"
    Path(layout.script_output("42")).write_text(f"{LAUNCHED}{said}")
    Path(layout.agents).mkdir()
    Path(layout.agent_output("node1")).write_text(f"slurmstepd-node1: error: TaskProlog failed status={code}\n")
    found = read(tmp_path)
    assert (found.gave_up, found.ended) == (True, True)
    assert "TaskProlog failed" in found.missing.detail


def test_what_srun_has_said_in_an_earlier_start_of_the_job_ends_no_agent(tmp_path: Path) -> None:
    """NFS may show another node than the script's no more of the file for half a minute."""
    said = f"{LAUNCHED}srun: error: node1: task 1: Exited with exit code 75\n"
    Path(RunLayout(tmp_path).script_output("42")).write_text(said)
    (found,) = Findings(make_run_plan(tmp_path), a_place(0, restart_count=1)).read(["node1"], HEAD)
    assert not found.gave_up


def test_srun_may_say_more_than_a_few_lines_about_agents(tmp_path: Path) -> None:
    others = "".join(
        f"srun: error: task {number} launch failed: Slurmd could not connect IO\n" for number in range(2, 5002)
    )
    said = f"{LAUNCHED}srun: error: node1: task 1: Killed\n{others}"
    Path(RunLayout(tmp_path).script_output("42")).write_text(said)
    assert read(tmp_path).ended


def test_nobody_tells_of_agents_on_this_machine(tmp_path: Path) -> None:
    place = replace(a_place(0), job_id="local-42", is_local=True)
    Path(RunLayout(tmp_path).script_output("local-42")).write_text(f"{LAUNCHED}srun: error: node1: task 1: Killed\n")
    (found,) = Findings(make_run_plan(tmp_path), place).read(["node1"], HEAD)
    assert not found.gave_up


@pytest.mark.parametrize("changes", [{"port": 25001}, {"head": "node7"}])
def test_who_is_refused_elsewhere_was_only_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    write(tmp_path, replace(FINDING, cause=RendezvousCause.REFUSED, **changes))  # type: ignore[arg-type]
    assert read(tmp_path).missing.cause is RendezvousCause.REFUSED


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (None, "there is no agents/node1.out, so no task was started there"),
        (b"", "agents/node1.out is empty"),
        (b"one\nslurmstepd: error: execve(): x\n\n", "agents/node1.out ends with: slurmstepd: error: execve(): x"),
        (b"\x1b[31mred\xff\n", "agents/node1.out ends with:  [31mred\ufffd"),
        (b"x" * 9000, f"agents/node1.out ends with: {'x' * 200}"),
    ],
)
def test_who_says_nothing_has_never_started_and_its_output_tells_why(
    tmp_path: Path, output: bytes | None, words: str
) -> None:
    if output is not None:
        path = Path(RunLayout(tmp_path).agent_output("node1"))
        path.parent.mkdir()
        path.write_bytes(output)
    missing = read(tmp_path).missing
    assert str(missing) == f"node1 has never started its agent: {words}"
    assert missing.cause is RendezvousCause.NEVER_STARTED


def test_the_output_of_an_earlier_start_of_the_job_is_not_told_as_of_this_one(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    for path, text in (
        (layout.agent_output("node1"), "got SIGTERM\n"),
        (layout.allocation(1), ""),
        (layout.allocation(2), ""),
    ):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(text)
    detail = read(tmp_path).missing.detail
    assert detail.endswith("agents/node1.out ends, perhaps of an earlier start of the job, with: got SIGTERM")


def test_a_run_directory_that_cannot_be_written_does_not_end_the_search(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("a file where a folder should be")
    write(tmp_path)
    assert read(tmp_path).missing.cause is RendezvousCause.NEVER_STARTED


def test_a_listing_that_the_file_system_refuses_does_not_end_the_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Path(RunLayout(tmp_path).agent_output("node1"))
    output.parent.mkdir(parents=True)
    output.write_text("srun: task launch failed\n")

    def refuse(_: str) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "scandir", refuse)
    assert "agents/node1.out ends with: srun: task launch failed" in read(tmp_path).missing.detail


def write_as(root: Path, node_id: int, finding: Finding = FINDING, **more: bool) -> None:
    findings = Findings(make_run_plan(root), replace(a_place(node_id), nodes=NODES))
    findings.write(finding, tries=1, versions={}, **{"gave_up": True, **more})


NODES = ("node0", "node1", "node2", "node3")


def test_who_has_given_up_a_head_to_which_it_cannot_route_is_counted(tmp_path: Path) -> None:
    write_as(tmp_path, 1, gave_up=False)
    write_as(tmp_path, 2)
    write_as(tmp_path, 3, replace(FINDING, cause=RendezvousCause.REFUSED))
    findings = Findings(make_run_plan(tmp_path), replace(a_place(0), nodes=NODES))
    assert list(findings.cannot_reach("node0")) == ["node2"]
    assert list(findings.cannot_reach("node1")) == []


def test_a_second_head_waits_for_who_has_given_the_first_one_up_and_looks_for_another(tmp_path: Path) -> None:
    write_as(tmp_path, 2, awaits_other=True)
    write_as(tmp_path, 3)
    findings = Findings(make_run_plan(tmp_path), replace(a_place(1), nodes=NODES))
    about_to_join, gone = findings.read(["node2", "node3"], Endpoint(address="10.0.0.2", port=25000))
    assert (about_to_join.gave_up, gone.gave_up) == (False, True)
    (of_first,) = Findings(make_run_plan(tmp_path), replace(a_place(0), nodes=NODES)).read(["node2"], HEAD)
    assert of_first.gave_up
