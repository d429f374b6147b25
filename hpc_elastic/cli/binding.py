"""`hpc-elastic binding`: which CPUs and which GPU each worker of a run has, or would have on this machine."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence

from hpc_elastic.api.find import find_run
from hpc_elastic.cli.arguments import VerbParser, add_json, add_run
from hpc_elastic.cli.gpu_tool import ask_tool
from hpc_elastic.cli.look import note
from hpc_elastic.cli.output import print_json
from hpc_elastic.errors import RunDirectoryError, UsageError
from hpc_elastic.hardware.accelerators import find_accelerators
from hpc_elastic.hardware.binding_map import describe_places, map_lines
from hpc_elastic.hardware.device_lists import Listing, VisibleDevices, select_devices
from hpc_elastic.hardware.machine import Machine, read_locality, read_machine
from hpc_elastic.hardware.placement import Binding, place_workers
from hpc_elastic.observe.bindings import NodeBinding, read_bindings
from hpc_elastic.observe.narrate import count, describe_nodes
from hpc_elastic.printable import printable, printable_line

_BINDINGS: tuple[Binding, ...] = ("numa", "cores", "nearest")


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "binding",
        usage="[--json] [RUN] | --here [options]",
        description="Show which CPUs, NUMA node and GPU each worker of a run has, nodes that are\n"
        "alike together. With --here: what they would have on this machine, which may be\n"
        "a node: `srun --nodes=1 --exclusive hpc-elastic binding --here`.",
        examples="  hpc-elastic binding\n  hpc-elastic binding --here --binding cores --workers 4\n",
    )
    add_run(parser)
    parser.add_argument("--here", action="store_true", help="look at this machine, not at a run")
    parser.add_argument(
        "--binding",
        metavar="HOW",
        choices=_BINDINGS,
        help=f"with --here: {', '.join(_BINDINGS[:-1])} or {_BINDINGS[-1]}; default nearest",
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=int,
        help="with --here: how many workers; default one for each GPU, else for each NUMA node",
    )
    add_json(parser, "print one JSON object")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    if arguments.here:
        if arguments.run:
            raise UsageError("binding takes a run or --here, not both")
        return _show_here(arguments)
    if arguments.binding or arguments.workers is not None:
        raise UsageError("--binding and --workers belong to --here", tip="a run has its binding from its job file")
    layout = find_run(arguments.run, say=note)
    found = read_bindings(layout)
    if arguments.json:
        print_json({"run_dir": layout.root, "nodes": [each.to_json() for each in found]})
        return 0
    if not found:
        raise RunDirectoryError(
            f"no node of {layout.root} has bound its workers",
            tip="with `binding: nearest` in the job file they are bound before the first attempt",
        )
    print("\n".join(printable_line(line) for each in found for line in _describe(each)))
    return 0


def _describe(binding: NodeBinding) -> list[str]:
    threads = "" if binding.threads is None else f", {count(binding.threads, 'thread')} each"
    head = f"{describe_nodes(binding.nodes)}: {binding.binding}, {count(len(binding.workers), 'worker')}{threads}"
    return [head, *(f"  {line}" for line in map_lines(binding.workers))]


def _show_here(arguments: Namespace) -> int:
    machine = read_machine(frozenset(os.sched_getaffinity(0)))
    listing = find_accelerators(ask_tool, is_located=True)
    seen = select_devices(os.environ, listing)
    devices = seen.devices if seen is not None else ()
    workers = arguments.workers if arguments.workers is not None else len(devices) or len(machine.numa_nodes)
    if not 0 < workers <= len(machine.cpus) * 64:
        raise UsageError(f"--workers {workers}: expected a number from 1 to {len(machine.cpus) * 64}")
    binding: Binding = arguments.binding or "nearest"
    localities = [read_locality(device.address if device else None) for device in devices]
    placement = place_workers(binding, workers, machine, localities)
    places = describe_places(placement, devices)
    threads = min(placement.threads(worker) for worker in range(workers))
    if arguments.json:
        print_json(
            {
                "binding": binding,
                "threads": threads,
                "workers": places,
                "cpus": len(machine.cpus),
                "gpus": None if seen is None else len(seen),
                "remarks": list(placement.remarks),
            }
        )
        return 0
    lines = [_describe_machine(machine), _describe_gpus(listing, seen)]
    lines.append(f"binding: {binding}, {count(workers, 'worker')}, OMP_NUM_THREADS {threads}")
    print("\n".join(printable(line) for line in (*lines, *(f"  {line}" for line in map_lines(places)))))
    for remark in placement.remarks:
        note(remark)
    return 0


def _describe_machine(machine: Machine) -> str:
    nodes = count(len(machine.numa_nodes), "NUMA node")
    away = len(machine.online - machine.cpus)
    rest = f"; {away} more CPUs of the machine may not be used here" if away else ""
    return f"CPUs: {len(machine.cpus)} in {len(machine.cores)} cores on {nodes}{rest}"


def _describe_gpus(listing: Listing | None, seen: VisibleDevices | None) -> str:
    if seen is None:
        return "GPUs: none is shown by a vendor's tool, by the drivers' files or by a variable"
    vendor = f" of {listing.vendor.value}" if listing is not None else ""
    shown = f"; the node shows {listing.count}" if listing is not None and listing.count != len(seen) else ""
    why = f" ({', '.join(seen.variables)})" if seen.variables else ""
    return f"GPUs: {len(seen)}{vendor}{why}{shown}"
