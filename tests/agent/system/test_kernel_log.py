"""The kernel's log as far as it can be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.agent.system.kernel_log import read_kernel_log
from hpc_elastic.agent.workers.circumstances import Circumstances
from hpc_elastic.failures.xid import Xid


def test_a_node_without_a_readable_log_has_no_records(tmp_path: Path) -> None:
    assert list(read_kernel_log(str(tmp_path))) == []


def test_records_have_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kmsg").write_text("6,17,250,-;NVRM: loading\n")
    assert [number for number, _ in read_kernel_log(str(tmp_path))] == [17]
    assert list(read_kernel_log(str(tmp_path), after=17)) == []


def test_the_real_log_is_read_in_order_and_ends() -> None:
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("the kernel's log cannot be read here")
    numbers = [number for number, _ in read_kernel_log()]
    assert numbers == sorted(numbers)
    later = [number for number, _ in read_kernel_log(after=numbers[-1])] if numbers else []
    assert all(number > numbers[-1] for number in later)


def test_errors_of_gpus_since_the_start_of_the_attempt_are_found(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    log = tmp_path / "dev" / "kmsg"
    log.write_text("3,17,250,-;NVRM: Xid (PCI:0000:3b:00): 48, an old one\n")
    circumstances = Circumstances(str(tmp_path), root=str(tmp_path))
    circumstances.mark()
    assert circumstances.measure(1, 1, "RuntimeError: CUDA error: unknown error").xids == ()
    log.write_text("3,18,300,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    found = circumstances.measure(1, 1, "RuntimeError: CUDA error: unknown error")
    assert found.xids == (Xid(number=79, device="0000:3b:00"),)
    assert circumstances.measure(1, 1, "ValueError: bad batch").xids == ()
