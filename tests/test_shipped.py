from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.errors import ExitCode, SiteError, TemplateError
from hpc_elastic.shipped import shipped_directory


def test_the_folder_inside_the_package_wins(tmp_path: Path) -> None:
    for folder in ("package/_shipped/templates", "templates"):
        (tmp_path / folder).mkdir(parents=True)
    found = shipped_directory("templates", package_directory=str(tmp_path / "package"))
    assert found == str(tmp_path / "package/_shipped/templates")


def test_shipped_directory_rejects_an_installation_without_them(tmp_path: Path) -> None:
    with pytest.raises(
        TemplateError, match=r"templates of hpc_elastic is missing; .*_shipped/templates or .*/templates"
    ):
        shipped_directory("templates", package_directory=str(tmp_path / "package"))
    with pytest.raises(SiteError) as raised:
        shipped_directory("site-configs", package_directory=str(tmp_path / "package"))
    assert raised.value.exit_code == ExitCode.SETUP
