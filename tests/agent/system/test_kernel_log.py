"""The kernel's log as far as it can be read."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from hpc_elastic.agent.system.kernel_log import KernelLogEnd, read_kernel_log
from hpc_elastic.agent.workers.circumstances import Circumstances
from hpc_elastic.failures.xid import Xid


def test_a_node_without_a_readable_log_has_no_records(tmp_path: Path) -> None:
    end = KernelLogEnd(str(tmp_path))
    end.skip()
    assert (list(read_kernel_log(str(tmp_path))), list(end.read())) == ([], [])


def test_records_are_read_without_what_stands_before_their_texts(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kmsg").write_text("6,17,250,-;NVRM: loading\n")
    assert list(read_kernel_log(str(tmp_path))) == ["NVRM: loading\n"]


def test_the_end_of_the_real_log_has_what_came_after_it_was_marked() -> None:
    if not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        pytest.skip("the kernel's log cannot be read and written here")
    end, earlier, later = KernelLogEnd(), f"earlier {uuid.uuid4()}", f"later {uuid.uuid4()}"
    write_to_kernel_log(earlier)
    end.skip()
    write_to_kernel_log(later)
    found = "".join(end.read())
    assert (earlier in found, later in found) == (False, True)
    assert later not in "".join(end.read())
    whole = "".join(read_kernel_log())
    assert whole.index(earlier) < whole.index(later)


def write_to_kernel_log(text: str) -> None:
    with open("/dev/kmsg", "w") as log:
        log.write(f"{text}\n")  # a record without an end can be read with the next one only


def test_errors_of_gpus_since_the_start_of_the_attempt_are_found(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    log = tmp_path / "dev" / "kmsg"
    log.write_text("3,17,250,-;NVRM: Xid (PCI:0000:3b:00): 48, an old one\n")
    circumstances = Circumstances(str(tmp_path), root=str(tmp_path))
    circumstances.mark()
    assert circumstances.measure(1, 1, "RuntimeError: CUDA error: unknown error").xids == ()
    with log.open("a") as file:
        file.write("3,18,300,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    fallen = (Xid(number=79, device="0000:3b:00"),)
    assert circumstances.measure(1, 1, "ValueError: bad batch").xids == ()
    assert circumstances.measure(1, 1, "RuntimeError: CUDA error: unknown error").xids == fallen
    assert circumstances.measure(2, 1, "RuntimeError: NCCL error").xids == fallen  # of another rank
    circumstances.mark()
    assert circumstances.measure(3, 1, "RuntimeError: CUDA error: unknown error").xids == ()
