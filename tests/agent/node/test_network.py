"""A node's own address, and its listening sockets, on the real interfaces of this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from hpc_elastic.agent.node.network import (
    Lookup,
    PortTakenError,
    interface_addresses,
    interface_of,
    is_own_address,
    listen,
    listen_on_first,
    own_address,
    resolve_node,
)
from hpc_elastic.errors import AllocationError
from hpc_elastic.plan.launch_plan import NetworkPlan
from hpc_elastic.scheduler.allocation import Allocation


def a_place(*nodes: str, is_local: bool = False) -> Allocation:
    return Allocation(
        job_id="42",
        restart_count=0,
        array_task=None,
        node_id=0,
        nodes=nodes or ("no-such-node.invalid",),
        is_local=is_local,
    )


def test_the_loopback_interface_holds_its_address() -> None:
    assert ("lo", "127.0.0.1") in list(interface_addresses())
    assert interface_of("127.0.0.5") == "lo"
    assert interface_of("192.0.2.1") is None


def test_every_address_is_on_the_interface_that_holds_it() -> None:
    for name, address in interface_addresses():
        assert interface_of(address) == name


def test_a_local_node_has_a_loopback_address_of_its_own() -> None:
    assert own_address(a_place("local0", is_local=True), NetworkPlan()) == "127.0.0.2"


def test_the_sites_interface_decides() -> None:
    assert own_address(a_place(), NetworkPlan(interface="lo")) == "127.0.0.1"


def test_an_interface_that_is_not_here_is_rejected_naming_those_that_are() -> None:
    with pytest.raises(AllocationError, match=r"network\.interface ib7 has no IPv4 address on node1") as caught:
        own_address(a_place("node1"), NetworkPlan(interface="ib7"))
    assert caught.value.tip is not None
    assert "lo" in caught.value.tip


ASKS = """
from hpc_elastic.agent.node.network import own_address
from hpc_elastic.errors import AllocationError
from hpc_elastic.plan.launch_plan import NetworkPlan
from tests.agent.node.test_network import a_place
try:
    own_address(a_place("node1", "node2"), NetworkPlan())
except AllocationError as error:
    print(error.message)
"""


@pytest.mark.long
def test_a_node_without_ipv4_says_that_it_lacks_that() -> None:
    apart = ["unshare", "--net"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespaces here")
    done = subprocess.run([*apart, sys.executable, "-c", ASKS], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("node1 has no IPv4 address but that of the loopback interface")


def test_a_name_that_means_nothing_has_no_address() -> None:
    assert resolve_node("", NetworkPlan(hostname_transform=".")).addresses == ()


def test_a_name_that_means_nothing_is_told_in_the_resolvers_words() -> None:
    assert resolve_node("no-such-node.invalid", NetworkPlan()).error


def test_a_name_server_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answer.wait(20) and [])
    lookup = resolve_node("node1", NetworkPlan(), within_s=0.01)
    assert lookup == Lookup(error="no answer of the name server within 0 s")
    answer.set()


def test_the_sites_suffix_is_tried_first() -> None:
    assert resolve_node("local", NetworkPlan(hostname_transform="host")).addresses[0] == "127.0.0.1"


def test_takes_the_first_port_that_is_free() -> None:
    with listen("127.0.0.1", 0) as taken, listen("127.0.0.1", 0) as other:
        taken_port, free = taken.getsockname()[1], other.getsockname()[1]
        other.close()
        with listen_on_first("127.0.0.1", [taken_port, free]) as bound:
            assert bound.getsockname()[1] == free


def test_no_free_port_is_an_error_with_the_range() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AllocationError, match=f"none of 1 ports between {port} and {port} is free on 127.0.0.1"):
            listen_on_first("127.0.0.1", [port])


def test_a_taken_port_is_told_from_an_address_that_is_not_ours() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(PortTakenError):
        listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(AllocationError, match=r"cannot listen on 192\.0\.2\.1:1"):
        listen("192.0.2.1", 1)


def test_a_listening_socket_takes_clients_before_anybody_accepts() -> None:
    with listen("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname(), timeout=5):
        pass


def test_the_launch_host_is_known_by_its_address() -> None:
    held = [address for name, address in interface_addresses() if name != "lo"]
    assert all(map(is_own_address, held))
    strangers = ("192.0.2.1", "2001:db8::1", "127.0.0.1", "::1", "", "node1", "300.1.1.1")  # two of RFC 5737 and 3849
    assert not any(map(is_own_address, strangers))
