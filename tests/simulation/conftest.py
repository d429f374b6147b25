"""Tests of the simulation play many runs, whose garbage is looked for seldom."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.simulation.garbage import RARELY


@pytest.fixture(scope="package", autouse=True)
def _collect_rarely() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*RARELY)
    yield
    gc.set_threshold(*before)
