"""Tests of the simulation play many runs, whose garbage is looked for seldom: when a test has left much of it.

What a process holds costs more than memory: a child of it, such as the agent of another test, copies each page that it
looks at, which took a minute where the process held six gigabytes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.simulation.garbage import RARELY, Held


@pytest.fixture(scope="package")
def held() -> Iterator[Held]:
    before = gc.get_threshold()
    gc.set_threshold(*RARELY)
    yield Held()
    gc.set_threshold(*before)


@pytest.fixture(autouse=True)
def _collect_what_is_left(held: Held) -> Iterator[None]:
    yield
    held.collect_if_grown()
