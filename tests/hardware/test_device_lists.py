"""Which devices a process sees by its variables, of each vendor, as the vendors' runtimes and torch have it."""

from __future__ import annotations

import pytest

from hpc_elastic.hardware.device_lists import Device, Listing, Vendor, VisibleDevices, select_devices

CUDA, ROCR, HIP = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
FOUR = tuple(Device(index=n, name=f"GPU-{n}aaa-{n}") for n in range(4))
PARTED = (
    Device(index=0, name="GPU-0aaa", parts=("MIG-c738", "MIG-a28a")),
    Device(index=1, name="GPU-1aaa"),
)
PONTE_VECCHIO = tuple(Device(index=2 * card + tile, card=card, tile=tile) for card in range(3) for tile in range(2))


def indices(seen: VisibleDevices | None) -> list[int | None]:
    assert seen is not None
    return [None if device is None else device.index for device in seen.devices]


def nvidia(value: str | None, devices: tuple[Device, ...] = FOUR) -> list[int | None]:
    environ = {} if value is None else {CUDA: value}
    return indices(select_devices(environ, Listing(vendor=Vendor.NVIDIA, devices=devices)))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("0,1", [0, 1]),
        ("3, 0", [3, 0]),
        ("0,-1,2", [0]),  # what follows the first that is none does not count
        ("0,7,2", [0]),
        ("4,5", []),  # the node's numbers, where a cgroup shows four GPUs as 0 to 3
        ("1,1", []),
        ("", []),
        ("NoDevFiles", []),
        ("-1", []),
        ("1gpu2,2ampere", [1, 2]),
        ("GPU-2aaa,GPU-0aaa-0", [2, 0]),
        ("GPU-", []),  # not one GPU alone
        ("GPU-2aaa,1", [2]),
        ("GPU-0aaa,GPU-9999,GPU-1aaa", [0]),
        ("GPU-0aaa,GPU-0aaa-0", []),
        ("MIG-c738", []),
    ],
)
def test_a_list_of_cudas_counts_up_to_its_first_entry_that_is_none(value: str | None, expected: list[int]) -> None:
    assert nvidia(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 0, 1]),  # each MIG part is one of the step's devices
        ("MIG-a28a,MIG-c738", [0, 0]),
        ("MIG-a28a,MIG-ffff,MIG-c738", [0]),
        ("MIG-GPU-0aaa/1/0,MIG-GPU-0aaa/2/0", [0, 0]),  # as drivers before R470 name them
        ("1", [1]),
    ],
)
def test_mig_parts_belong_to_their_gpu(value: str | None, expected: list[int]) -> None:
    assert nvidia(value, PARTED) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({ROCR: "2,3"}, [2, 3]),
        ({ROCR: "GPU-3aaa,GPU-0aaa"}, [3, 0]),
        ({HIP: "1"}, [1]),
        ({CUDA: "1,2"}, [1, 2]),
        ({ROCR: "2,3", HIP: "1"}, [3]),  # HIP counts among what ROCR leaves
        ({HIP: "0", CUDA: "1,2"}, [0]),
        ({ROCR: ""}, []),
    ],
)
def test_amds_lists_are_read_one_after_the_other(environ: dict[str, str], expected: list[int]) -> None:
    assert indices(select_devices(environ, Listing(vendor=Vendor.AMD, devices=FOUR))) == expected


def test_two_lists_of_slurms_that_leave_nothing_are_said() -> None:
    seen = select_devices({ROCR: "2,3", CUDA: "2,3"}, Listing(vendor=Vendor.AMD, devices=FOUR))
    assert indices(seen) == []
    assert seen is not None
    assert seen.remark == f"{CUDA} counts among the 2 that {ROCR} leaves: unset one of the two"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, [0, 2, 4]),
        ({"ZE_AFFINITY_MASK": "0,3"}, [0, 3]),
        ({"ZE_AFFINITY_MASK": "0,2", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, [0, 4]),
        ({"ZE_AFFINITY_MASK": "0.1,2", "ZE_FLAT_DEVICE_HIERARCHY": "COMBINED"}, [1, 4, 5]),
        ({"ONEAPI_DEVICE_SELECTOR": "level_zero:1,2;opencl:*"}, [1, 2]),
        ({"ONEAPI_DEVICE_SELECTOR": "level_zero:*"}, [0, 1, 2, 3, 4, 5]),
        ({"ONEAPI_DEVICE_SELECTOR": "level_zero:gpu;!level_zero:0"}, [0, 1, 2, 3, 4, 5]),
        ({"ZE_AFFINITY_MASK": "what"}, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_intels_masks_name_cards_or_tiles(environ: dict[str, str], expected: list[int]) -> None:
    assert indices(select_devices(environ, Listing(vendor=Vendor.INTEL, devices=PONTE_VECCHIO))) == expected


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, None),
        ({CUDA: "0,1"}, 2),
        ({CUDA: "GPU-5d5ba0d6"}, 1),
        ({CUDA: "MIG-1,MIG-2"}, 2),
        ({CUDA: "-1"}, 0),
        ({ROCR: "0,1"}, 2),
        ({"ZE_AFFINITY_MASK": "0.0,0.1,1"}, 3),
    ],
)
def test_the_variables_alone_tell_how_many_there_are_if_nothing_lists_them(
    environ: dict[str, str], count: int | None
) -> None:
    seen = select_devices(environ, None)
    assert (None if seen is None else len(seen)) == count


def test_a_node_counts_each_mig_part() -> None:
    assert Listing(vendor=Vendor.NVIDIA, devices=PARTED).count == 3
