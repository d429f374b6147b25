"""Dataclasses to JSON and back, and what is said of JSON that does not fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.codec import DecodeError, from_json, to_json
from hpc_elastic.membership.ranks import Seat, assign_worker_ranks
from hpc_elastic.rundir.records import Endpoint, FailureRecord, RunResultRecord, World


class Colour(str, Enum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    number: int
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    name: str
    is_ready: bool
    kind: Literal["a", "b"]
    colour: Colour
    parts: tuple[Part, ...]
    by_name: Mapping[str, Part]
    count: int | tuple[int, ...]
    note: str | None = None
    extra: Any = None
    named_else: int = field(default=0, metadata={"json": "else"})


GOOD: dict[str, Any] = {
    "name": "x",
    "is_ready": True,
    "kind": "a",
    "colour": "red",
    "parts": [{"number": 1}],
    "by_name": {"p": {"number": 2, "share": 0.5}},
    "count": [1, 2],
}


def test_decodes_every_shape_that_records_use() -> None:
    assert from_json(Whole, GOOD) == Whole(
        name="x",
        is_ready=True,
        kind="a",
        colour=Colour.RED,
        parts=(Part(number=1),),
        by_name={"p": Part(number=2, share=0.5)},
        count=(1, 2),
    )


@given(
    st.builds(
        Whole,
        parts=st.lists(st.builds(Part, share=st.floats(allow_nan=False))).map(tuple),
        by_name=st.dictionaries(st.text(), st.builds(Part, share=st.floats(allow_nan=False))),
        extra=st.none() | st.lists(st.integers()),
    )
)
def test_a_value_comes_back_from_its_json(whole: Whole) -> None:
    assert from_json(Whole, json.loads(json.dumps(to_json(whole)))) == whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 7}, "name: expected str, found int"),
        ({"name": None}, "name: expected str, found NoneType"),
        ({"is_ready": 1}, "is_ready: expected bool, found int"),
        ({"kind": "c"}, "kind: expected one of a, b, found 'c'"),
        ({"kind": []}, "kind: expected one of a, b, found []"),
        ({"colour": "blue"}, "colour: expected one of red, green, found 'blue'"),
        ({"colour": []}, "colour: expected one of red, green, found []"),
        ({"parts": {"number": 1}}, "parts: expected a list, found dict"),
        ({"parts": [{"number": 1}, 7]}, "parts[1]: expected an object, found int"),
        ({"parts": [{"number": True}]}, "parts[0].number: expected int, found bool"),
        ({"parts": [{}]}, "parts[0].number: missing"),
        ({"by_name": []}, "by_name: expected an object, found list"),
        ({"by_name": {"p": {"number": 1, "share": "x"}}}, "by_name.p.share: expected float, found str"),
        ({"count": "x"}, "count: 'x' has none of the allowed types"),
        ({"note": 7}, "note: expected str, found int"),
        ({"else": "x"}, "else: expected int, found str"),
    ],
)
def test_decoding_names_the_field_and_what_was_expected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DecodeError) as caught:
        from_json(Whole, {**GOOD, **change})
    assert str(caught.value) == message


def test_decoding_rejects_what_is_no_object() -> None:
    with pytest.raises(DecodeError, match="Part: expected an object, found list"):
        from_json(Part, [])


def test_a_missing_field_without_a_default_is_named() -> None:
    with pytest.raises(DecodeError, match=r"^here\.number: missing$"):
        from_json(Part, {}, where="here")


def test_a_whole_number_is_a_float_where_one_is_expected() -> None:
    share = from_json(Part, {"number": 1, "share": 2}).share
    assert (share, type(share)) == (2.0, float)


def test_a_newer_writers_field_is_passed_over() -> None:
    assert from_json(Part, {"number": 1, "colour": "red"}) == Part(number=1)


def test_a_field_has_the_name_that_its_metadata_says() -> None:
    failure = FailureRecord(
        rank=0,
        local_rank=0,
        role="default",
        node="node0",
        attempt=1,
        pid=1,
        exitcode=1,
        signal_name=None,
        error_file="",
        message="",
        timestamp=1.5,
        failure_class="exception",
    )
    data = to_json(failure)
    assert data["class"] == "exception"
    assert "failure_class" not in data
    assert from_json(FailureRecord, data) == failure


def test_a_world_of_many_ranks_comes_back() -> None:
    endpoint = Endpoint(address="10.0.0.1", port=1)
    seats = [
        Seat(node=f"node{n}", node_id=n, agent=endpoint, store_port=1, workers=8, role="default") for n in range(64)
    ]
    world = assign_worker_ranks(seats, run="run", attempt=1, allocation=1, head="node0", restarts={})
    assert from_json(World, json.loads(json.dumps(to_json(world)))) == world


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
FIELDS = st.sampled_from([*to_json(Whole(**{**GOOD, "colour": Colour.RED, "parts": (), "by_name": {}})), "state"])


@pytest.mark.long
@given(st.dictionaries(FIELDS, JSON), st.sampled_from([Whole, RunResultRecord, World]))
def test_any_json_is_decoded_or_a_decode_error(data: Any, cls: type[Any]) -> None:
    try:
        found = from_json(cls, data)
    except DecodeError:
        return
    assert isinstance(found, cls)
