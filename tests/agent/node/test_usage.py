"""Reading /proc, on texts as kernels print them and on this machine."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from hpc_elastic.agent.node.usage import (
    Reading,
    parse_cpu,
    parse_disks,
    parse_load,
    parse_memory,
    parse_network,
    parse_process,
    rates,
    read_usage,
)

NET = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0
  ib0:1000 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0
  eth0: 24 1 0 0 0 0 0 0 30 1 0 0 0 0 0 0
"""
DISKS = """   8       0 sda 10 0 100 5 20 0 200 5 0 5 10
   8       1 sda1 10 0 100 5 20 0 200 5 0 5 10
 259       0 nvme0n1 1 0 8 1 1 0 16 1 0 1 1
 259       1 nvme0n1p1 1 0 8 1 1 0 16 1 0 1 1
   7       0 loop0 1 0 8 1 1 0 16 1 0 1 1
 253       0 dm-0 1 0 8 1 1 0 16 1 0 1 1
"""


def test_waiting_for_a_disk_is_not_busy_and_guest_time_counts_once() -> None:
    assert parse_cpu("cpu  100 10 40 800 50 0 0 0 70 7\ncpu0 1 1 1 1 1 0 0 0 0 0\n") == (150, 1000)


def test_memory_that_the_kernel_can_give_up_is_not_used() -> None:
    assert parse_memory("MemTotal:  100 kB\nMemFree:  10 kB\nMemAvailable:  70 kB\n") == (30 * 1024, 100 * 1024)


def test_partitions_and_virtual_disks_are_not_counted_twice() -> None:
    assert parse_disks(DISKS) == (108 * 512, 216 * 512)


def test_the_loopback_is_no_network() -> None:
    assert parse_network(NET) == (1024, 230)


def test_a_process_may_have_any_name() -> None:
    fields = " ".join(["S", *map(str, range(4, 14)), "7", "2", "1", "0", *["9"] * 6, "123", "0"])
    assert parse_process(f"12 (a) b (c) {fields}") == (10, 123)


@pytest.mark.parametrize("parse", [parse_cpu, parse_memory, parse_disks, parse_network, parse_process, parse_load])
def test_what_is_missing_is_none(parse: object) -> None:
    assert callable(parse)
    assert parse("") is None


def test_no_proc_at_all_gives_a_reading_of_nones(tmp_path: Path) -> None:
    reading = read_usage([1, 2], at=3.0, proc=str(tmp_path))
    assert set(dataclasses.astuple(reading)[1:]) == {None}
    assert set(dataclasses.astuple(rates(reading, dataclasses.replace(reading, at=4.0)))) == {None}


def test_this_process_uses_memory_and_the_node_has_some() -> None:
    reading = read_usage([os.getpid()], at=0.0)
    assert reading.workers_memory is not None
    assert reading.memory is not None
    assert 0 < reading.workers_memory < reading.memory[1]
    assert reading.workers_cpu is not None


def test_rates_are_per_second_and_percent() -> None:
    before = a_reading(at=0.0)
    after = a_reading(at=10.0, cpu=(150, 1100), disk=(5000, 100), network=(10, 20000), workers_cpu=1000)
    usage = rates(before, after)
    assert usage.cpu_percent == 50.0
    assert (usage.disk_read, usage.disk_written) == (500.0, 10.0)
    assert (usage.network_received, usage.network_sent) == (1.0, 2000.0)
    assert usage.workers_cpu_percent == pytest.approx(100 * 1000 / os.sysconf("SC_CLK_TCK") / 10)


def test_a_counter_that_went_back_gives_no_rate() -> None:
    assert rates(a_reading(at=0.0, workers_cpu=5), a_reading(at=1.0, workers_cpu=4)).workers_cpu_percent is None


def test_there_is_no_rate_without_a_time_between() -> None:
    assert set(dataclasses.astuple(rates(None, a_reading(at=1.0)))) == {None}
    assert set(dataclasses.astuple(rates(a_reading(at=1.0), a_reading(at=1.0)))) == {None}


def a_reading(
    *,
    at: float,
    cpu: tuple[int, int] = (100, 1000),
    disk: tuple[int, int] = (0, 0),
    network: tuple[int, int] = (0, 0),
    workers_cpu: int = 0,
) -> Reading:
    return Reading(
        at=at,
        cpu=cpu,
        load=0.5,
        memory=(1, 2),
        disk=disk,
        network=network,
        workers_cpu=workers_cpu,
        workers_memory=1,
    )
