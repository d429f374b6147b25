"""A WorkerSpec takes what torch's takes, and says what is wrong where torch's says nothing."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from hpc_elastic.elastic import Std, WorkerSpec
from hpc_elastic.errors import HpcElasticError, WorkerSpecError


def train() -> None:
    """An entrypoint."""


def test_spec_has_torchs_defaults() -> None:
    spec = WorkerSpec(role="trainer", local_world_size=2, entrypoint=train)
    assert (spec.args, spec.max_restarts, spec.monitor_interval) == ((), 3, 0.1)
    assert (spec.master_addr, spec.master_port, spec.local_addr) == (None, None, None)
    assert (spec.redirects, spec.tee) == (Std.NONE, Std.NONE)


@pytest.mark.parametrize(
    ("entrypoint", "name"),
    [
        (train, "train"),
        (json.JSONDecoder.decode, "JSONDecoder.decode"),
        ("/opt/bin/train.py", "train.py"),
        ("echo", "echo"),
        (functools.partial(train), "partial"),
    ],
)
def test_entrypoint_name_is_qualified_name_or_base_name(entrypoint: Any, name: str) -> None:
    assert WorkerSpec(role="trainer", local_world_size=1, entrypoint=entrypoint).get_entrypoint_name() == name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"role": ""}, "role: expected a name, found an empty one"),
        ({"local_world_size": 0}, "local_world_size: expected at least 1 worker, found 0"),
        ({"max_restarts": -1}, "max_restarts: expected 0 or more, found -1"),
        ({"monitor_interval": 0}, "monitor_interval: expected more than 0 seconds, found 0"),
        ({"monitor_interval": float("inf")}, "monitor_interval: expected more than 0 seconds, found inf"),
        ({"monitor_interval": float("nan")}, "monitor_interval: expected more than 0 seconds, found nan"),
        ({"entrypoint": ""}, "entrypoint: expected a function or a name, found ''"),
        ({"entrypoint": None}, "entrypoint: expected a function or a name, found None"),
        ({"master_port": 0}, "master_port: expected 1 to 65535, found 0"),
        ({"master_port": 65536}, "master_port: expected 1 to 65535, found 65536"),
        ({"tee": {0: Std.ALL, 2: Std.OUT}}, "tee: expected local ranks from 0 to 1, found 2"),
        ({"redirects": {-1: Std.ALL}}, "redirects: expected local ranks from 0 to 1, found -1"),
    ],
)
def test_spec_rejects_what_makes_no_sense(given: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkerSpecError) as caught:
        WorkerSpec(**{"role": "trainer", "local_world_size": 2, "entrypoint": train, **given})
    assert caught.value.message == message
    assert isinstance(caught.value, (HpcElasticError, ValueError))


def test_streams_are_given_for_all_workers_or_by_local_rank() -> None:
    spec = WorkerSpec(role="trainer", local_world_size=2, entrypoint=train, redirects=Std.ALL, tee={1: Std.ERR})
    assert spec.redirects == Std.OUT | Std.ERR
    assert spec.tee == {1: Std.ERR}
