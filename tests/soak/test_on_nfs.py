"""The parts of the NFS machines that need no machine: the switch, the order of modules, what is read of an output."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm_sandbox.processes import SandboxError
from tests.soak.on_nfs.guests import Program
from tests.soak.on_nfs.kernel import Kernel
from tests.soak.on_nfs.scenes import lateness
from tests.soak.on_nfs.switch import Switch

ADDRESSES = {name: f"02:68:70:63:00:{number:02x}" for number, name in enumerate(("node1", "node2", "storage"), 1)}


def frame(to: str, content: bytes) -> bytes:
    return bytes.fromhex(ADDRESSES.get(to, "ff" * 6).replace(":", "")) + content


@pytest.fixture
def cables() -> Iterator[tuple[Switch, dict[str, socket.socket]]]:
    switch = Switch()
    ends = {name: switch.plug_in(name, address) for name, address in ADDRESSES.items()}
    for end in ends.values():
        end.settimeout(10)
    try:
        yield switch, ends
    finally:
        switch.close()
        for end in ends.values():
            end.close()


def test_a_frame_goes_to_the_machine_whose_address_it_has_and_one_to_all_goes_to_all_others(
    cables: tuple[Switch, dict[str, socket.socket]],
) -> None:
    _, ends = cables
    ends["node1"].send(frame("storage", b"one"))
    ends["node1"].send(frame("all", b"two"))
    assert ends["storage"].recv(100) == frame("storage", b"one")
    assert ends["storage"].recv(100) == ends["node2"].recv(100) == frame("all", b"two")


def test_a_cut_way_drops_what_goes_over_it_in_both_directions_until_it_is_mended(
    cables: tuple[Switch, dict[str, socket.socket]],
) -> None:
    switch, ends = cables
    switch.cut("node1", "storage")
    for sender, to in (("node1", "storage"), ("storage", "node1")):
        ends[sender].send(frame(to, b"lost"))
        ends[sender].send(frame("node2", b"here"))
        assert ends["node2"].recv(100) == frame("node2", b"here")
    switch.mend()
    ends["node1"].send(frame("storage", b"there"))
    assert ends["storage"].recv(100) == frame("storage", b"there")


def test_a_machine_without_its_cable_gets_nothing_and_disturbs_nobody(
    cables: tuple[Switch, dict[str, socket.socket]],
) -> None:
    switch, ends = cables
    switch.remove("storage")
    ends["node1"].send(frame("storage", b"lost"))
    ends["node1"].send(frame("node2", b"here"))
    assert ends["node2"].recv(100) == frame("node2", b"here")
    assert ends["storage"].recv(100) == b""


def test_modules_are_loaded_after_those_that_they_need_and_once(tmp_path: Path) -> None:
    needs = {
        "nfsd": "sunrpc,nfs-acl",
        "sunrpc": "",
        "nfs-acl": "sunrpc",
        "nfsv4": "sunrpc,nfs",
        "nfs": "sunrpc,built_in",
    }
    for name, others in needs.items():
        (tmp_path / f"{name}.ko").write_bytes(b"\0license=GPL\0depends=" + others.encode() + b"\0name=x\0")
    ordered = Kernel(program="linux", modules=str(tmp_path)).in_order("nfsd", "nfsv4", "ext4")
    assert [Path(path).stem for path in ordered] == ["sunrpc", "nfs-acl", "nfsd", "nfs", "nfsv4"]


def a_program(*outputs: str, code: int | None = None) -> Program:
    program = Program(1, lambda number, which: None)
    for output in outputs:
        program.hear({"output": base64.b64encode(output.encode()).decode()})
    if code is not None:
        program.hear({"code": code})
    return program


def test_the_lateness_of_a_step_is_from_when_it_was_to_when_its_line_was_whole() -> None:
    (step,) = lateness(a_program("hello\nstep 7 at 100", "0.5\n", "step 8 at 2"))
    assert step[0] == 7
    assert step[1] > 1e9  # since 1970


def test_a_program_that_ends_without_the_words_is_an_error_with_its_output() -> None:
    program = a_program("something else\n", code=3)
    assert program.wait() == 3
    with pytest.raises(SandboxError, match="something else"):
        program.wait_for("attempt 1", within_s=60)
