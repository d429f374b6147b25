from __future__ import annotations

from tests.scheduler.slurm.captured import VERSIONS
from tests.slurm_sandbox.versions import SUPPORTED


def test_every_slurm_that_a_sandbox_can_run_was_recorded() -> None:
    assert [f"slurm-{version}" for version in SUPPORTED] == VERSIONS
