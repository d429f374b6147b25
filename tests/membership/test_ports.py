"""The port sequence of an allocation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.membership.ports import port_sequence


@given(st.text(), st.text(), st.integers(1024, 65535), st.integers(0, 40000))
def test_ports_are_distinct_and_in_the_range(run: str, job_id: str, first: int, width: int) -> None:
    last = min(65535, first + width)
    ports = port_sequence(run, job_id, (first, last))
    assert len(ports) == len(set(ports)) == min(16, last - first + 1)
    assert all(first <= port <= last for port in ports)


def test_every_node_derives_the_same_sequence() -> None:
    assert port_sequence("run", "42", (20000, 32000)) == port_sequence("run", "42", (20000, 32000))


def test_two_jobs_start_at_different_ports() -> None:
    firsts = {port_sequence("run", str(job), (20000, 32000))[0] for job in range(50)}
    assert len(firsts) > 45


def test_a_range_of_one_port_has_one() -> None:
    assert port_sequence("run", "42", (20000, 20000)) == [20000]
