"""States as bytes: safetensors' layout, every type comes back, and what cannot be kept is named by its place."""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from collections import OrderedDict
from typing import Any

import pytest

pytest.importorskip("torch", reason="there is no torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.worker.state_encoding import DEEPEST, MOST_BITS, StateError, decode_state, encode_state

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=600)
KEYS = st.text() | st.integers(min_value=2) | st.none()
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


def as_bytes(state: object) -> bytearray:
    encoded = encode_state(state)
    data = bytearray(encoded.length)
    encoded.write(ctypes.addressof(ctypes.c_char.from_buffer(data)))
    return data


def round_trip(state: object) -> Any:
    return decode_state(memoryview(as_bytes(state)))


@given(TREES)
def test_a_tree_comes_back_as_it_was(tree: object) -> None:
    assert repr(round_trip(tree)) == repr(tree)


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.float8_e5m2, torch.float8_e4m3fn),
    ],
)
def test_a_tensor_of_any_type_comes_back_bit_by_bit(dtype: torch.dtype) -> None:
    raw = torch.arange(96, dtype=torch.uint8) % 2
    tensor = raw.view(dtype).reshape(2, -1)
    found = round_trip({"w": tensor})["w"]
    assert (found.dtype, found.shape) == (dtype, tensor.shape)
    assert torch.equal(found.flatten().view(torch.uint8), raw)


@pytest.mark.parametrize(
    "tensor",
    [
        *(torch.tensor(3.5), torch.empty(0, 4), torch.arange(12).reshape(3, 4).t(), torch.arange(10)[::3]),
        *(torch.nn.Parameter(torch.ones(3)), torch.ones(2, requires_grad=True) * 2),
        torch.tensor([1 + 2j]).conj(),
    ],
)
def test_a_tensor_of_any_shape_comes_back(tensor: torch.Tensor) -> None:
    found = round_trip([tensor])[0]
    assert type(found) is torch.Tensor
    assert found.is_contiguous()
    assert torch.equal(found, tensor.detach())


def test_what_is_loaded_does_not_share_memory_with_the_state() -> None:
    data = as_bytes(torch.ones(4))
    found = decode_state(memoryview(data))
    data[-16:] = bytes(16)
    assert found.tolist() == [1, 1, 1, 1]


@pytest.mark.long
def test_the_states_of_an_optimizer_and_a_module_come_back() -> None:
    module = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(3)).sum().backward()
    optimizer.step()
    found = round_trip({"model": OrderedDict(module.state_dict()), "optimizer": optimizer.state_dict()})
    twin = torch.nn.Linear(3, 2)
    again = torch.optim.AdamW(twin.parameters())
    twin.load_state_dict(found["model"])
    again.load_state_dict(found["optimizer"])
    assert torch.equal(twin.weight, module.weight)
    assert str(again.state_dict()) == str(optimizer.state_dict())


def test_a_schedule_by_milestones_goes_on_behind_another_one() -> None:
    """At the change SequentialLR has MultiStepLR compute its rate anew, from milestones that are a Counter."""

    def make_schedule() -> torch.optim.lr_scheduler.SequentialLR:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        warmup = torch.optim.lr_scheduler.ConstantLR(optimizer)
        return torch.optim.lr_scheduler.SequentialLR(
            optimizer, [warmup, torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])], milestones=[3]
        )

    def rates(schedule: torch.optim.lr_scheduler.SequentialLR) -> list[float]:
        found = []
        for _ in range(8):
            schedule.optimizer.step()
            schedule.step()
            found.extend(schedule.get_last_lr())
        return found

    schedule, again = make_schedule(), make_schedule()
    again.load_state_dict(round_trip(schedule.state_dict()))
    assert rates(again) == rates(schedule)


