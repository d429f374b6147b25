"""What `tests/conftest.py` promises: a skipped Slurm test is a failure where Slurm is required."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.mark.long
@pytest.mark.parametrize(("required", "outcome"), [("0", "1 skipped"), ("1", "1 failed")])
def test_skipped_slurm_test_is_a_failure_if_slurm_is_required(tmp_path: Path, required: str, outcome: str) -> None:
    test = tmp_path / "test_it.py"
    test.write_text("import pytest\n@pytest.mark.slurm\ndef test_it(): pytest.skip('no Slurm here')\n")
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pyproject.toml", str(test)],
        cwd=REPOSITORY,
        env={**os.environ, "HPC_ELASTIC_REQUIRE_SLURM": required},
        capture_output=True,
        text=True,
    )
    assert outcome in done.stdout
    assert "no Slurm here" in done.stdout
    assert done.returncode == int(required)
