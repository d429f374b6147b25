"""Reads the variables that restrict which accelerators a process sees, as the vendors' runtimes do; pure.

Sources. NVIDIA, CUDA C++ Programming Guide, "CUDA Environment Variables", and torch 2.13, `_parse_visible_devices` and
`_device_count_nvml` of torch/cuda/__init__.py: a list counts up to its first entry that names no GPU, and for nothing
if an entry comes twice. AMD, "GPU isolation techniques" of the ROCm documentation: ROCR_VISIBLE_DEVICES comes first;
HIP_VISIBLE_DEVICES, or else CUDA_VISIBLE_DEVICES, counts among what that leaves. Intel, "Environment variables" of
Level Zero (ZE_AFFINITY_MASK, ZE_FLAT_DEVICE_HIERARCHY) and of DPC++ (ONEAPI_DEVICE_SELECTOR).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

CUDA, ROCR, HIP = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
ZE, ZE_HIERARCHY, ONEAPI = "ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY", "ONEAPI_DEVICE_SELECTOR"
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")
_ONEAPI_TERM = re.compile(r"(level_zero|\*):([0-9*][0-9.*,]*)")


class Vendor(str, Enum):
    """Whose accelerators they are, and so whose rules count."""

    NVIDIA = "NVIDIA"
    AMD = "AMD"
    INTEL = "Intel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator as the tools of its vendor number it.

    `name` is its UUID, as NVIDIA and AMD write them; `address` that of its PCI device, None if it is not known.
    `parts` are the UUIDs of the MIG parts of an NVIDIA GPU. `tile` is the part of an Intel card that counts as a device
    of its own; `card` the number of the whole.
    """

    index: int
    name: str = ""
    address: str | None = None
    parts: tuple[str, ...] = ()
    card: int | None = None
    tile: int | None = None

    def __str__(self) -> str:
        return f"GPU {self.index}" + (f" ({self.address})" if self.address else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The accelerators of one vendor that the node shows to this process, without regard to variables."""

    vendor: Vendor
    devices: tuple[Device, ...]

    @property
    def count(self) -> int:
        """Return how many devices a step can have of them: each MIG part is one."""
        return sum(max(1, len(device.parts)) for device in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleDevices:
    """The devices that a process sees, in its own order, and the variables that made the choice.

    A device is None if it is one that is named and not known, because nothing lists the node's. `variables` are as in
    an environment, `NAME=value`. `remark` says what is odd about them, if anything is. `cards` is their number where
    several devices may be of one card, as the tiles of Intel's, and a site may mean either by a GPU.
    """

    devices: tuple[Device | None, ...]
    variables: tuple[str, ...] = ()
    remark: str | None = None
    cards: int | None = None

    def __len__(self) -> int:
        return len(self.devices)

    def is_number(self, number: int) -> bool:
        """Return whether there are so many, as devices or as cards."""
        return number in (len(self), self.cards)


def select_devices(environ: Mapping[str, str], listing: Listing | None) -> VisibleDevices | None:
    """Return the devices that a process with this environment sees; None if nothing tells.

    Args:
        environ: the environment.
        listing: what the node shows; None if there is no tool and no file that would.
    """
    if listing is None:
        return _select_unlisted(environ)
    if listing.vendor is Vendor.AMD:
        return _select_amd(environ, listing.devices)
    if listing.vendor is Vendor.INTEL:
        return _select_intel(environ, listing.devices)
    return _select_nvidia(environ, listing.devices)


def _select_unlisted(environ: Mapping[str, str]) -> VisibleDevices | None:
    """Return as many devices as the first of the variables names."""
    for name in (CUDA, ROCR, HIP):
        if (text := environ.get(name)) is not None:
            return VisibleDevices(devices=(None,) * len(_entries(text)), variables=(f"{name}={text}",))
    masked = _masked(environ)
    if masked is None:
        return None
    cards = len({entry.partition(".")[0] for entry in masked[0]})
    return VisibleDevices(devices=(None,) * len(masked[0]), variables=(masked[1],), cards=cards)


def _select_nvidia(environ: Mapping[str, str], devices: Sequence[Device]) -> VisibleDevices:
    text = environ.get(CUDA)
    if text is None:
        return VisibleDevices(
            devices=tuple(part for device in devices for part in [device] * max(1, len(device.parts)))
        )
    chosen = _choose(_entries(text), [(device, device.name, device.parts) for device in devices])
    return VisibleDevices(devices=tuple(chosen), variables=(f"{CUDA}={text}",))


def _select_amd(environ: Mapping[str, str], devices: Sequence[Device]) -> VisibleDevices:
    left, variables, remark = list(devices), [], None
    first, second = environ.get(ROCR), next((name for name in (HIP, CUDA) if name in environ), None)
    if first is not None:
        left = _choose(_entries(first), [(device, device.name, ()) for device in left])
        variables.append(f"{ROCR}={first}")
    if second is not None:
        text = environ[second]
        chosen = _choose(_entries(text), [(device, device.name, ()) for device in left])
        variables.append(f"{second}={text}")
        if first is not None and len(chosen) < min(len(left), len(_entries(text))):
            remark = f"{second} counts among the {len(left)} that {ROCR} leaves: unset one of the two"
        left = chosen
    return VisibleDevices(devices=tuple(left), variables=tuple(variables), remark=remark)


def _select_intel(environ: Mapping[str, str], devices: Sequence[Device]) -> VisibleDevices:
    """Return the devices of Level Zero: each tile is one, unless the hierarchy is that of whole cards."""
    if environ.get(ZE_HIERARCHY, "").upper() == "COMPOSITE":
        devices = [device for device in devices if not device.tile]
    masked = _masked(environ)
    if masked is None:
        return VisibleDevices(devices=tuple(devices), cards=_count_cards(devices))
    chosen: list[Device] = []
    for entry in masked[0]:
        card, _, tile = entry.partition(".")
        is_flat = not tile and environ.get(ZE_HIERARCHY, "FLAT").upper() == "FLAT"
        for device in devices:
            is_it = device.index == int(card) if is_flat else device.card == int(card)
            if is_it and (not tile or device.tile == int(tile)) and device not in chosen:
                chosen.append(device)
    return VisibleDevices(devices=tuple(chosen), variables=(masked[1],), cards=_count_cards(chosen))


def _count_cards(devices: Sequence[Device]) -> int:
    return len({device.card for device in devices})


def _masked(environ: Mapping[str, str]) -> tuple[list[str], str] | None:
    """Return the entries of Intel's list and the variable; None if there is none, or it takes nothing away."""
    mask = environ.get(ZE)
    if mask:
        entries = [entry.strip() for entry in mask.split(",")]
        if all(re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4})?", entry) for entry in entries):
            return list(dict.fromkeys(entries)), f"{ZE}={mask}"
    selector = environ.get(ONEAPI, "")
    terms = [_ONEAPI_TERM.fullmatch(term.strip()) for term in selector.split(";")]
    entries = [entry for term in terms if term for entry in term[2].split(",") if entry]
    if entries and all(re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4})?", entry) for entry in entries):
        return list(dict.fromkeys(entries)), f"{ONEAPI}={selector}"
    return None