def test_the_bytes_are_laid_out_as_safetensors_asks() -> None:
    """Its reader refuses gaps, overlaps and a header that is not aligned."""
    data = as_bytes({"a": torch.ones(3, dtype=torch.int8), "b": torch.ones(2, dtype=torch.float64), "c": b"x" * 300})
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert size % 8 == 0
    assert list(header.pop("__metadata__")) == ["tree"]
    spans = sorted(entry["data_offsets"] for entry in header.values())
    assert [begin for begin, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == len(data) - 8 - size
    assert [entry["dtype"] for entry in header.values()] == ["F64", "I8", "U8"]


@pytest.mark.long
def test_a_state_of_many_tensors_gives_the_garbage_collector_little_to_go_through() -> None:
    """Its full collections took more than half of the time of a save of thousands of small tensors."""
    state = {"w": [{"step": torch.ones(1), "average": torch.ones(2)} for _ in range(1000)]}
    thresholds, after = gc.get_threshold(), 100
    gc.collect()
    before = gc.get_stats()[0]["collections"]
    gc.set_threshold(after, 1 << 30, 1 << 30)
    try:
        encoded = encode_state(state)
        objects = (gc.get_stats()[0]["collections"] - before) * after
    finally:
        gc.set_threshold(*thresholds)
    assert len(encoded.pieces) == 2000
    assert objects / len(encoded.pieces) < 6  # the piece, where it lies, the tensor and its shape


class _Own:
    pass


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            {"optimizer": {"state": [{"fn": _Own()}]}},
            "state['optimizer']['state'][0]['fn']: found tests.worker.test_state_encoding._Own; expected dicts",
        ),
        ({"f": print}, "state['f']: found builtin_function_or_method; expected dicts"),
        ({_Own: 1}, "found the key <class"),
        ({"e": {1, 2}}, "state['e']: found set; expected dicts"),
        ({"s": torch.eye(2).to_sparse()}, "state['s']: found a torch.sparse_coo tensor, expected a dense one"),
        ({"m": torch.ones(2, device="meta")}, "state['m']: found a meta tensor, expected a dense one"),
        ({"n": 1 << MOST_BITS}, "state['n']: found a number of 8193 bits, expected at most 8192"),
        ({"k": {1 << MOST_BITS: 2}}, "state['k']: found a number of 8193 bits, expected at most 8192"),
        (({"x": 1 + 2j},), "state[0]['x']: found complex; expected dicts"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_place(state: object, message: str) -> None:
    with pytest.raises(StateError) as caught:
        encode_state(state)
    assert str(caught.value).startswith("memory.save: state")
    assert message in str(caught.value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(StateError, match=r"state\['n'\]: found a nested tensor, expected a dense one"):
        encode_state({"n": nested})


def test_a_state_that_holds_itself_is_refused() -> None:
    state: dict[str, object] = {}
    state["self"] = [state]
    with pytest.raises(StateError, match=r"found more than 100 levels, which a state that holds itself has"):
        encode_state(state)


def test_a_key_of_too_many_levels_is_refused() -> None:
    key: tuple[object, ...] = ()
    for _ in range(2000):
        key = (key,)
    with pytest.raises(StateError, match="found more than 100 levels"):
        encode_state({key: 1})


@pytest.mark.parametrize("kept", [0, 4000])
def test_a_tensor_whose_memory_is_freed_is_refused(kept: int) -> None:
    """FSDP frees so what it has gathered; to copy it would end the process with a SIGSEGV."""
    tensor = torch.ones(2000)
    tensor.untyped_storage().resize_(kept)
    with pytest.raises(StateError, match=r"state\['w'\]: found a tensor whose memory is freed"):
        encode_state({"w": tensor})


def test_a_tensor_that_torch_func_transforms_is_refused_by_its_place() -> None:
    def save_inside(tensor: torch.Tensor) -> torch.Tensor:
        encode_state({"w": [tensor]})
        return tensor

    with pytest.raises(StateError, match=r"state\['w'\]\[0\]: found a tensor without numbers of its own"):
        torch.vmap(save_inside)(torch.ones(2, 2))


def test_zeros_without_memory_come_back_as_zeros() -> None:
    """What torch makes of a derivative that is known to be 0; to copy it would end the process with a SIGSEGV."""
    zeros = torch._efficientzerotensor((2, 3))
    assert torch.equal(round_trip({"w": zeros})["w"], torch.zeros(2, 3))


def test_a_masked_array_is_refused_because_its_mask_would_be_lost() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(StateError, match=r"state\['m'\]: found a masked array; its .data and .mask can be saved"):
        encode_state({"m": numpy.ma.masked_array([1, 2], mask=[0, 1])})


def test_bytes_that_can_be_changed_come_back_as_such() -> None:
    state = {"short": bytearray(b"ab"), "long": bytearray(1000), "fixed": b"ab"}
    assert repr(round_trip(state)) == repr(state)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_an_array_that_computes_in_another_way_is_refused() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(
        StateError, match=r"state\['m'\]: found a numpy\.matrix; what numpy\.asarray\(\) makes of it can"
    ):
        encode_state({"m": numpy.matrix([[1, 2]])})


def test_as_many_levels_as_are_allowed_come_back() -> None:
    state: object = 7
    for _ in range(DEEPEST):
        state = {"a": state}
    assert round_trip(state) == state


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 64, b"\x02\0\0\0\0\0\0\0{}", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]", b"\x01\0\0\0\0\0\0\x007"]
)
def test_bytes_that_are_no_state_are_refused(data: bytes) -> None:
    with pytest.raises(StateError, match="found bytes that are no state"):
        decode_state(memoryview(bytearray(data)))


def test_importing_memory_imports_neither_torch_nor_numpy() -> None:
    source = (
        "import sys; from hpc_elastic import memory; print(memory.load(), memory.save(1, {'a': [1]}), "
        "sorted(memory.random_state()), {'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "(None, None) None ['python'] set()\n"
