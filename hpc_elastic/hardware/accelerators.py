"""Finds the accelerators that a node shows to this process: by the vendor's tool, by the driver's files, by PCI.

Sources. NVIDIA: `nvidia-smi -L` (under a device cgroup it lists what that allows) and, where the tool is not in a
container, /proc/driver/nvidia/gpus. AMD: /sys/class/kfd/kfd/topology, whose order is ROCm's own (Linux,
drivers/gpu/drm/amd/amdkfd/kfd_topology.c: a node that the cgroup denies cannot be read). Intel: /sys/class/drm.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence

from hpc_elastic.hardware.device_lists import Device, Listing, Vendor

ANSWERS_WITHIN_S = 30.0
LIST = ["nvidia-smi", "-L"]
LOCATE = ["nvidia-smi", "--query-gpu=uuid,pci.bus_id", "--format=csv,noheader"]
# Runs a program for so many seconds at most, returns its exit code and standard output; OSError: there is no answer.
Ask = Callable[[Sequence[str], float], tuple[int, str]]

_LISTED = re.compile(r"GPU ([0-9]+): .*\(UUID: ([^)]+)\)")
_LISTED_PART = re.compile(r"\s+MIG .*\(UUID: ([^)]+)\)")
_NVIDIA_PCI, _AMD_PCI, _INTEL_PCI = "0x10de", "0x1002", "0x8086"
_DATA_CENTRE = ("0x0302", "0x0380", "0x1200")  # 3D controller, other display controller, accelerator: no desktop GPU


def find_accelerators(ask: Ask, *, root: str = "/", is_located: bool = False) -> Listing | None:
    """Return the node's accelerators, of the first vendor of which there are any; None if nothing shows any.

    An empty listing means that the vendor's tool has said that there is none.

    Args:
        ask: runs the vendor's tool.
        root: the directory that holds /proc and /sys.
        is_located: find the PCI devices as well, for which the tool may have to be asked once more.
    """
    nvidia = _ask_nvidia(ask, is_located=is_located)
    if nvidia is not None and nvidia.devices:
        return nvidia
    files = (_read_nvidia_driver, _read_kfd, _read_amd_pci, _read_intel)
    found = (read(root) for read in (files if nvidia is None else files[1:]))
    return next((listing for listing in found if listing is not None), nvidia)


def parse_list(returncode: int, stdout: str) -> tuple[Device, ...] | None:
    """Return the GPUs of `nvidia-smi -L`, with their MIG parts; None if it failed."""
    if returncode != 0:
        return None
    devices: list[Device] = []
    parts: list[list[str]] = []
    for line in stdout.splitlines():
        if (match := _LISTED.match(line)) is not None:
            devices.append(Device(index=int(match[1]), name=match[2]))
            parts.append([])
        elif parts and (match := _LISTED_PART.match(line)) is not None:
            parts[-1].append(match[1])
    return tuple(
        Device(index=device.index, name=device.name, parts=tuple(own))
        for device, own in zip(devices, parts, strict=True)
    )


def parse_addresses(returncode: int, stdout: str) -> dict[str, str]:
    """Return the PCI address of each GPU by its UUID, of the output of `LOCATE`."""
    rows = [line.split(",") for line in stdout.splitlines()] if returncode == 0 else []
    return {row[0].strip(): _address(row[1]) for row in rows if len(row) == 2}


def _ask_nvidia(ask: Ask, *, is_located: bool) -> Listing | None:
    try:
        devices = parse_list(*ask(LIST, ANSWERS_WITHIN_S))
        where = parse_addresses(*ask(LOCATE, ANSWERS_WITHIN_S)) if devices and is_located else {}
    except OSError:
        return None
    if devices is None:
        return None
    located = (
        Device(index=device.index, name=device.name, parts=device.parts, address=where.get(device.name))
        for device in devices
    )
    return Listing(vendor=Vendor.NVIDIA, devices=tuple(located))


def _read_nvidia_driver(root: str) -> Listing | None:
    """Return the GPUs of NVIDIA's driver whose device file is here: a container has those that it was given."""
    folder = os.path.join(root, "proc/driver/nvidia/gpus")
    found = []
    for address in sorted(_names(folder)):
        lines = _read(os.path.join(folder, address, "information")).splitlines()
        told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        minor = told.get("Device Minor", "")
        if minor.isdigit() and os.path.exists(os.path.join(root, f"dev/nvidia{minor}")):
            found.append((told.get("GPU UUID", ""), _address(address)))
    devices = tuple(Device(index=index, name=name, address=where) for index, (name, where) in enumerate(found))
    return Listing(vendor=Vendor.NVIDIA, devices=devices) if devices else None


