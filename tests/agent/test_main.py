"""What an agent refuses before it begins, and how its process is set up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.agent.main import main
from hpc_elastic.errors import ExitCode
from hpc_elastic.plan.launch_plan import dump_plan
from hpc_elastic.rundir.layout import RunLayout
from tests.plans import make_run_plan


@pytest.mark.parametrize("secret", [b"", b"s" * 31])
def test_rejects_a_secret_that_could_be_guessed(
    tmp_path: Path, secret: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = RunLayout(str(tmp_path))
    Path(layout.plan).write_text(dump_plan(make_run_plan(tmp_path)))
    Path(layout.secret).write_bytes(secret)
    assert main([str(tmp_path)]) == ExitCode.RUN_DIRECTORY
    told = capsys.readouterr().err
    assert told.splitlines() == [
        (
            f"hpc-elastic agent: error: {layout.secret} holds {len(secret)} bytes, not 32: "
            "it was changed after the submission"
        ),
        "tip: submit the job again",
    ]


@pytest.mark.long
def test_collections_of_garbage_do_not_look_at_what_imports_have_made() -> None:
    """Else a full one is put off until a quarter as many objects are there again, and costs milliseconds."""
    code = (
        "import gc; from hpc_elastic.agent import main; main._set_imports_apart();"
        "print(gc.get_freeze_count() > 10_000, len(gc.get_objects()) < 1000)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"