def _entries(text: str) -> list[int | str]:
    """Return the entries of a list of CUDA's or AMD's up to the first that is none; nothing if one comes twice.

    Words such as `NoDevFiles`, which Slurm writes, end a list. As in torch, `1gpu` is 1, and a list that begins with a
    UUID has only such.
    """
    found: list[int | str] = []
    is_by_name = text.strip().startswith(("GPU-", "MIG-"))
    for word in (word.strip() for word in text.split(",")):
        number = None if is_by_name else _NUMBER.match(word)
        entry = word if is_by_name and word.startswith(text.strip()[:4]) else int(number[0]) if number else -1
        if entry in found:
            return []
        if isinstance(entry, int) and entry < 0:
            break
        found.append(entry)
    return found


def _choose(entries: Sequence[int | str], devices: Sequence[tuple[Device, str, Sequence[str]]]) -> list[Device]:
    """Return the devices that entries name, up to the first that names none, or more than one."""
    chosen: list[Device] = []
    for entry in entries:
        if isinstance(entry, int):
            found = [devices[entry][0]] if entry < len(devices) else []
        elif entry.startswith("MIG-"):
            found = [device for device, name, parts in devices if _is_part(entry, name, parts)]
        else:
            found = [device for device, name, _ in devices if name.startswith(entry)]
        if len(found) != 1:
            break
        if not isinstance(entry, int) and not entry.startswith("MIG-") and found[0] in chosen:
            return []
        chosen.append(found[0])
    return chosen


def _is_part(entry: str, name: str, parts: Sequence[str]) -> bool:
    """Return whether a MIG part is one of this GPU: by its own UUID, or as `MIG-GPU-<uuid>/<gi>/<ci>` (before R470)."""
    return entry in parts or (bool(name) and entry.startswith(f"MIG-{name}/"))
