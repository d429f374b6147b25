"""Rounds of torch's dynamic rendezvous (c10d over a TCPStore), the peer of `rendezvous_scale`: seconds, one a line.

    python -m benchmarks.torch_rendezvous NODES ROUNDS

Each handler is in a thread of this process with a store connection of its own. A round is from the first call of
`next_rendezvous` to the return of the last: no worker is stopped or started in it.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

ADDRESS = "127.0.0.1"


def main() -> None:
    nodes, rounds = map(int, sys.argv[1:])
    server = dist.TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
    handlers = [make_handler(nodes, server.port) for _ in range(nodes)]
    for _ in range(rounds):
        threads = [threading.Thread(target=handler.next_rendezvous, daemon=True) for handler in handlers]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(time.monotonic() - began, flush=True)
    os._exit(0)  # the handlers' own threads go on for ever


def make_handler(nodes: int, port: int) -> RendezvousHandler:
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=f"{ADDRESS}:{port}",
        run_id="run",
        min_nodes=nodes,
        max_nodes=nodes,
        local_addr=ADDRESS,
        is_host=False,
    )
    backend, store = create_backend(parameters)
    return create_handler(store, backend, parameters)


if __name__ == "__main__":
    main()
