"""What the tests of records share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.records.runs import Runs


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "a run")
