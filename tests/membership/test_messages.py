"""Messages to and from JSON, for all values, and what is no message."""

from __future__ import annotations

import contextlib
import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.codec import DecodeError
from hpc_elastic.membership.messages import Assign, Beat, Message, StopManner, decode_message, encode_message
from hpc_elastic.rundir.records import Endpoint, FailureRecord

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
for record in (Endpoint, FailureRecord):
    st.register_type_strategy(record, st.builds(record))
ANY_MESSAGE = st.one_of(*map(st.builds, get_args(Message))).filter(lambda message: "nan" not in repr(message))


@given(ANY_MESSAGE)
def test_every_message_arrives_as_it_was_sent(message: Message) -> None:
    wire = json.loads(json.dumps(encode_message(message)))
    assert decode_message(wire) == message


@given(JSON)
def test_decoding_rejects_what_is_no_message(data: Any) -> None:
    with pytest.raises(DecodeError):
        decode_message(data)


@pytest.mark.long
@given(st.sampled_from(sorted(kind.KIND for kind in get_args(Message))), st.dictionaries(st.text(), JSON))
def test_decoding_any_fields_raises_nothing_but_a_decode_error(kind: str, fields: dict[str, Any]) -> None:
    with contextlib.suppress(DecodeError):
        assert kind == decode_message({**fields, "type": kind}).KIND


def test_decoding_names_the_field_that_is_wrong() -> None:
    with pytest.raises(DecodeError, match=r"beat\.number: expected int, found str"):
        decode_message({"type": "beat", "number": "1"})
    with pytest.raises(DecodeError, match=r"stop\.manner: expected one of restart, grace, loss, fence, found 'soon'"):
        decode_message({"type": "stop", "attempt": 1, "manner": "soon", "reason": ""})


def test_a_newer_senders_field_is_passed_over() -> None:
    assert decode_message({"type": "beat", "number": 1, "load": 0.5}) == Beat(number=1)


def test_each_kind_has_a_name_of_its_own() -> None:
    kinds = get_args(Message)
    assert len({kind.KIND for kind in kinds}) == len(kinds)
    assert Assign.KIND == "assign"
    assert {manner.value for manner in StopManner} == {"restart", "grace", "loss", "fence"}
