"""torch's distributed checkpoint within `saving()`: the real one, of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.agent.workers.heartbeats import Heartbeats
from hpc_elastic.worker import heartbeat_writer

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, about a process without a process group


@pytest.fixture
def rank() -> Iterator[Heartbeats]:
    """This process as the only rank of a node."""
    heartbeats = Heartbeats()
    heartbeat_writer.begin(heartbeats.begin([0])[0].memory, 0)
    yield heartbeats
    heartbeat_writer._forget()
    heartbeats.close()


class Weights:
    """A stateful object, which torch asks for its state while it saves."""

    def __init__(self, rank: Heartbeats) -> None:
        self.value = torch.arange(3.0)
        self.rank = rank
        self.seen: list[frozenset[int]] = []

    def state_dict(self) -> dict[str, Any]:
        self.seen.append(self.rank.saving())
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


@pytest.mark.long
def test_a_rank_saves_while_torch_saves(rank: Heartbeats, tmp_path: Path) -> None:
    from hpc_elastic.integrations import torch_checkpoint

    weights = Weights(rank)
    torch_checkpoint.save({"weights": weights}, checkpoint_id=tmp_path / "step1")
    assert weights.seen
    assert set(weights.seen) == {frozenset({0})}
    assert not rank.saving()
    loaded = Weights(rank)
    loaded.value = torch.zeros(3)
    torch.distributed.checkpoint.load({"weights": loaded}, checkpoint_id=tmp_path / "step1")
    assert loaded.value.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.long
def test_a_rank_saves_until_an_asynchronous_save_is_done(
    rank: Heartbeats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from concurrent.futures import Future

    from hpc_elastic.integrations import torch_checkpoint

    upload: Future[None] = Future()
    monkeypatch.setattr(torch.distributed.checkpoint, "async_save", lambda *_, **__: upload)
    assert torch_checkpoint.async_save({}, checkpoint_id=tmp_path) is upload
    assert rank.saving() == {0}
    upload.set_result(None)
    assert not rank.saving()


@pytest.mark.long
def test_a_save_that_fails_ends_the_saving(rank: Heartbeats, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpc_elastic.integrations import torch_checkpoint

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    for name in ("save", "async_save"):
        monkeypatch.setattr(torch.distributed.checkpoint, name, fail)
        with pytest.raises(OSError, match="the disk is full"):
            getattr(torch_checkpoint, name)({})
        assert not rank.saving()
