"""The handler as torch's agent uses it, several nodes in one process; no worker is started."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="there is no torch")

from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousTimeoutError,
)

from hpc_elastic.agent.system.processes import agent_id
from hpc_elastic.integrations.torchrun.entry import create_handler, get_handler
from hpc_elastic.integrations.torchrun.handler import ElasticHandler
from hpc_elastic.rundir.store import read_json
from tests.integrations.torchrun.nodes import Node, start_all, wait_until
from tests.integrations.torchrun.test_settings import a_place

pytestmark = pytest.mark.local

LAST_CALL_S = 30.0  # torch's: nothing here may take as long


def result(folder: Path, run: str = "torchrun-local-7-7") -> Any:
    return json.loads((folder / run / "result.json").read_text())


def test_all_nodes_meet_without_a_last_call_although_there_could_be_more(tmp_path: Path) -> None:
    began = time.monotonic()
    nodes = start_all(tmp_path, 3, (2, 8))
    infos = [node.wait_for_round(1) for node in nodes]
    assert time.monotonic() - began < LAST_CALL_S / 2
    assert [(info.rank, info.world_size) for info in infos] == [(0, 3), (1, 3), (2, 3)]
    masters = {(info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in infos}
    assert [address for address, _ in masters] == ["127.0.0.2"]
    for node in nodes:
        node.wish("done")
    assert [node.wait() for node in nodes] == ["done"] * 3
    assert result(tmp_path)["state"] == "SUCCEEDED"


def test_ranks_follow_the_node_ids_and_not_the_names(tmp_path: Path) -> None:
    nodes = start_all(tmp_path, 11, (11, 11))  # local10 comes before local2 by its name
    assert [node.wait_for_round(1).rank for node in nodes] == list(range(11))
    for node in nodes:
        node.wish("done")
    assert [node.wait() for node in nodes] == ["done"] * 11


def test_a_failure_on_one_node_makes_all_meet_again_at_a_fresh_store(tmp_path: Path) -> None:
    nodes = start_all(tmp_path, 3, (3, 3))
    first = [node.wait_for_round(1) for node in nodes]
    first[0].store.set("of attempt 1", "x")
    nodes[1].wish("fail")
    second = [node.wait_for_round(2) for node in nodes]
    assert [info.rank for info in second] == [0, 1, 2]
    assert not second[2].store.check(["of attempt 1"])
    ports = {info.bootstrap_store_info.master_port for info in (first[0], *second)}
    assert len(ports) == 2
    assert [node.environ["HPC_ELASTIC_ATTEMPT"] for node in nodes] == ["2"] * 3
    for node in nodes:
        node.wish("done")
    assert [node.wait() for node in nodes] == ["done"] * 3
    assert (result(tmp_path)["attempts"], result(tmp_path)["restarts"]) == (2, 1)


def test_the_last_failure_of_one_node_ends_all_with_its_cause(tmp_path: Path) -> None:
    nodes = start_all(tmp_path, 3, (3, 3))
    for node in nodes:
        node.wait_for_round(1)
    nodes[2].wish("fail for good")
    ended = [node.wait() for node in nodes]
    assert [type(error).__name__ for error in ended] == ["RendezvousClosedError"] * 2 + ["ChildFailedError"]
    assert str(ended[0]).startswith("rank 2 on local2 failed with exit code 3")
    written = result(tmp_path)
    assert (written["state"], written["reason"], list(written["failures"])) == ("FAILED", "restarts_used_up", ["2"])


def test_a_node_that_is_not_needed_waits_and_leaves_without_an_error(tmp_path: Path) -> None:
    nodes = start_all(tmp_path, 3, (2, 2))
    assert [node.wait_for_round(1).world_size for node in nodes[:2]] == [2, 2]
    for node in nodes[:2]:
        node.wish("done")
    assert [node.wait() for node in nodes[:2]] == ["done"] * 2
    ended = nodes[2].wait()
    assert isinstance(ended, SystemExit)
    assert (ended.code, nodes[2].infos) == (0, [])


def test_a_closed_rendezvous_is_closed_on_all_nodes(tmp_path: Path) -> None:
    nodes = start_all(tmp_path, 2, (2, 2))
    for node in nodes:
        node.wait_for_round(1)
    assert not nodes[0].handler.is_closed()
    nodes[1].handler.set_closed()
    ended = [node.wait() for node in nodes]
    assert all(isinstance(error, RendezvousClosedError) for error in ended), ended
    assert "cancelled by" in str(ended[0])
    assert nodes[0].handler.is_closed()


def test_the_others_go_on_without_a_node_that_is_done_when_one_of_them_fails(tmp_path: Path) -> None:
    nodes = start_all(tmp_path, 3, (2, 3))
    for node in nodes:
        node.wait_for_round(1)
    nodes[0].wish("done")
    record = tmp_path / "torchrun-local-7-7" / "attempts" / "0001" / "nodes" / "local0.json"
    wait_until(lambda: (read_json(str(record)) or {}).get("state") == "SUCCEEDED")
    nodes[1].wish("fail")
    assert nodes[0].wait() == "done, but local0 cannot start workers again"
    for node in nodes[1:]:
        node.wait_for_round(2)
        while node.infos[-1].world_size == 3:
            node.wait_for_round(len(node.infos) + 1)
        node.wish("done")
    assert [node.wait() for node in nodes[1:]] == ["done"] * 2
    assert nodes[1].infos[-1].bootstrap_store_info.master_addr == "127.0.0.3"


def test_too_few_nodes_are_named_after_the_join_timeout(tmp_path: Path) -> None:
    node = Node(tmp_path, 0, 2, nnodes=(2, 2), join_timeout="2").start()
    ended = node.wait()
    assert isinstance(ended, RendezvousTimeoutError)
    assert "local1" in str(ended)


def test_who_is_missing_is_waited_for_only_so_long_and_taken_in_when_it_comes(tmp_path: Path) -> None:
    nodes = [Node(tmp_path, number, 3, nnodes=(2, 3), join_timeout="6") for number in range(3)]
    began = time.monotonic()
    for node in nodes[:2]:
        node.start()
    first = [node.wait_for_round(1) for node in nodes[:2]]
    assert 6 <= time.monotonic() - began < LAST_CALL_S / 2
    assert [info.world_size for info in first] == [2, 2]
    late = nodes[2].start().wait_for_round(1)
    assert [info.world_size for info in (late, *(node.wait_for_round(2) for node in nodes[:2]))] == [3, 3, 3]
    for node in nodes:
        node.wish("done")
    assert [node.wait() for node in nodes] == ["done"] * 3
    assert result(tmp_path)["restarts"] == 0


def test_a_second_torchrun_of_a_step_is_a_run_of_its_own(tmp_path: Path) -> None:
    for run in ("torchrun-local-7-7", "torchrun-local-7-7-2"):
        nodes = start_all(tmp_path, 2, (2, 2))
        for node in nodes:
            node.wait_for_round(1)
            node.wish("done")
        assert [node.wait() for node in nodes] == ["done"] * 2
        assert result(tmp_path, run)["run"] == run


def test_what_the_workers_inherit_tells_whose_they_are_and_which_interface_they_use(tmp_path: Path) -> None:
    node = Node(tmp_path, 0, 1, nnodes=(1, 1)).start()
    node.wait_for_round(1)
    assert node.environ == {
        "RES_OPTIONS": "timeout:1 attempts:1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HPC_ELASTIC_RUN_DIR": str(tmp_path / "torchrun-local-7-7"),
        "HPC_ELASTIC_NODE": "local0",
        "HPC_ELASTIC_ATTEMPT": "1",
        "HPC_ELASTIC_AGENT": agent_id(os.getpid()),
    }
    assert node.handler.get_run_id() == "torchrun-local-7-7"
    assert (node.handler.get_backend(), node.handler.use_agent_store) == ("hpc-elastic", True)
    node.wish("done")
    assert node.wait() == "done"


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("mine", "mine"),
        ("17", "17"),
        ("none", "torchrun-local-7-7"),
        ("", "torchrun-local-7-7"),
        (str(uuid.UUID("12345678-1234-4234-9234-123456789abc").int), "torchrun-local-7-7"),
    ],
)
def test_an_id_that_nobody_gave_is_the_same_on_all_nodes(tmp_path: Path, given: str, used: str) -> None:
    assert Node(tmp_path, 0, 1, nnodes=(1, 1), run_id=given).handler.get_run_id() == used


def test_an_own_address_that_is_none_is_said(tmp_path: Path) -> None:
    parameters = RendezvousParameters("hpc-elastic", "", "none", 1, 1, local_addr="a..b", dir=str(tmp_path))
    with pytest.raises(ValueError, match=r"--local-addr: a\.\.b is no address, and no name that means one"):
        ElasticHandler(parameters, a_place(1), environ={})


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = Node(tmp_path / "file", 0, 1, nnodes=(1, 1)).start().wait()
    assert isinstance(ended, RendezvousConnectionError)
    assert str(tmp_path / "file") in str(ended)


def test_without_a_step_of_slurm_it_says_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "HPC_ELASTIC_"))]:
        monkeypatch.delenv(name)
    with pytest.raises(ValueError, match="srun --ntasks-per-node=1 torchrun --rdzv-backend=hpc-elastic"):
        create_handler(RendezvousParameters("hpc-elastic", "anything:1", "none", 1, 1, timeout=900))
    assert get_handler() is create_handler
