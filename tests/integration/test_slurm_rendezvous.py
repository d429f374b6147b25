"""Nodes that do not join on the real Slurm: each is named with its cause, in the output, the status and the result."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Door, Run
from tests.integration.slurm_jobs import agent_outputs, events, script_output, write_job
from tests.slurm_sandbox.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm

WHO = 'import os\nprint("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)\n'
PORTS = "20000-32000"  # network.port_range of the site
JOIN_S = 20  # in which those that nothing keeps have joined also where four nodes share two busy cores


@pytest.fixture(autouse=True)
def needs_nftables() -> None:
    if not shutil.which("nft", path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
        pytest.skip("not installed: nft (Debian: nftables)")


def submit_held(door: Door, *, nodes: str = "4", elastic: str = f"{{join_timeout: {JOIN_S}s}}", more: str = "") -> Run:
    """A job that Slurm does not start yet, so that its nodes can be broken first."""
    write_job(door, WHO, nodes=nodes, workers="1", more=f"elastic: {elastic}\nsbatch: {{hold: true}}\n{more}")
    return door.submit("job.yaml")


def release(slurm: Cluster, run: Run) -> None:
    slurm.run("scontrol", "release", run.job_id)


def assert_timed_out(door: Door, run: Run, **expected: tuple[str, str]) -> Any:
    """The run ended with exit code 6, and each node is named with its cause: in words, and what its line says."""
    result = run.wait_until_over()
    assert (result["state"], result["exit_code"], result["reason"]) == ("FAILED", 6, "nodes_missing"), run.story()
    # An agent that reaches no head may have become one just before this end: the words are those of who ended the run.
    told = [event for event in events(run) if event["name"] == "rendezvous.timeout"]
    (note,) = [event for event in told if event["node"] == result["written_by"]]
    causes = {missing["node"]: missing["cause"].replace("_", " ") for missing in note["metadata"]["missing"]}
    assert causes == {node: words for node, (words, _) in expected.items()}, run.story()
    output = script_output(run)
    for node, (_, line) in expected.items():
        assert re.search(f"hpc-elastic node1: {node} {line}", output), f"no {line!r}\n{run.story()}"
    if len(expected) == 1:
        ((node, (_, line)),) = expected.items()
        assert re.search(f"missing: {node} {line}", result["cause"]), result["cause"]
    else:
        for node, (words, _) in expected.items():
            assert re.search(rf"{node}\b[^()]*\({words}\)", result["cause"]), result["cause"]
    shown = " ".join(door.run("status", str(run.path), exit_code=None).stdout.split())
    assert result["cause"] in shown.replace("│", ""), shown
    run.assert_nothing_left(within_s=40)
    run.assert_records_valid()
    return result


def said_after_s(run: Run, node: str, text: str) -> float:
    """When a node's agent said so, in seconds after the allocation's claim; by the clock of this one computer."""
    claimed = datetime.fromisoformat(run.read(run.layout.allocation(1))["time"].replace("Z", "+00:00"))
    lines = Path(run.layout.agent_output(node)).read_text().splitlines()
    said = next((line for line in lines if text in line), None)
    assert said is not None, run.story()
    return datetime.strptime(said[:19], "%Y-%m-%d %H:%M:%S").timestamp() - claimed.timestamp()


@contextlib.contextmanager
def another_python(slurm: Cluster, node: str, file: Path, text: str, mode: int) -> Iterator[None]:
    """A node that has this file in the place of its Python."""
    file.write_text(text)
    file.chmod(mode)
    with slurm.mounted(node, file, os.path.realpath(sys.executable)):
        yield


def python_missing(slurm: Cluster, node: str, folder: Path) -> AbstractContextManager[None]:
    return another_python(slurm, node, folder / "no-python", "this is no program\n", 0o644)


def python_hanging(slurm: Cluster, node: str, folder: Path) -> AbstractContextManager[None]:
    """A node on which Python says nothing and does not end, as if it lay on a file system that hangs."""
    return another_python(slurm, node, folder / "hanging-python", "#!/bin/sh\nexec sleep 1000\n", 0o755)


@contextlib.contextmanager
def python_waiting(slurm: Cluster, node: str, folder: Path) -> Iterator[Path]:
    """A node on which each Python begins when a file is there, which is yielded."""
    go, python = folder / "go", folder / "python"
    shutil.copy2(os.path.realpath(sys.executable), python)
    text = f'#!/bin/bash\nuntil [ -e {go} ]; do sleep 0.2; done\nexec -a "$0" {python} "$@"\n'
    with another_python(slurm, node, folder / "waiting-python", text, 0o755):
        yield go


@contextlib.contextmanager
def names_missing(slurm: Cluster, node: str, folder: Path) -> Iterator[None]:
    """A node that knows its own name only, and whose name server, on the controller, says nothing."""
    hosts, resolver = folder / "hosts", folder / "resolv.conf"
    hosts.write_text(f"127.0.0.1 localhost\n{slurm.layout.address(node)} {node}\n")
    resolver.write_text(f"nameserver {slurm.layout.controller_address}\n")
    with (
        slurm.firewall("controller", "udp dport 53 drop"),
        slurm.mounted(node, hosts, "/etc/hosts"),
        slurm.mounted(node, resolver, "/etc/resolv.conf"),
    ):
        yield


def test_a_node_that_never_starts_and_one_with_another_secret(slurm_door: Door, slurm: Cluster, tmp_path: Path) -> None:
    run = submit_held(slurm_door)
    other = tmp_path / "secret"
    other.write_bytes(b"x" * 32)
    with python_hanging(slurm, "node2", tmp_path), slurm.mounted("node3", other, run.layout.secret):
        release(slurm, run)
        result = assert_timed_out(
            slurm_door,
            run,
            node2=("never started", "has never started its agent: agents/node2.out is empty"),
            node3=("wrong secret", r"authenticated wrongly at node1 \(\S+\), port \d+: the file `secret` of the run"),
        )
    assert result["cause"].startswith(f"2 of at least 4 nodes joined within {JOIN_S} s")
    assert script_output(run).count("srun: got SIGCONT") <= 3  # it is not told to go on each second


@pytest.mark.every_slurm
@pytest.mark.variant(of="test_the_job_starts_again_without_a_node_that_is_not_fit_to_take_part")
@pytest.mark.parametrize("lacks", ["run directory", "python"])
def test_a_node_that_can_start_no_agent_is_not_waited_for_and_the_job_starts_again_without_it(
    slurm_door: Door, slurm: Cluster, tmp_path: Path, lacks: str
) -> None:
    """With a mount that is missing nodes waited ten minutes for it, and ended."""
    run = submit_held(slurm_door, nodes="3", elastic="{join_timeout: 1h}", more="requeue: {max: 2}\n")
    (tmp_path / "nothing").mkdir()
    no_python = python_missing(slurm, "node2", tmp_path)
    no_folder = slurm.mounted("node2", tmp_path / "nothing", run.path)
    with no_python if lacks == "python" else no_folder:
        release(slurm, run)
        assert run.wait_until_over()["state"] == "SUCCEEDED", run.story()
    assert [node["node"] for node in run.read(run.layout.world(1))["nodes"]] == ["node1", "node3", "node4"]
    why = {
        "python": "srun: Exited with exit code [0-9]+; agents/node2.out ends with: .*Permission denied",
        "run directory": "srun: launch failed: .*; there is no agents/node2.out, so no task was started there",
    }[lacks]
    line = f"hpc-elastic node1: node2 has never started its agent: {why}; the others do not wait for it"
    assert re.search(line, script_output(run)), run.story()
    named = " ".join(slurm_door.run("nodes", "node2").stdout.split())
    assert "before its first attempt: has never started its agent" in named
    shown = " ".join(slurm_door.run("explain", str(run.path)).stdout.split())
    assert "SUCCEEDED" in shown
    run.assert_nothing_left(within_s=40)
    run.assert_records_valid()


@pytest.mark.variant(of="test_a_node_that_never_starts_and_one_with_another_secret")
@pytest.mark.every_slurm
def test_what_another_srun_of_the_script_says_of_a_node_ends_no_agent_there(
    slurm_door: Door, slurm: Cluster, tmp_path: Path
) -> None:
    """It is told in the same words, and in the same file."""
    output = slurm_door.folder / "hpc-elastic-runs" / "*" / "slurm-*.out"
    ends = f"until grep -qs 'starting an agent' {output}; do sleep 0.2; done; exit 4"
    setup = f'srun --overlap --nodes=1 --ntasks=1 --nodelist=node3 bash -c "{ends}" &'
    run = submit_held(slurm_door, nodes="3", elastic="{join_timeout: 1h}", more=f"setup: [{json.dumps(setup)}]\n")
    with python_waiting(slurm, "node3", tmp_path) as go:
        release(slurm, run)
        wait_until(lambda: "node3: task 0: Exited" in script_output(run), "it ends", within_s=60, otherwise=run.story)
        waits = re.compile("waiting for .*node3")
        wait_until(lambda: waits.search(script_output(run)) is not None, "it waits", within_s=90, otherwise=run.story)
        go.touch()
        assert run.wait_until_over()["state"] == "SUCCEEDED", run.story()
    assert "does not wait for it" not in script_output(run)
    assert len(run.read(run.layout.world(1))["nodes"]) == 3


@pytest.mark.parametrize(
    "lacks",
    [
        "scratch",
        pytest.param(
            "script",
            marks=pytest.mark.variant(of="test_the_job_starts_again_without_a_node_that_is_not_fit_to_take_part"),
        ),
    ],
)
def test_the_job_starts_again_without_a_node_that_is_not_fit_to_take_part(
    slurm_door: Door, slurm: Cluster, tmp_path: Path, lacks: str
) -> None:
    """It ended, though Slurm had other nodes."""
    (tmp_path / "nothing").mkdir()
    script, scratch = slurm_door.folder / "script", slurm_door.folder / "scratch"
    script.mkdir()
    scratch.mkdir()
    slurm_door.write("script/who.py", WHO)
    site = "name: ours\ncontact: us\nlast_checked: 2026-11-27\nscheduler: slurm\n"
    slurm_door.write("ours.yaml", f"{site}scratch: {scratch}\n")
    text = "nodes: 3\nworkers_per_node: 1\nentrypoint: {script: script/who.py}\nsbatch: {hold: true}\n"
    slurm_door.write("job.yaml", f"{text}requeue: {{max: 2}}\nsite: ./ours.yaml\n")
    run = slurm_door.submit("job.yaml")
    with slurm.mounted("node2", tmp_path / "nothing", slurm_door.folder / lacks):
        release(slurm, run)
        assert run.wait_until_over()["state"] == "SUCCEEDED", run.story()
    assert [node["node"] for node in run.read(run.layout.world(1))["nodes"]] == ["node1", "node3", "node4"]
    reason = {"scratch": "scratch cannot be written", "script": "who.py is not a file on this node"}[lacks]
    assert re.search(f"node2.*{reason}.*; the job is started again", script_output(run)), run.story()
    run.assert_nothing_left(within_s=40)
    run.assert_records_valid()


@pytest.mark.variant(of="test_a_node_that_never_starts_and_one_with_another_secret")
def test_ports_that_are_blocked_in_three_ways(slurm_door: Door, slurm: Cluster) -> None:
    """Dropped, rejected as if nobody listened, and rejected as firewalld does."""
    ways = {"node2": "drop", "node3": "reject with tcp reset", "node4": "reject with icmp type admin-prohibited"}
    rules = [f"ip saddr {slurm.layout.address(node)} tcp dport {PORTS} {way}" for node, way in ways.items()]
    run = submit_held(slurm_door)
    with slurm.firewall("node1", *rules):
        release(slurm, run)
        opened = f"open network.port_range {PORTS} between the nodes"
        met = r"met a blocked port: node1 \(\S+\) on port \d+:"
        assert_timed_out(
            slurm_door,
            run,
            node2=("blocked port", f"{met} no answer within 2 s, but its port 22 answers; {opened}"),
            node3=("blocked port", f"{met} refused, although the head listens there; {opened}"),
            node4=("blocked port", f"{met} .*, but its port 22 answers; {opened}"),
        )


@pytest.mark.variant(of="test_a_node_that_never_starts_and_one_with_another_secret")
def test_heads_that_cannot_be_resolved_or_routed_to_are_said_within_10_s(
    slurm_door: Door, slurm: Cluster, tmp_path: Path
) -> None:
    ways = {"node3": "drop", "node4": "reject with icmp type host-unreachable"}
    # Of srun, which is on node1 too, the other nodes need the ports above these.
    rules = [f"ip saddr {slurm.layout.address(node)} tcp dport 1-32767 {way}" for node, way in ways.items()]
    run = submit_held(slurm_door)
    claims, none = Path(run.layout.allocations), tmp_path / "no claims"
    claims.mkdir(mode=0o700, exist_ok=True)
    none.mkdir()
    with contextlib.ExitStack() as stack:
        stack.enter_context(slurm.firewall("node1", *rules))
        stack.enter_context(names_missing(slurm, "node2", tmp_path))
        stack.enter_context(slurm.mounted("node2", none, claims))  # the claim has the head's address
        release(slurm, run)
        routed = r"cannot route to node1 \(\S+\): "
        assert_timed_out(
            slurm_door,
            run,
            node2=("cannot resolve", "cannot resolve node1: .+"),
            node3=("cannot route", rf"{routed}no answer within 2 s, neither on port \d+ nor on 22 or 6818 or 1"),
            node4=("cannot route", f"{routed}.*"),
        )
    for node, text in {"node2": "cannot resolve", "node3": "cannot route", "node4": "cannot route"}.items():
        assert said_after_s(run, node, f"{text} ") <= 10, run.story()


def test_a_head_that_cannot_be_resolved_is_found_by_its_claim(slurm_door: Door, slurm: Cluster, tmp_path: Path) -> None:
    run = submit_held(slurm_door, nodes="2")
    with names_missing(slurm, "node2", tmp_path):
        release(slurm, run)
        assert run.wait_until_over()["state"] == "SUCCEEDED", run.story()
    assert not Path(run.layout.rendezvous("node2")).exists()


@pytest.mark.variant(of="test_a_node_that_never_starts_and_one_with_another_secret")
def test_a_node_with_another_torch_is_refused_and_not_waited_for(
    slurm_door: Door, slurm: Cluster, tmp_path: Path
) -> None:
    run = submit_held(slurm_door, elastic="{join_timeout: 10m}")
    with another_torch(slurm, "node3", tmp_path):
        release(slurm, run)
        version = importlib.metadata.version("torch")
        same = re.escape(version)
        line = f"has another version: torch is 1.2.3, on node1 {same}; upgrade torch on node3 to {same}"
        result = assert_timed_out(slurm_door, run, node3=("other version", line))
    assert result["cause"].startswith("at most 3 of at least 4 nodes can join; missing: node3")


@pytest.mark.variant(of="test_a_run_goes_on_without_an_agent_that_never_starts_if_enough_are_there")
def test_the_others_go_on_without_a_node_with_another_torch_if_they_are_enough(
    slurm_door: Door, slurm: Cluster, tmp_path: Path
) -> None:
    run = submit_held(slurm_door, nodes="{min: 3, max: 4}")
    with another_torch(slurm, "node3", tmp_path):
        release(slurm, run)
        assert run.wait_until_over()["state"] == "SUCCEEDED", run.story()
    assert [node["node"] for node in run.read(run.layout.world(1))["nodes"]] == ["node1", "node2", "node4"]
    assert re.search("node3 has another version: .*; going on without it", script_output(run))


@contextlib.contextmanager
def another_torch(slurm: Cluster, node: str, folder: Path) -> Iterator[None]:
    """A node where the installed torch says that it is version 1.2.3."""
    files = importlib.metadata.files("torch") or []
    (installed,) = [str(file.locate()) for file in files if file.name == "METADATA"]
    changed = folder / "METADATA"
    changed.write_text(re.sub("^Version: .*$", "Version: 1.2.3", Path(installed).read_text(), count=1, flags=re.M))
    with slurm.mounted(node, changed, installed):
        yield


@pytest.mark.variant(of="test_who_gave_up_is_not_waited_for")
def test_who_gives_up_is_not_waited_for(slurm_door: Door, slurm: Cluster, tmp_path: Path) -> None:
    run = submit_held(slurm_door, elastic="{join_timeout: 10m, join_retries: 1}")
    other = tmp_path / "secret"
    other.write_bytes(b"x" * 32)
    with slurm.mounted("node3", other, run.layout.secret):
        release(slurm, run)
        assert_timed_out(slurm_door, run, node3=("wrong secret", "authenticated wrongly"))
    agent = Path(run.layout.agent_output("node3")).read_text()
    assert re.search(r"authenticated wrongly .*; trying again in 5 s \(try 2 of 2\)", agent), agent
    assert "node3 has given up; the others do not wait for it" in script_output(run)


def test_debug_shows_every_message_of_the_rendezvous(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, WHO, nodes="2", workers="1", more="log_level: debug\n")
    run = slurm_door.submit("job.yaml", wait=True)
    output = Path(run.layout.agent_output("node2")).read_text()
    address = re.escape(slurm.layout.address("node1"))
    for how, kind in (("sent to", "join"), ("received from", "welcome"), ("received from", "assign")):
        assert re.search(rf'debug: {how} {address}:\d+: {{"type": "{kind}"', output), output
    assert Path(run.layout.secret).read_bytes().hex() not in agent_outputs(run)
    wait_until(run.is_over, "the run is over")


NODES = ("node1", "node2", "node3", "node4")


@contextlib.contextmanager
def not_reached(slurm: Cluster, node: str, *others: str, way: str = "drop") -> Iterator[None]:
    """These nodes cannot reach an agent on this one; srun, on node1, can reach its slurmd, and hear of its tasks."""
    rules = []
    for other in others:
        ports = "1-6817, 6819-32767" if other == "node1" else "1-32767"
        rules.append(f"ip saddr {slurm.layout.address(other)} tcp dport {{ {ports} }} {way}")
    with slurm.firewall(node, *rules):
        yield


@pytest.mark.variant(of="test_a_head_that_half_of_all_nodes_cannot_reach_is_relieved")
@pytest.mark.mirrored
@pytest.mark.parametrize("way", ["drop", "reject with icmp type host-unreachable"])
def test_a_first_node_that_no_other_can_reach_is_relieved_by_them(slurm_door: Door, slurm: Cluster, way: str) -> None:
    """Where it reaches them itself it has no part in the run either: its ranks could not be reached."""
    run = submit_held(slurm_door, nodes="{min: 2, max: 4}", elastic="{join_retries: 0}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(not_reached(slurm, "node1", *NODES[1:], way=way))
        if way != "drop":
            for node in NODES[1:]:
                stack.enter_context(not_reached(slurm, node, "node1", way=way))
        release(slurm, run)
        result = run.wait_until_over(within_s=180)
        assert result["state"] == "SUCCEEDED", run.story()
        run.assert_nothing_left(within_s=60)
    world = [node["node"] for node in run.read(run.layout.world(1))["nodes"]]
    assert world == [*NODES[1:]]
    relieved = "node1 has opened no attempt and cannot be reached by most nodes, so this node is the head now"
    assert re.search(f"hpc-elastic node[234]: {relieved}", agent_outputs(run)), run.story()
    assert slurm.job(run.job_id)["JobState"] == "COMPLETED", run.story()
    shown = slurm_door.run("status", str(run.path), exit_code=None).stdout
    assert "SUCCEEDED" in shown, shown
    run.assert_records_valid()


@pytest.mark.variant(of="test_a_head_that_half_of_all_nodes_cannot_reach_is_relieved")
def test_where_no_node_reaches_another_the_second_head_ends_the_run(slurm_door: Door, slurm: Cluster) -> None:
    run = submit_held(slurm_door, nodes="{min: 2, max: 4}", elastic="{join_retries: 0}")
    with contextlib.ExitStack() as stack:
        for node in NODES:
            stack.enter_context(not_reached(slurm, node, *(other for other in NODES if other != node)))
        release(slurm, run)
        result = run.wait_until_over(within_s=240)
    assert (result["state"], result["reason"], result["exit_code"]) == ("FAILED", "nodes_missing", 6), run.story()
    assert result["written_by"] != "node1", run.story()
    assert "node1, node" in result["cause"], result["cause"]
    assert "(cannot route)" in result["cause"], result["cause"]
    run.assert_nothing_left(within_s=60)
