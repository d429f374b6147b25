"""Turns a training state into bytes and back: safetensors' layout, with the tree of the state as JSON beside it.

The bytes are those of a safetensors file: the length of a JSON header in eight bytes, the header, and the tensors one
behind the other (https://github.com/huggingface/safetensors). What is no tensor, and where each tensor belongs, stands
as JSON text under `tree` in the header's `__metadata__`. Nothing is pickled, so that reading a state runs no code.

torch and numpy are taken from `sys.modules`: a state holds tensors of theirs only where they are imported.
"""

from __future__ import annotations

import base64
import ctypes
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from hpc_elastic.worker.device_copy import DeviceCopy, host_tensor
from hpc_elastic.worker.parallel_copy import Span, copy_spans

LENGTH_BYTES = 8
DEEPEST = 100  # levels of a state
SHOWN = 100  # characters of the path to a level that is too deep
MOST_BITS = 8192
SHORT_BYTES = 256  # longer ones go beside the tensors
_EXPECTED = "expected dicts, lists, tuples, tensors, numpy arrays, numbers, strings, bytes or None"

# safetensors' names of types; a type that it has no name for is stored as bytes, and the tree says what it is.
_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "complex64": "C64",
}
_as_json = json.JSONEncoder().encode  # what json.dumps does, without a look at its options
_NUMPY_KINDS = "biufcSUmM"  # what an array of these kinds holds is its bytes


class StateError(TypeError):
    """A state holds something that cannot be kept, or bytes are no state; the message says where."""


@dataclass(slots=True)
class _Bytes:
    """Bytes that lie in one piece, as long as their owner lives."""

    address: int
    owner: object


@dataclass(slots=True)
class _Tensor:
    """A tensor whose numbers do not lie in one piece of this machine's memory: torch copies it."""

    torch: Any
    tensor: Any

    def write(self, address: int) -> None:
        host_tensor(self.torch, address, self.tensor).copy_(self.tensor)


@dataclass(slots=True)
class _Piece:
    """The bytes of one tensor, or the tensor."""

    name: str
    kind: str  # safetensors'
    shape: tuple[int, ...]
    size: int
    alignment: int
    content: _Bytes | _Tensor


@dataclass(slots=True)
class Encoded:
    """A state that is ready to be written: its header, and what follows."""

    header: bytes
    pieces: list[_Piece] = field(default_factory=list)

    @property
    def length(self) -> int:
        """How many bytes the state takes."""
        return LENGTH_BYTES + len(self.header) + sum(piece.size for piece in self.pieces)

    @property
    def is_on_device(self) -> bool:
        """Return whether tensors of the state are on a device whose copies can run beside the program."""
        return any(isinstance(piece.content, _Tensor) and piece.content.tensor.is_cuda for piece in self.pieces)

    def write(self, address: int, later: list[DeviceCopy] | None = None) -> None:
        """Write the state to memory at this address, which has `length` bytes.

        Args:
            address: where it begins.
            later: gets the tensors on such a device, which are not copied then; None: they are.
        """
        head = len(self.header).to_bytes(LENGTH_BYTES, "little") + self.header
        ctypes.memmove(address, head, len(head))
        address += len(head)
        spans = []
        for piece in self.pieces:
            if isinstance(piece.content, _Bytes):
                spans.append((address, piece.content.address, piece.size))
            elif piece.size and later is not None and piece.content.tensor.is_cuda:
                later.append((address, piece.content.tensor))
            elif piece.size:
                piece.content.write(address)
            address += piece.size
        copy_spans(spans)


def encode_state(state: object) -> Encoded:
    """Return a state in the form in which it is written; tensors are not copied yet.

    Raises:
        StateError: something in the state cannot be kept; the message names its place.
    """
    encoder = _Encoder()
    tree = encoder.encode(state, "state")
    # As safetensors orders them: then each tensor is aligned, and a reader need not know where the gaps are.
    pieces = sorted(encoder.pieces, key=lambda piece: -piece.alignment)
    entries = [f'"__metadata__":{{"tree":{_as_json(tree)}}}']
    offset = 0
    for piece in pieces:
        end = offset + piece.size
        entries.append(
            f'{_as_json(piece.name)}:{{"dtype":"{piece.kind}","shape":{_list(piece.shape)},'
            f'"data_offsets":[{offset},{end}]}}'
        )
        offset = end
    text = f"{{{','.join(entries)}}}".encode()
    return Encoded(header=text + b" " * (-len(text) % 8), pieces=pieces)


def decode_state(data: memoryview) -> Any:
    """Return the state in these bytes, as a copy.

    Raises:
        StateError: the bytes are no state, or it holds tensors of a library that is not imported.
    """
    try:
        start = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
        header = json.loads(bytes(data[LENGTH_BYTES:start]))
        tree = json.loads(header.pop("__metadata__")["tree"])
        spans = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            spans[name] = data[start + begin : start + end]
        decoder = _Decoder(spans)
        state = decoder.decode(tree)
        copy_spans(decoder.copies, is_new=True)
        return state
    except StateError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError) as error:
        raise StateError(f"memory.load: found bytes that are no state ({type(error).__name__}: {error})") from error


