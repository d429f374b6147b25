"""States with arrays of numpy, which the environment of the other tests has not."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.integration.conftest import REPOSITORY

ROUND_TRIP = """
import ctypes
import numpy
from hpc_elastic.worker.state_encoding import decode_state, encode_state

def round_trip(state):
    encoded = encode_state(state)
    data = bytearray(encoded.length)
    encoded.write(ctypes.addressof(ctypes.c_char.from_buffer(data)))
    return decode_state(memoryview(data))
"""

ARRAYS = """
arrays = [
    *(numpy.arange(12, dtype=each).reshape(3, 4) for each in "bBhHiIlLqQefdgFDG"),
    *(numpy.array([True, False]), numpy.array(5), numpy.empty((3, 0, 2)), numpy.arange(3, dtype=">i4")),
    *(numpy.arange(6)[::-2], numpy.asfortranarray(numpy.ones((2, 3))), numpy.broadcast_to(numpy.float32(2), (2, 2))),
    *(numpy.array(["a", "longer"]), numpy.array([b"ab", b"c"]), numpy.array(["2026-01-01", "NaT"], dtype="M8[D]")),
    *(numpy.float32("nan"), numpy.int64(-3), numpy.bool_(True), numpy.timedelta64(3, "s")),
]
for before in arrays:
    after = round_trip({"a": [before]})["a"][0]
    assert (type(after), after.dtype, after.shape) == (type(before), before.dtype, before.shape), (before, after)
    assert after.tobytes() == before.tobytes(), (before, after)
    if before.shape and before.size:
        after[...] = before  # it can be changed
print("all came back")
"""

REFUSED = """
for state in (
    numpy.array([object()]), numpy.zeros(2, dtype=[("x", "i4")]), numpy.void(b"ab"),
    numpy.ma.masked_array([1, 2], mask=[0, 1]), numpy.matrix([[1, 2]]), numpy.rec.array([(1, 2)]),
):
    try:
        encode_state({"m": state})
    except TypeError as error:
        print(error)
"""

RANDOM = """
import random
import numpy.random
from hpc_elastic import memory

state = round_trip(memory.random_state())
first = random.random(), numpy.random.rand(3).tolist(), numpy.random.randn()
memory.set_random_state(state)
print(first == (random.random(), numpy.random.rand(3).tolist(), numpy.random.randn()))
"""


def run(python: Path, source: str) -> list[str]:
    done = subprocess.run(
        [python, "-W", "ignore", "-c", ROUND_TRIP + source],
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_array_of_any_type_and_order_comes_back_bit_by_bit(python: Path) -> None:
    assert run(python, ARRAYS) == ["all came back"]


def test_an_array_that_holds_no_numbers_of_its_own_is_refused_by_its_place(python: Path) -> None:
    lines = run(python, REFUSED)
    assert all(line.startswith("memory.save: state['m']: found a ") for line in lines)
    assert [line.partition("found a ")[2].split(", ")[0] for line in lines] == [
        "numpy array of object",
        "numpy array of [('x'",
        "numpy array of |V2",
        "masked array; its .data and .mask can be saved",
        "numpy.matrix; what numpy.asarray() makes of it can be saved",
        "numpy.rec.recarray; what numpy.asarray() makes of it can be saved",
    ]


def test_the_random_numbers_of_numpy_go_on_where_they_were(python: Path) -> None:
    assert run(python, RANDOM) == ["True"]
