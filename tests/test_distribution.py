"""In a session with several processes, what shares a Slurm of its own kind stays in one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import slurm_choice

pytest.importorskip("xdist")
from tests.distribution import computes, group_of, waits

REPOSITORY = Path(__file__).parents[1]
TOGETHER = """
import os
import pytest

pytestmark = [pytest.mark.xdist_group("one_kind")]

@pytest.mark.parametrize("number", range(6))
def test_it(number):
    open(f"{os.environ['TOLD']}/{os.environ['PYTEST_XDIST_WORKER']}-{number}", "w").close()
"""
# Says which process ran it, what it is, and when.
TELLS = """
import os, pytest, time

@pytest.mark.parametrize("number", range({}))
def test_it(number):
    kind = __name__.rpartition(".")[2]
    told = os.environ["PYTEST_XDIST_WORKER"], kind, str(time.monotonic_ns())
    open(os.environ["TOLD"] + "/" + "-".join(told), "w").close()
"""
ALONE = "import pytest\n@pytest.mark.parametrize('number', range(6))\ndef test_other(number): pass\n"


def run_session(folder: Path, count: int, told: Path) -> subprocess.CompletedProcess[str]:
    """A session of so many processes, whose tests write what they tell into a folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pyproject.toml"]
    return subprocess.run(
        [*command, f"--rootdir={folder}", "-n", str(count), "--dist", "loadgroup", str(folder)],
        cwd=REPOSITORY,
        env={**os.environ, slurm_choice.REQUIRED: "0", "TOLD": str(told)},
        capture_output=True,
        text=True,
    )


@pytest.mark.variant(of="test_the_group_is_that_of_the_whole_file")
@pytest.mark.long
def test_a_file_with_a_group_runs_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_together.py").write_text(TOGETHER)
    (tmp_path / "test_alone.py").write_text(ALONE)
    (told := tmp_path / "told").mkdir()
    done = run_session(tmp_path, 2, told)
    assert "12 passed" in done.stdout, done.stdout + done.stderr
    ran = [path.name.split("-") for path in told.iterdir()]
    assert sorted(number for _, number in ran) == list("012345")
    assert len({worker for worker, _ in ran}) == 1


def test_the_group_is_that_of_the_whole_file(tmp_path: Path) -> None:
    (grouped := tmp_path / "grouped.py").write_text(TOGETHER)
    (other := tmp_path / "other.py").write_text(ALONE)
    assert (group_of(grouped), group_of(other), group_of(tmp_path / "none.py")) == ("one_kind", None, None)
    (sharing := tmp_path / "sharing.py").write_text(f'@pytest.fixture(scope="module")\ndef made(): ...\n{ALONE}')
    assert group_of(sharing) == str(sharing)


def test_the_last_processes_compute_if_there_are_more_than_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)

    def computing(count: int) -> list[int]:
        return [number for number in range(count) if computes(f"gw{number}", count)]

    assert [computing(count) for count in (1, 2, 3, 4, 6)] == [[], [], [2], [2, 3], [4, 5]]


def test_what_waits_is_known_from_its_file(tmp_path: Path) -> None:
    texts = {
        "mark": "pytestmark = pytest.mark.local\n",
        "one": "@pytest.mark.slurm\ndef test_it(): ...\n",
        "fixture": "def test_it(slurm: Cluster) -> None: ...\n",
        "none": "def test_it() -> None: ...\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert [name for name in texts if waits(tmp_path / f"{name}.py")] == ["mark", "one", "fixture"]


@pytest.mark.variant(of="test_the_last_processes_compute_if_there_are_more_than_processors")
@pytest.mark.long
def test_who_computes_begins_with_what_computes_and_helps_the_others(tmp_path: Path) -> None:
    """In a session of more processes than there are processors; what waits here waits for all that computes."""
    cores = os.cpu_count() or 1
    count = 2 * cores + 1
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_waits.py").write_text(f"import pytest\npytestmark = pytest.mark.local\n{TELLS.format(4 * count)}")
    (tmp_path / "test_computes.py").write_text(TELLS.format(4 * count))
    (told := tmp_path / "told").mkdir()
    done = run_session(tmp_path, count, told)
    assert f"{8 * count} passed" in done.stdout, done.stdout + done.stderr
    ran = [path.name.split("-") for path in told.iterdir()]
    first: dict[str, str] = {}
    for process, kind, _ in sorted(ran, key=lambda one: int(one[2])):
        first.setdefault(process, kind)
    assert first == {process: "test_computes" if computes(process, count) else "test_waits" for process in first}
    assert len(first) == count


def test_every_file_that_boots_a_slurm_for_all_its_tests_is_a_group() -> None:
    """A fixture of a module that starts a cluster; the sandboxes' own tests start one each."""
    boots = [
        path
        for path in (REPOSITORY / "tests").rglob("test_*.py")
        if 'scope="module"' in (text := path.read_text()) and "Cluster.start(" in text
    ]
    assert [path.name for path in boots if group_of(path) is None] == []
    assert len(boots) >= 3