class _Encoder:
    """Collects the tensors of a state while its tree is made.

    The tree is text from the start. Python's garbage collector goes through all that the process has once so many more
    lists and dicts live, and those of a tree of thousands of tensors were enough for that at every second save.
    """

    def __init__(self) -> None:
        self.pieces: list[_Piece] = []
        self._torch: Any = sys.modules.get("torch")
        self._numpy: Any = sys.modules.get("numpy")
        self._dtypes: dict[Any, str] = {}  # the names of torch's types

    def encode(self, value: Any, path: str, depth: int = 0) -> str:
        """Return a value of the tree as JSON: what JSON has as it is, everything else as an object with one key."""
        kind = type(value)
        if value is None or kind in (bool, int, str, float):
            return _plain(value, path)
        _check_depth(path, depth)
        if self._torch is not None and isinstance(value, self._torch.Tensor):  # first: it is most of a state
            return self._tensor(value, path)
        if kind is list:
            return self._items(value, path, depth)
        if isinstance(value, Mapping):
            items = [
                f"[{self._key(key, path, depth)},{self.encode(item, f'{path}[{key!r}]', depth + 1)}]"
                for key, item in value.items()
            ]
            # torch's MultiStepLR asks its milestones for what only a Counter has.
            name = "c" if kind is Counter else "d"
            return f'{{"{name}":[{",".join(items)}]}}'
        if isinstance(value, tuple):
            return f'{{"t":{self._items(value, path, depth)}}}'
        if kind is bytes:
            return self._bytes(value, path)
        if kind is bytearray:
            return f'{{"a":{self._bytes(bytes(value), path)}}}'
        if self._numpy is not None and isinstance(value, (self._numpy.ndarray, self._numpy.generic)):
            return self._array(value, path)
        raise StateError(f"memory.save: {path}: found {_name_of(kind)}; {_EXPECTED}")

    def _items(self, items: Iterable[Any], path: str, depth: int) -> str:
        encoded = [self.encode(item, f"{path}[{place}]", depth + 1) for place, item in enumerate(items)]
        return f"[{','.join(encoded)}]"

    def _key(self, key: Any, path: str, depth: int) -> str:
        if key is None or type(key) in (bool, int, float, str):
            return _plain(key, path)
        _check_depth(path, depth)
        if type(key) is tuple:
            return f'{{"t":[{",".join([self._key(item, path, depth + 1) for item in key])}]}}'
        raise StateError(f"memory.save: {path}: found the key {key!r}, expected a string or a number")

    def _bytes(self, value: bytes, path: str) -> str:
        if len(value) <= SHORT_BYTES:
            return f'{{"b":"{base64.b64encode(value).decode()}"}}'

        address = ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p).value or 0
        return f'{{"y":{self._piece(path, "U8", (len(value),), len(value), 1, _Bytes(address, value))}}}'

    def _tensor(self, tensor: Any, path: str) -> str:
        torch, layout, device = self._torch, tensor.layout, tensor.device.type
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            tip = "; its .to_local() can be saved" if hasattr(tensor, "to_local") else ""
            raise StateError(f"memory.save: {path}: found a {_name_of(type(tensor))}, expected a plain tensor{tip}")
        if tensor.is_nested:
            raise StateError(f"memory.save: {path}: found a nested tensor, expected a dense one that holds its numbers")
        if layout is not torch.strided or tensor.is_quantized or device == "meta":
            what = "quantized" if layout is torch.strided and tensor.is_quantized else str(layout)
            what = "meta" if device == "meta" else what
            raise StateError(f"memory.save: {path}: found a {what} tensor, expected a dense one that holds its numbers")
        try:
            is_freed = _reach(tensor) > tensor.untyped_storage().nbytes()
        except RuntimeError as error:  # torch.func's, which stand for others as long as a function is transformed
            raise StateError(f"memory.save: {path}: found a tensor without numbers of its own ({error})") from error
        if is_freed:
            raise StateError(f"memory.save: {path}: found a tensor whose memory is freed, as FSDP frees a shard's")
        if (dtype := self._dtypes.get(tensor.dtype)) is None:
            dtype = self._dtypes[tensor.dtype] = str(tensor.dtype).removeprefix("torch.")
        alignment = tensor.element_size()
        name, shape, size = _NAMES.get(dtype), tuple(tensor.shape), tensor.numel() * alignment
        source, stored = tensor.detach(), shape if name else (size,)
        if source.is_conj() or source.is_neg():
            source = source.resolve_conj().resolve_neg()

        # Zeros that torch knows without memory, as for derivatives, have no address.
        address = source.data_ptr() if device == "cpu" and source.is_contiguous() else 0
        content = _Bytes(address, source) if address else _Tensor(torch, source)
        piece = self._piece(path, name or "U8", stored, size, alignment, content)
        return f'{{"T":[{piece},"{dtype}",{_list(shape)}]}}'

    def _array(self, value: Any, path: str) -> str:
        numpy = self._numpy
        is_scalar = isinstance(value, numpy.generic)
        if isinstance(value, numpy.ma.MaskedArray):
            raise StateError(f"memory.save: {path}: found a masked array; its .data and .mask can be saved")
        if not is_scalar and type(value) not in (numpy.ndarray, numpy.memmap):  # a matrix multiplies in another way
            raise StateError(
                f"memory.save: {path}: found a {_name_of(type(value))}; what numpy.asarray() makes of it can be saved"
            )
        if value.dtype.kind not in _NUMPY_KINDS:
            raise StateError(f"memory.save: {path}: found a numpy array of {value.dtype}, expected one of numbers")
        array = numpy.ascontiguousarray(value)
        name = _NAMES.get(array.dtype.name) if array.dtype.isnative else None
        stored, alignment = tuple(value.shape) if name else (array.nbytes,), max(1, array.dtype.itemsize)
        piece = self._piece(path, name or "U8", stored, array.nbytes, alignment, _Bytes(array.ctypes.data, array))
        return f'{{"{"S" if is_scalar else "N"}":[{piece},{_as_json(array.dtype.str)},{_list(value.shape)}]}}'

    def _piece(
        self,
        path: str,
        kind: str,
        shape: tuple[int, ...],
        size: int,
        alignment: int,
        content: _Bytes | _Tensor,
    ) -> str:
        """Add a piece, and return its name as JSON."""
        name = f"{len(self.pieces)} {path}"
        self.pieces.append(_Piece(name=name, kind=kind, shape=shape, size=size, alignment=alignment, content=content))
        return _as_json(name)


