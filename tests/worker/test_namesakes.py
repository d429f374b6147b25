"""A module beside the script counts as a namesake only where plain Python would import it, and a fork another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_elastic.worker.namesakes import find_namesakes, first_folder


def test_finds_modules_and_packages_beside_the_script_whose_names_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").touch()
    for name in ("typing.py", "pathlib.cpython-3.so", "pytest.abi3.so", "not_loaded.py"):
        (tmp_path / name).touch()
    assert find_namesakes(str(tmp_path), before=()) == ["json", "pytest", "typing"]
    assert find_namesakes(str(tmp_path), before=("json", "pytest")) == ["typing"]


def test_a_folder_without_init_is_none(tmp_path: Path) -> None:
    (tmp_path / "json").mkdir()
    assert find_namesakes(str(tmp_path), before=()) == []


def test_the_loaded_module_itself_is_none() -> None:
    folder = Path(json.__file__).parents[1]
    assert (folder / "json" / "__init__.py").exists()
    assert "json" not in find_namesakes(str(folder.resolve()), before=())


def test_a_folder_that_cannot_be_read_holds_none(tmp_path: Path) -> None:
    assert find_namesakes(str(tmp_path / "missing"), before=()) == []


@pytest.mark.parametrize(
    ("kind", "target", "folder"),
    [("script", "a/link.py", "real"), ("script", "real", "real"), ("module", "package.name", ".")],
)
def test_search_path_begins_with_what_plain_python_puts_there(
    kind: str, target: str, folder: str, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "script.py").touch()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "link.py").symlink_to("../real/script.py")
    found = first_folder(kind, target, str(tmp_path))
    assert found is not None
    assert Path(found) == tmp_path / folder
