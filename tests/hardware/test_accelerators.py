"""How the accelerators of a node are found: by the vendor's tool, and by files where there is no tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.hardware.accelerators import find_accelerators, parse_addresses, parse_list
from hpc_elastic.hardware.device_lists import Device, Vendor
from tests.hardware.tools import fake_tool, no_tool
from tests.hardware.trees import DGX_LOCATED, DGX_SMI, Tree, lumi_g

TWO = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-8d5ba0d7)
"""
PARTS = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)
  MIG 3g.20gb     Device  0: (UUID: MIG-c7384736)
  MIG 3g.20gb     Device  1: (UUID: MIG-a28ad590)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-8d5ba0d7)
"""


@pytest.mark.parametrize(
    ("returncode", "stdout", "expected"),
    [
        (0, TWO, [("GPU-5d5ba0d6", ()), ("GPU-8d5ba0d7", ())]),
        (0, PARTS, [("GPU-5d5ba0d6", ("MIG-c7384736", "MIG-a28ad590")), ("GPU-8d5ba0d7", ())]),
        (0, "No devices found.\n", []),
        (0, "", []),
        (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", None),
    ],
)
def test_the_vendors_list(returncode: int, stdout: str, expected: list[tuple[str, tuple[str, ...]]] | None) -> None:
    found = parse_list(returncode, stdout)
    assert (None if found is None else [(device.name, device.parts) for device in found]) == expected


def test_pci_addresses_are_those_of_sys() -> None:
    stdout = "GPU-5d5ba0d6, 00000000:1B:00.0\nGPU-8d5ba0d7, 00000009:01:00.0\n[N/A]\n"
    assert parse_addresses(0, stdout) == {"GPU-5d5ba0d6": "0000:1b:00.0", "GPU-8d5ba0d7": "0009:01:00.0"}
    assert parse_addresses(6, stdout) == {}


def test_nvidias_tool_is_asked_where_gpus_are_only_if_that_matters(tmp_path: Path) -> None:
    plain = find_accelerators(fake_tool(DGX_SMI), root=str(tmp_path))
    located = find_accelerators(fake_tool(DGX_SMI, DGX_LOCATED), root=str(tmp_path), is_located=True)
    assert plain is not None
    assert located is not None
    assert [device.address for device in plain.devices] == [None] * 8
    assert located.devices[7].address == "0000:df:00.0"


def test_a_container_without_nvidias_tool_has_the_gpus_whose_device_files_it_has(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for minor, bus in ((1, "43"), (0, "1b"), (2, "52")):
        lines = ("Model: \t\t NVIDIA H100", f"GPU UUID: \t GPU-{minor}", f"Device Minor: \t {minor}")
        text = "\n".join(lines)
        tree.write(f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information", text)
    for minor in (0, 2):
        tree.write(f"dev/nvidia{minor}", "")
    listing = find_accelerators(no_tool, root=tree.root)
    assert listing is not None
    assert listing.devices == (
        Device(index=0, name="GPU-0", address="0000:1b:00.0"),
        Device(index=1, name="GPU-2", address="0000:52:00.0"),
    )


def test_amds_gpus_are_in_the_order_of_their_driver_and_without_those_that_are_denied(tmp_path: Path) -> None:
    tree = lumi_g(tmp_path)
    tree.kfd(6, "")  # a device cgroup that denies a GPU: nothing can be read
    listing = find_accelerators(no_tool, root=tree.root)
    assert listing is not None
    assert listing.vendor is Vendor.AMD
    assert [device.address for device in listing.devices[:3]] == ["0000:c1:00.0", "0000:c6:00.0", "0000:ce:00.0"]
    assert listing.devices[0].name == "GPU-000000000000abc0"
    assert listing.count == 7


def test_amds_gpus_are_found_by_pci_where_a_container_hides_the_driver(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for bus in ("c6", "c1"):
        tree.pci(f"0000:{bus}:00.0", 3, "48-63", vendor="0x1002", kind="0x038000")
    tree.pci("0000:01:00.0", 0, "0-7", vendor="0x1002", kind="0x030000")  # the screen of a desktop
    assert find_accelerators(no_tool, root=tree.root) is None
    tree.write("dev/kfd", "")
    listing = find_accelerators(no_tool, root=tree.root)
    assert listing is not None
    assert [device.address for device in listing.devices] == ["0000:c1:00.0", "0000:c6:00.0"]


def test_intels_cards_count_by_tiles_and_no_desktops_graphics_do(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for number, (address, kind) in enumerate((("0000:00:02.0", "0x030000"), ("0000:3a:00.0", "0x038000"))):
        tree.pci(address, 0, "0-7", vendor="0x8086", kind=kind)
        for tile in (0, 1):
            tree.write(f"sys/class/drm/card{number}/gt/gt{tile}/id", str(tile))
        (tmp_path / f"sys/class/drm/card{number}/device").symlink_to(tmp_path / f"sys/bus/pci/devices/{address}")
    listing = find_accelerators(no_tool, root=tree.root)
    assert listing is not None
    assert listing.vendor is Vendor.INTEL
    assert [(device.card, device.tile, device.address) for device in listing.devices] == [
        (0, 0, "0000:3a:00.0"),
        (0, 1, "0000:3a:00.0"),
    ]


def test_a_tool_that_finds_none_is_believed_and_one_that_fails_is_not(tmp_path: Path) -> None:
    none = find_accelerators(fake_tool("No devices were found\n"), root=str(tmp_path))
    assert none is not None
    assert none.devices == ()
    assert find_accelerators(lambda *_: (9, ""), root=str(tmp_path)) is None
