"""Commands of Slurm that are killed after their time."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.errors import SchedulerError
from hpc_elastic.scheduler.slurm.runner import run_command

FULL = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"  # sbatch 22.05 to 26.05


@pytest.mark.long
@pytest.mark.parametrize("says", [FULL, ""], ids=["the queue is full", "nothing"])
def test_an_sbatch_that_waits_for_room_in_the_queue_is_refused_for_now(tmp_path: Path, says: str) -> None:
    """It would try again for two minutes by itself; of a silent one nobody knows whether it has submitted."""
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"#!/bin/sh\n[ -z '{says}' ] || echo '{says}' >&2\nexec sleep 60\n")
    sbatch.chmod(0o755)
    with pytest.raises(SchedulerError) as caught:
        run_command([str(sbatch)], environ={"PATH": "/usr/bin:/bin"}, timeout_s=0.5)
    assert (caught.value.is_passing, caught.value.is_silence) == (bool(says), not says)
    assert ("takes no job for now: Slurm temporarily unable" in caught.value.message) == bool(says)
