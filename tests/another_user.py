"""What an ordinary user may not: the tests are root's, who may read and write everything."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def another_user() -> Iterator[None]:
    """Give up root's right to read everything for a moment; other users have no such right."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@contextlib.contextmanager
def folder_of_everybody() -> Iterator[Path]:
    """A folder that every user may enter, which pytest's own ones are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
