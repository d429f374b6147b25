"""Errors of GPUs in the kernel's log, and what they say about a failure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpc_elastic.failures.classes import FailureClass
from hpc_elastic.failures.classify import classify
from hpc_elastic.failures.evidence import FailureEvidence
from hpc_elastic.failures.xid import Xid, describe_xids, parse_xid

# As the driver of version 535 logs it.
BUS = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python3, GPU has fallen off the bus."
FAULT = "NVRM: Xid (PCI:0000:86:00): 31, pid=4711, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS"
CUDA = FailureEvidence(
    exit_code=1,
    written_by="bootstrap",
    exception_type="torch.AcceleratorError",
    message="AcceleratorError: CUDA error: an error that no rule knows",
    traceback='Traceback (most recent call last):\n  File "/home/ada/train.py", line 3, in <module>\n    x.item()\n'
    "torch.AcceleratorError: CUDA error: an error that no rule knows\n",
)


def test_a_record_of_the_driver_is_read() -> None:
    assert parse_xid(BUS) == Xid(number=79, device="0000:3b:00")
    assert parse_xid(FAULT) == Xid(number=31, device="0000:86:00")


@pytest.mark.parametrize(
    "record", ["", "NVRM: loading", "NVRM: Xid (PCI:): x", "Xid 79", "NVRM: Xid (PCI:0000:3b:00): "]
)
def test_other_records_are_none(record: str) -> None:
    assert parse_xid(record) is None


def test_those_of_the_gpu_itself_are_told_first_and_each_once() -> None:
    xids = [Xid(number=31, device="a:00"), *[Xid(number=79, device="b:00")] * 5, Xid(number=999, device="c:00")]
    assert describe_xids(xids).startswith("Xid 79 of GPU b:00: the GPU has fallen off the bus; Xid 31 of GPU a:00: ")
    assert describe_xids(xids).endswith("Xid 999 of GPU c:00")


def test_an_error_of_cuda_beside_one_of_the_gpu_is_the_hardwares() -> None:
    assert classify(CUDA).failure_class is FailureClass.CUDA_ERROR
    found = classify(replace(CUDA, xids=(Xid(number=79, device="0000:3b:00"),)))
    assert found.failure_class is FailureClass.CUDA_HARDWARE
    assert found.detail == "Xid 79 of GPU 0000:3b:00: the GPU has fallen off the bus"


def test_an_error_that_a_program_makes_is_told_and_blames_no_gpu() -> None:
    found = classify(replace(CUDA, xids=(Xid(number=31, device="0000:86:00"),)))
    assert found.failure_class is FailureClass.CUDA_ERROR
    assert found.detail.startswith("Xid 31 of GPU 0000:86:00: ")
