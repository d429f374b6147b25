"""In a session with several processes, what shares a Slurm of its own kind stays in one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import slurm_choice

pytest.importorskip("xdist")
from tests.distribution import group_of

REPOSITORY = Path(__file__).parents[1]
TOGETHER = """
import os
import pytest

pytestmark = [pytest.mark.xdist_group("one_kind")]

@pytest.mark.parametrize("number", range(6))
def test_it(number):
    open(f"{os.environ['TOLD']}/{os.environ['PYTEST_XDIST_WORKER']}-{number}", "w").close()
"""
ALONE = "import pytest\n@pytest.mark.parametrize('number', range(6))\ndef test_other(number): pass\n"


@pytest.mark.long
def test_a_file_with_a_group_runs_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_together.py").write_text(TOGETHER)
    (tmp_path / "test_alone.py").write_text(ALONE)
    (told := tmp_path / "told").mkdir()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pyproject.toml"]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", "-n", "2", "--dist", "loadgroup", str(tmp_path)],
        cwd=REPOSITORY,
        env={**os.environ, slurm_choice.REQUIRED: "0", "TOLD": str(told)},
        capture_output=True,
        text=True,
    )
    assert "12 passed" in done.stdout, done.stdout + done.stderr
    ran = [path.name.split("-") for path in told.iterdir()]
    assert sorted(number for _, number in ran) == list("012345")
    assert len({worker for worker, _ in ran}) == 1


def test_the_group_is_that_of_the_whole_file(tmp_path: Path) -> None:
    (grouped := tmp_path / "grouped.py").write_text(TOGETHER)
    (other := tmp_path / "other.py").write_text(ALONE)
    assert (group_of(grouped), group_of(other), group_of(tmp_path / "none.py")) == ("one_kind", None, None)


def test_every_file_that_boots_a_slurm_for_all_its_tests_is_a_group() -> None:
    """A fixture of a module that starts a cluster; the sandboxes' own tests start one each."""
    boots = [
        path
        for path in (REPOSITORY / "tests").rglob("test_*.py")
        if 'scope="module"' in (text := path.read_text()) and "Cluster.start(" in text
    ]
    assert [path.name for path in boots if group_of(path) is None] == []
    assert len(boots) >= 3
