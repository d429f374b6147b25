"""A program that imports torch and, when it is told where the head is, adds numbers up over all nodes with gloo.

`hpc-elastic doctor` starts it on each node. It prints a JSON object for each of the two, which
`hpc_elastic.doctor.probes.answers` has the fields of, and reads a JSON object in between.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

NUMBERS = 1 << 18  # 1 MiB of 32-bit numbers


def main(arguments: Sequence[str]) -> int:  # noqa: ARG001  (it has none)
    """Import torch, and add up if the other side asks for it."""
    imported = _import()
    _say(imported)
    if imported.get("absent"):
        return 0
    line = sys.stdin.readline()
    if line.strip():
        _say(_reduce(json.loads(line)))
    return 0


def _import() -> dict[str, Any]:
    began = time.monotonic()
    try:
        import torch
        import torch.distributed as distributed
    except Exception as error:  # an import may raise anything: a library that is missing, a file that is damaged
        return {"absent": f"{type(error).__name__}: {error}"}
    import_s = time.monotonic() - began
    return {
        "version": str(torch.__version__),
        "path": os.path.dirname(str(torch.__file__)),
        "import_s": round(import_s, 2),
        "devices": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "has_gloo": distributed.is_available() and distributed.is_gloo_available(),
    }


def _reduce(order: dict[str, Any]) -> dict[str, Any]:
    import torch
    import torch.distributed as distributed

    if order["interface"]:
        os.environ["GLOO_SOCKET_IFNAME"] = order["interface"]
    within = timedelta(seconds=order["within_s"])
    rank, world = order["rank"], order["world"]
    try:
        store = distributed.TCPStore(order["host"], order["port"], world, rank == 0, within)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=within)
        numbers = torch.full((NUMBERS,), float(rank + 1))
        distributed.barrier()
        began = time.monotonic()
        distributed.all_reduce(numbers)
        took_s = time.monotonic() - began
        found, expected = float(numbers[-1]), world * (world + 1) / 2
        distributed.barrier()
    except Exception as error:  # of torch, whatever its type: its words are what the person needs
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    return {"took_s": round(took_s, 4), "error": "" if found == expected else f"the sum is {found}, not {expected}"}


def _say(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
