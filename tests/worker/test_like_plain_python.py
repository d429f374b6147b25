"""A spawned worker's interpreter may have options; what holds without them, test_three_ways.py shows."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tests.tiers import longer

if TYPE_CHECKING:
    from tests.worker.conftest import Runner

COMMAND_LINE = """
import sys
print(sys.argv, sys.orig_argv[1:], sys.path, sys.flags)
"""

WARNINGS = """
import warnings
pattern = "\\d"
warnings.warn("old", DeprecationWarning)
def caller():
    warnings.warn("look above", stacklevel=2)
caller()
"""


@pytest.mark.long
@pytest.mark.parametrize("options", [("-I",), *longer((("-W", "error"),), (("-X", "dev", "-u"),))], ids=" ".join)
@pytest.mark.parametrize("source", [COMMAND_LINE, WARNINGS], ids=["command_line", "warnings"])
def test_worker_does_what_plain_python_does_if_it_has_options(
    runner: Runner, source: str, options: tuple[str, ...]
) -> None:
    path = runner.write("script.py", source)
    plain = runner.run([sys.executable, *options, f"./{path.name}", "a"])
    assert runner.run_worker("--script", f"./{path.name}", "a", python=(sys.executable, *options)) == plain


@pytest.mark.long
def test_worker_leaves_no_error_file_if_a_folder_or_an_archive_exits(runner: Runner) -> None:
    runner.write("folder/__main__.py", "import sys; sys.exit(4)")
    shutil.make_archive(str(runner.directory / "archive"), "zip", runner.directory / "folder")
    for target in ("folder", "archive.zip"):
        assert runner.run_worker("--script", target, "a").exit_code == 4
        assert not runner.error_file.exists()
