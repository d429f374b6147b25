"""Runs in a process of its own with a stub as `torch`: what of ours is to work with that version, by its name."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def store() -> None:
    """The store host's store, on a socket that listens already."""
    from hpc_elastic.worker.store_host import open_store

    open_store("127.0.0.2", 29500, 7)


def preloads() -> None:
    from hpc_elastic.worker.preloads import import_preloads

    preloaded = import_preloads([])
    assert (preloaded.torch, preloaded.no_torch) == (f"{os.environ['STUB_TORCH']}.0+stub", None)


def types() -> None:
    """Every conversion that needs no run."""
    from hpc_elastic.elastic.group import Worker
    from hpc_elastic.integrations import torch_types
    from hpc_elastic.rundir.records import FailureRecord, MetricData, WorkerState

    for state in WorkerState:
        assert torch_types.from_torch_state(torch_types.to_torch_state(state)) is state
    worker = Worker(1, global_rank=3, role_rank=3, world_size=4, role_world_size=4, id="7")
    assert torch_types.from_torch_worker(torch_types.to_torch_worker(worker)) == worker
    failure = FailureRecord(
        rank=3,
        role="default",
        node="n1",
        attempt=1,
        local_rank=1,
        pid=7,
        exitcode=1,
        signal_name=None,
        error_file="/nowhere",
        message="why",
        timestamp=5.0,
        failure_class="exception",
    )
    made = torch_types.to_torch_failure(failure)
    assert torch_types.from_torch_failure(made, rank=3, role="default", node="n1", attempt=1) == failure
    metric = MetricData(
        timestamp=5.0, group_name="g", name="n", value=1.0, run="r", node="n1", attempt=1, role="trainers"
    )
    assert torch_types.to_torch_metric(metric) == (5.0, "g", "n", 1.0)


def handler() -> None:
    """The rendezvous backend up to its answers; where no Slurm step is, the only thing that may be missing is that."""
    from torch.distributed.elastic.rendezvous.api import RendezvousParameters

    from hpc_elastic.integrations.torchrun.entry import create_handler

    for name in [name for name in os.environ if name.startswith(("SLURM_", "HPC_ELASTIC_LOCAL"))]:
        del os.environ[name]
    with suppress(ValueError):
        create_handler(RendezvousParameters("hpc-elastic", "", "none", 1, 1))
    from hpc_elastic.integrations.torchrun.exchange import Round
    from hpc_elastic.integrations.torchrun.handler import _info
    from hpc_elastic.membership.messages import Assign
    from hpc_elastic.rundir.records import Endpoint

    assign = Assign(
        attempt=1,
        group_rank=0,
        group_world_size=1,
        first_rank=0,
        workers=1,
        world_size=1,
        role="default",
        first_role_rank=0,
        role_world_size=1,
        master=Endpoint(address="127.0.0.2", port=29500),
        serves_store=True,
        is_failure_ignored=False,
        world_digest="",
        head="n1",
    )
    info = _info(Round(assign=assign), None)  # type: ignore[arg-type]
    assert (info.rank, info.bootstrap_store_info.master_port) == (0, 29500)


if __name__ == "__main__":
    for use in {"workers": (store, preloads, types), "handler": (handler,)}[sys.argv[1]]:
        use()