def _read_kfd(root: str) -> Listing | None:
    """Return the GPUs of AMD's compute driver that this process may use, in ROCm's order."""
    folder = os.path.join(root, "sys/class/kfd/kfd/topology/nodes")
    devices: list[Device] = []
    for number in sorted(int(name) for name in _names(folder) if name.isdigit()):
        lines = _read(os.path.join(folder, str(number), "properties")).splitlines()
        told = {words[0]: int(words[1]) for words in map(str.split, lines) if len(words) == 2 and words[1].isdigit()}
        if not told.get("simd_count"):  # a node of CPUs only, or one that is denied to us
            continue
        where, domain = told.get("location_id", 0), told.get("domain", 0)
        address = f"{domain:04x}:{where >> 8 & 0xFF:02x}:{where >> 3 & 0x1F:02x}.{where & 0x7}"
        name = f"GPU-{told['unique_id']:016x}" if told.get("unique_id") else ""
        devices.append(Device(index=len(devices), name=name, address=address))
    return Listing(vendor=Vendor.AMD, devices=tuple(devices)) if devices else None


def _read_amd_pci(root: str) -> Listing | None:
    """Return AMD's GPUs where a container has /dev/kfd and not the driver's files; ROCm's order is then that of PCI."""
    if not os.path.exists(os.path.join(root, "dev/kfd")):
        return None
    found = sorted(_pci_devices(root, _AMD_PCI))
    devices = tuple(Device(index=index, address=address) for index, address in enumerate(found))
    return Listing(vendor=Vendor.AMD, devices=devices) if devices else None


def _read_intel(root: str) -> Listing | None:
    """Return Intel's data centre GPUs, each tile of a card as one: the i915 driver has gt/gtN, xe tileN of a card."""
    found = []
    cards = sorted((_link_name(root, card), card) for card in _names(os.path.join(root, "sys/class/drm")))
    for address, card in cards:
        if not re.fullmatch(r"card[0-9]+", card) or not address:
            continue
        device = os.path.join(root, "sys/class/drm", card, "device")
        is_one = _read(os.path.join(device, "vendor")).strip() == _INTEL_PCI
        if not is_one or not _read(os.path.join(device, "class")).startswith(_DATA_CENTRE):
            continue
        tiles = [name for name in _names(device) if re.fullmatch(r"tile[0-9]+", name)]
        tiles = tiles or [
            name for name in _names(os.path.join(root, "sys/class/drm", card, "gt")) if re.fullmatch(r"gt[0-9]+", name)
        ]
        found.append((address, max(1, len(tiles))))
    tiles_of = [(number, address, tile) for number, (address, count) in enumerate(found) for tile in range(count)]
    devices = tuple(
        Device(index=index, address=address, card=number, tile=tile)
        for index, (number, address, tile) in enumerate(tiles_of)
    )
    return Listing(vendor=Vendor.INTEL, devices=devices) if devices else None


def _pci_devices(root: str, vendor: str) -> Iterator[str]:
    folder = os.path.join(root, "sys/bus/pci/devices")
    for address in _names(folder):
        device = os.path.join(folder, address)
        is_theirs = _read(os.path.join(device, "vendor")).strip() == vendor
        if is_theirs and _read(os.path.join(device, "class")).startswith(_DATA_CENTRE):
            yield address


def _link_name(root: str, card: str) -> str:
    """Return the PCI address that a card's `device` points to."""
    path = os.path.join(root, "sys/class/drm", card, "device")
    return os.path.basename(os.path.realpath(path)) if os.path.islink(path) else ""


def _address(text: str) -> str:
    """Return a PCI address as /sys has it: `0000:1b:00.0` of `00000000:1B:00.0`."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
