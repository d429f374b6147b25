"""Copies of training states on another node, on the real Slurm: a spare goes on with what a lost node had saved."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="there is no torch")


from hpc_elastic.state_memory import MEMORY_NAME, map_control, read_slots, slot_offset
from tests.integration.conftest import Door, Run
from tests.integration.savers import (
    begun,
    finish,
    keeper_of,
    memories_of,
    saved_in,
    train,
    wait_for_copies,
    wait_until_saved,
)
from tests.integration.slurm_jobs import agent_pid, assert_over, events
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.slurm_sandbox.versions import why_impossible
from tests.tiers import variants

pytestmark = pytest.mark.slurm

COPIED = "spares: 1\nelastic: {lease: 3s}\nstate: {replicas: 1}"
NODES = ("node1", "node2", "node3")  # with ranks; the copies of each are on the next one
SWITCHED = "name: switched\nscheduler: slurm\ncontact: a@b\nlast_checked: never\nfailure_domains: topology\n"
STEP_MS = 400  # so that copies keep up with saves, on a computer with two cores for all nodes
STEP = ("--step-ms", str(STEP_MS))


def chosen(run: Run) -> list[str]:
    return [event["message"] for event in events(run) if event["name"] == "state.chosen"]


def weights(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("weights.*"))]


def power_off(slurm: Cluster, node: str) -> Callable[[], None]:
    slurm.kill(node)
    return lambda: slurm.boot(node)


def cut(slurm: Cluster, node: str) -> Callable[[], None]:
    slurm.cut(node)
    return lambda: slurm.heal(node)


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
@pytest.mark.parametrize(
    ("lose", "lost", "options"),
    [
        pytest.param(power_off, "node2", (), id="sharded"),
        *variants(
            (power_off, "node2", ("--replicated",)),
            (cut, "node3", ()),
            (power_off, "node1", ()),
            of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one",
            ids=["replicated", "cut", "batch host off"],
        ),
    ],
)
def test_a_spare_goes_on_with_the_states_of_a_lost_node(
    slurm_door: Door,
    slurm: Cluster,
    lose: Callable[[Cluster, str], Callable[[], None]],
    lost: str,
    options: tuple[str, ...],
) -> None:
    """At the last save that all had made, or the one before; and the weights are those of an undisturbed training."""
    run, folder = train(slurm_door, *STEP, *options, nodes="3", workers=1, more=COPIED)
    wait_until_saved(run, folder, 1, 3, more=6)
    rank, holder = NODES.index(lost), (NODES.index(lost) + 1) % 3
    keeper = keeper_of(agent_pid(run, NODES[holder]))
    assert keeper is not None
    # All ranks hold a replicated state, whatever has been copied.
    copied = 0 if options else wait_for_copies(run, folder, keeper, run.worker_pid(holder), rank)
    mend = lose(slurm, lost)
    try:
        wait_until_saved(run, folder, 2, 3)
        last = min(saved_in(folder, rank, 1) for rank in range(3))
        (first,) = set(begun(folder, 2).values())
        assert max(copied, last - 1 if options else 0) <= first <= last + 1, run.story()
        finish(run, folder, 3, step_ms=STEP_MS)
        killed = [lost] if lose is power_off else []
        assert assert_over(run, "SUCCEEDED", 0, killed=killed)["attempts"] == 2
    finally:
        mend()
    (line,) = chosen(run)
    assert line.startswith(
        f"attempt 2: all ranks can go on at step {first}, which is in memory; node4 gets it from "
    ), line
    undisturbed, reference = train(slurm_door, *options, nodes="3", workers=1, name="undisturbed")
    (reference / "end").write_text((folder / "end").read_text())
    assert_over(undisturbed, "SUCCEEDED", 0)
    assert weights(folder) == weights(reference) != []


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
def test_the_next_start_of_the_job_goes_on_with_the_states_of_a_lost_node(slurm_door: Door, slurm: Cluster) -> None:
    """There is no spare: the node with the copy writes it for the lost one."""
    lossy = "elastic: {lease: 3s, join_timeout: 20s}\nstate: {replicas: 1}\nrequeue: {max: 1}"
    run, folder = train(slurm_door, *STEP, nodes="3", workers=1, more=lossy)
    wait_until_saved(run, folder, 1, 3, more=6)
    slurm.kill("node2")
    wait_until_saved(run, folder, 2, 3)
    slurm.boot("node2")
    last = min(saved_in(folder, rank, 1) for rank in range(3))
    (first,) = set(begun(folder, 2).values())
    assert last - 1 <= first <= last + 1, run.story()
    finish(run, folder, 3, step_ms=STEP_MS)
    assert run.wait_until_over()["state"] == "SUCCEEDED", run.story()
    (line,) = chosen(run)
    assert line == f"attempt 2: all ranks can go on at step {first}, which was kept when the last allocation ended"


def damage_all(pid: int, but: set[int], done: set[tuple[int, ...]]) -> None:
    """Change a byte in each state that a process keeps and others do not, unless it is done; add it to those.

    Args:
        pid: the process.
        but: the inodes of the memories that others have, too.
        done: inode, slot, attempt and step of the states that are damaged.
    """
    for path in Path(f"/proc/{pid}/fd").iterdir():
        if MEMORY_NAME not in os.readlink(path) or path.stat().st_ino in but:
            continue
        descriptor = os.open(path, os.O_RDWR)
        for state in read_slots(map_control(descriptor)):
            key = (path.stat().st_ino, state.slot, *state.version)
            if key in done:
                continue
            done.add(key)
            (byte,) = os.pread(descriptor, 1, slot_offset(state.slot) + state.length - 1)
            os.pwrite(descriptor, bytes([byte ^ 1]), slot_offset(state.slot) + state.length - 1)
        os.close(descriptor)


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
def test_all_ranks_load_from_disk_if_the_copy_is_damaged(slurm_door: Door, slurm: Cluster) -> None:
    run, folder = train(slurm_door, *STEP, nodes="2", workers=1, more=COPIED)
    wait_until_saved(run, folder, 1, 2, more=4)
    keeper = keeper_of(agent_pid(run, "node1"))
    assert keeper is not None
    own = {*memories_of(run.worker_pid(0))}
    slurm.kill("node2")
    damaged: set[tuple[int, ...]] = set()

    def is_told_lost() -> bool:
        """Damage what comes until then: what is on its way as a node loses its power may be complete afterwards."""
        damage_all(keeper, own, damaged)
        return any(event["name"] == "node.lost" for event in events(run))

    wait_until(is_told_lost, "node2 counts as lost", within_s=30, otherwise=run.story)
    assert damaged, "there is a copy on node1"
    wait_until_saved(run, folder, 3, 2)
    assert begun(folder, 3) == {0: 0, 1: 0}
    finish(run, folder, 2)
    result = assert_over(run, "SUCCEEDED", 0, killed=["node2"])
    slurm.boot("node2")
    assert (result["attempts"], result["restarts"]) == (3, 0)
    failed = [event["message"] for event in events(run) if event["name"] == "attempt.failed"]
    assert len(failed) == 2
    assert "no other node has given it" in failed[1]
    assert "it is damaged" in failed[1]


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
def test_a_copy_is_below_another_switch_where_the_site_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of node1 and node2 below one switch, and node3, node4 and a spare below the other: node3 copies to node2."""
    if reason := why_impossible():
        pytest.skip(reason)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    slurm = Cluster.start(5, owner=os.getpid(), settings={"TopologyPlugin": "topology/tree"})
    door = Door(folder, {**slurm.environment, "XDG_STATE_HOME": str(tmp_path / "state")})
    try:
        door.write("switched.yaml", SWITCHED)
        run, outputs = train(door, *STEP, nodes="4", workers=1, more=COPIED, site="./switched.yaml")
        wait_until_saved(run, outputs, 1, 4, more=6)
        keeper = keeper_of(agent_pid(run, "node2"))
        assert keeper is not None
        wait_for_copies(run, outputs, keeper, run.worker_pid(1), 2)
        slurm.kill("node3")
        wait_until_saved(run, outputs, 2, 4)
        finish(run, outputs, 4, step_ms=STEP_MS)
        assert run.wait_until_over()["state"] == "SUCCEEDED", run.story()
        (line,) = chosen(run)
        assert line.endswith("which is in memory; node5 gets it from node2"), line
    finally:
        door.close()
        slurm.down()
