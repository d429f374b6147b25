"""In a session with several processes, what shares a Slurm of its own kind stays in one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import slurm_choice

pytest.importorskip("xdist")
from tests.distribution import LaneScheduling, computes, group_of, share_of, waits

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
# Says in which order its process has imported it.
IMPORTED = """
import os
with open(f"{os.environ['TOLD']}/{os.environ['PYTEST_XDIST_WORKER']}", "a") as told:
    told.write(f"{__name__[-1]} ")
"""
ALONE = "import pytest\n@pytest.mark.parametrize('number', range(6))\ndef test_other(number): pass\n"


def run_session(folder: Path, count: int, told: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """A session of so many processes, whose tests write what they tell into a folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pyproject.toml"]
    return subprocess.run(
        [
            *command,
            f"--rootdir={folder if folder.name != 'tests' else folder.parent}",
            "-n",
            str(count),
            "--dist",
            "loadgroup",
            str(folder),
        ],
        cwd=REPOSITORY,
        env={**os.environ, slurm_choice.REQUIRED: "0", "TOLD": str(told), **environ},
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
    for number, cache in enumerate(("@cache", "@functools.cache")):
        (caching := tmp_path / f"caching{number}.py").write_text(f"{cache}\ndef made(): ...\n{ALONE}")
        assert group_of(caching) == str(caching)


def test_the_last_processes_compute_if_there_are_more_than_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)

    def computing(count: int) -> list[int]:
        return [number for number in range(count) if computes(f"gw{number}", count)]

    assert [computing(count) for count in (1, 2, 3, 4, 6)] == [[], [], [2], [2, 3], [4, 5]]


class Process:
    """A process of a session, which keeps what it is given."""

    shutting_down = False

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def schedule_of(folder: Path, tests: list[str], processes: list[Process]) -> LaneScheduling:
    """A schedule that has given each of these processes its first tests."""
    options = {"tx": ["popen"] * len(processes), "loadscopereorder": True}
    config = SimpleNamespace(rootpath=folder, option=SimpleNamespace(**options), getvalue=options.get)
    log = SimpleNamespace(loadscopesched=lambda *_: None)
    scheduling = LaneScheduling(config, log)
    for process in processes:
        scheduling.add_node(process)
        scheduling.add_node_collection(process, tests)
    scheduling.schedule()
    return scheduling


def test_what_a_process_that_died_left_is_given_to_one_that_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after what is in the queue already that computes, and before what waits."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    (tmp_path / "test_waits.py").write_text("pytestmark = pytest.mark.local\n")
    (tmp_path / "test_computes.py").write_text("")
    tests = [f"test_{kind}.py::test_it[{number}]" for kind in ("waits", "computes") for number in range(12)]
    *waiting, dead, living = processes = [Process(number) for number in range(4)]
    scheduling = schedule_of(tmp_path, tests, processes)
    assert scheduling.remove_node(dead) == tests[dead.given[0]]
    for index in living.given:  # which grows
        scheduling.mark_test_complete(living, index)
    others = [index for index in range(12, 24) if index not in dead.given]
    assert living.given[:12] == [*others, *dead.given]
    assert sorted(living.given[12:] + [index for one in waiting for index in one.given]) == list(range(12))


def test_each_test_is_looked_at_once_for_whether_it_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again for each test that is given out: of 11,000 tests, 1,000 that wait are the first of the queue."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    (tmp_path / "test_waits.py").write_text("pytestmark = pytest.mark.local\n")
    (tmp_path / "test_computes.py").write_text("")
    tests = [f"test_{kind}.py::test_it[{number}]" for kind in ("waits", "computes") for number in range(100)]
    waits.cache_clear()
    *_, computing = processes = [Process(number) for number in range(4)]
    scheduling = schedule_of(tmp_path, tests, processes)
    for index in computing.given:  # which grows
        scheduling.mark_test_complete(computing, index)
    assert len(computing.given) > 100
    asked = waits.cache_info()
    assert 0 < asked.hits + asked.misses <= len(tests)


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


def test_the_processes_share_all_files_that_are_in_no_package(tmp_path: Path) -> None:
    files = [tmp_path / f"test_{number}.py" for number in range(7)]
    (package := tmp_path / "package").mkdir()
    (package / "__init__.py").touch()
    shares = [share_of([package / "test_it.py", *files], f"gw{number}", 3) for number in range(3)]
    assert shares == [files[0::3], files[1::3], files[2::3]]


@pytest.mark.long
def test_each_process_imports_a_share_of_all_files_first_and_rewrites_their_assertions(tmp_path: Path) -> None:
    """A folder `tests` of its own, beside that of this repository, in a session of two processes."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tests := tmp_path / "tests").mkdir()
    (told := tmp_path / "told").mkdir()
    for number in range(4):
        text = f"{IMPORTED}\ndef test_it():\n    found = {number}\n    assert found == 7\n"
        (tests / f"test_share_{number}.py").write_text(text)
    (tests / "test_share_4.py").write_text("raise OSError('cannot be imported')\n")
    done = run_session(tests, 2, told, PYTHONPATH=f"{tmp_path}:{REPOSITORY}")
    assert "cannot be imported" in done.stdout, done.stdout + done.stderr
    (tests / "test_share_4.py").unlink()
    for path in told.iterdir():
        path.unlink()
    done = run_session(tests, 2, told, PYTHONPATH=f"{tmp_path}:{REPOSITORY}")
    imported = {path.name: path.read_text().split() for path in told.iterdir()}
    assert imported == {"gw0": ["0", "2", "1", "3"], "gw1": ["1", "3", "0", "2"]}
    shown = [line.split() for line in done.stdout.splitlines()]  # once: the summary has it, too, where CI is set
    assert [shown.count(["E", "assert", str(number), "==", "7"]) for number in range(4)] == [1, 1, 1, 1], done.stdout


def test_every_file_that_boots_a_slurm_for_all_its_tests_is_a_group() -> None:
    """A fixture of a module that starts a cluster; the sandboxes' own tests start one each."""
    boots = [
        path
        for path in (REPOSITORY / "tests").rglob("test_*.py")
        if 'scope="module"' in (text := path.read_text()) and "Cluster.start(" in text
    ]
    assert [path.name for path in boots if group_of(path) is None] == []
    assert len(boots) >= 3
