"""What a run directory is called, and who else may use the folder in which it is made."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from hpc_elastic.errors import FileSystemError
from hpc_elastic.rundir.create import check_vacant, create_run_directory, run_identity
from hpc_elastic.rundir.layout import DEFAULT_ROOT
from tests.another_user import another_user, folder_of_everybody
from tests.plans import make_run_plan


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    before = os.umask(0o002)
    folder = tmp_path / "project"
    folder.mkdir()
    yield folder
    os.umask(before)


def create(root: Path) -> None:
    create_run_directory(str(root), job_yaml="", plan=make_run_plan(str(root)), script="")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode) & ~stat.S_ISGID


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("my job (2)", "my-job-2"),
        ("../a:b$c", "a-b-c"),
        ("日本", "日本"),
        ("हिन्दी_रन.1", "हिन्दी_रन.1"),
        ("ภาษาไทย", "ภาษาไทย"),
        ("entrai\u0302nement", "entra\u00eenement"),
        ("...", "run"),
        ("x" * 100, "x" * 80),
        ("日" * 100, "日" * 64),
    ],
)
def test_a_run_directory_has_the_letters_of_any_script_with_their_marks(name: str, folder: str) -> None:
    identity = run_identity(name, datetime(2026, 1, 2, 3, 4, 5), "beef")
    assert identity == f"{folder}-20260102-030405-beef"
    assert len(identity.encode()) < 255, "the longest name of a folder"


@pytest.mark.parametrize("below", [["run"], ["array", "0"]], ids=["run", "task"])
def test_the_folder_of_runs_in_a_groups_directory_is_the_groups_and_each_run_its_owners(
    project: Path, below: list[str]
) -> None:
    project.chmod(0o2775)
    create(project.joinpath(DEFAULT_ROOT, *below))
    assert mode(project / DEFAULT_ROOT) == 0o1770
    assert mode(project / DEFAULT_ROOT / below[0]) == 0o700
    assert mode(project.joinpath(DEFAULT_ROOT, *below)) == 0o700


@pytest.mark.parametrize(("above", "umask"), [(0o775, 0o002), (0o2755, 0o002), (0o1777, 0o002), (0o2775, 0o077)])
def test_the_folder_of_runs_elsewhere_is_its_owners_alone(project: Path, above: int, umask: int) -> None:
    project.chmod(above)
    os.umask(umask)
    create(project / DEFAULT_ROOT / "run")
    assert mode(project / DEFAULT_ROOT) & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_runs_that_is_closed_is_named_with_what_its_owner_may_do(project: Path) -> None:
    (project / DEFAULT_ROOT).mkdir(mode=0o500)
    with pytest.raises(FileSystemError, match=f"cannot write .*{DEFAULT_ROOT}: Permission denied$") as caught:
        create(project / DEFAULT_ROOT / "run")
    assert "chmod g+rwx,+t" in (caught.value.tip or "")


@pytest.mark.parametrize("is_there", [True, False], ids=["an empty folder", "none yet"])
def test_a_folder_that_this_user_may_not_write_is_not_vacant(is_there: bool) -> None:
    with folder_of_everybody() as folder:
        root = folder / "runs"
        if is_there:
            root.mkdir(mode=0o755)
        check_vacant(str(root))
        with another_user(), pytest.raises(FileSystemError) as raised:
            check_vacant(str(root))
        place = "" if is_there else f" (of {folder})"
        assert raised.value.message == f"cannot write {root}: Permission denied{place}"
