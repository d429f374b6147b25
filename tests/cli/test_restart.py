"""`hpc-elastic restart` of a run that has no workers now."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from tests.cli.conftest import FakeSlurm
from tests.observe.builders import RunBuilder


def test_a_run_that_waits_to_start_again_is_not_asked_to_restart(
    tmp_path: Path, fake_slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    """The head of the next start would pass the request over, and its first attempt would be taken for the answer."""
    fake_slurm.say("PENDING", reason="BeginTime")
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    assert main(["restart", run.layout.root]) == 5
    assert "digits is REQUEUED, and none of its workers runs" in capsys.readouterr().err
    assert Path(run.layout.requests).read_bytes() == b""