def _list(numbers: Sequence[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"


def _plain(value: Any, path: str) -> str:
    kind = type(value)
    if kind is int:
        if value.bit_length() > MOST_BITS:  # Python prints no longer ones, and JSON is text
            raise StateError(
                f"memory.save: {path}: found a number of {value.bit_length()} bits, expected at most {MOST_BITS}"
            )
        return repr(value)
    if kind is float and isfinite(value):  # JSON has the same
        return repr(value)
    return _as_json(value)


def _check_depth(path: str, depth: int) -> None:
    if depth > DEEPEST:
        raise StateError(
            f"memory.save: {path[:SHOWN]}...: found more than {DEEPEST} levels, which a state that holds itself has"
        )


def _reach(tensor: Any) -> int:
    """Return how many bytes a tensor's memory must have: to read beyond it would end the process with a SIGSEGV."""
    if not tensor.numel():
        return 0
    if tensor.is_contiguous():
        return int((tensor.storage_offset() + tensor.numel()) * tensor.element_size())
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((tensor.storage_offset() + last + 1) * tensor.element_size())


class _Decoder:
    """Makes the tree of a state again; its tensors are empty until what `copies` names is copied."""

    def __init__(self, spans: Mapping[str, memoryview]) -> None:
        self.copies: list[Span] = []
        self._copied: list[Any] = []  # whose memory that is, although a tree with a key twice drops one of them
        self._spans = spans

    def decode(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.decode(item) for item in node]
        if not isinstance(node, dict):
            return node
        ((kind, value),) = node.items()
        if kind == "d":
            return {self.decode(key): self.decode(item) for key, item in value}
        if kind == "c":
            return Counter({self.decode(key): self.decode(item) for key, item in value})
        if kind == "t":
            return tuple(self.decode(item) for item in value)
        if kind == "b":
            return base64.b64decode(value)
        if kind == "a":
            return bytearray(self.decode(value))
        if kind == "y":
            return bytes(self._spans[value])
        if kind == "T":
            return self._tensor(*value)
        if kind in ("N", "S"):
            return self._array(*value, is_scalar=kind == "S")
        raise ValueError(f"no part of a state is of kind {kind!r}")

    def _tensor(self, name: str, dtype: str, shape: list[int]) -> Any:
        torch: Any = sys.modules.get("torch")
        if torch is None:
            raise StateError("memory.load: found a state with tensors of torch; import torch before")
        tensor, span = torch.empty(shape, dtype=getattr(torch, dtype), device="cpu"), self._spans[name]
        size = tensor.numel() * tensor.element_size()
        if size != len(span):
            raise ValueError(f"{name} has {len(span)} bytes, not {size}")
        if size:
            self._copied.append(tensor)
            self.copies.append((tensor.data_ptr(), _address_of(span), size))
        return tensor

    def _array(self, name: str, dtype: str, shape: list[int], *, is_scalar: bool) -> Any:
        numpy: Any = sys.modules.get("numpy")
        if numpy is None:
            raise StateError("memory.load: found a state with arrays of numpy; import numpy before")
        array = numpy.frombuffer(bytes(self._spans[name]), dtype=dtype).reshape(shape)
        return array[()] if is_scalar else array.copy()


def _address_of(span: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(span))


def _name_of(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
