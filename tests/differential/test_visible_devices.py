"""Our reading of CUDA_VISIBLE_DEVICES beside torch's own, on lists that nobody should write and some do."""

from __future__ import annotations

import pytest

from hpc_elastic.hardware.device_lists import Device, Listing, Vendor, select_devices

torch = pytest.importorskip("torch")

UUIDS = ["GPU-0aaa-0", "GPU-1aaa-1", "GPU-1aab-2", "GPU-3aaa-3"]
NODE = Listing(vendor=Vendor.NVIDIA, devices=tuple(Device(index=n, name=name) for n, name in enumerate(UUIDS)))
LISTS = (
    *("0,1", "0,1,2,3", "3,2,1,0", "", "-1", "0,-1,1", "7", "0,9,1", "1,1", "NoDevFiles", "none", " 1 , 2", "+1,2"),
    *("1gpu2,2ampere", "00,01", "0x1,2", "GPU-0aaa", "GPU-1aa", "GPU-1aab,GPU-0aaa-0", "GPU-0aaa,2", "2,GPU-0aaa"),
    *("GPU-0aaa,GPU-0aaa", "GPU-0aaa,GPU-0aaa-0", "GPU-ffff,GPU-0aaa", "0,,1", ",0", "0.5,1"),
)


@pytest.mark.parametrize("value", LISTS)
def test_the_devices_of_a_list_are_those_that_torch_counts(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    found = torch.cuda._parse_visible_devices()
    if found and isinstance(found[0], str):
        expected = torch.cuda._transform_uuid_to_ordinals(found, UUIDS)
    else:  # as `_device_count_nvml` goes on
        expected = found[: next((n for n, number in enumerate(found) if number >= len(UUIDS)), len(found))]
    seen = select_devices({"CUDA_VISIBLE_DEVICES": value}, NODE)
    assert seen is not None
    assert [device.index for device in seen.devices if device is not None] == expected
