"""What a sandbox leaves on disk: nothing, also if its processes still die while it is removed."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from tests.slurm_sandbox.files import _remove_tree


@pytest.mark.long
def test_a_directory_is_removed_in_which_dying_processes_still_make_files(tmp_path: Path) -> None:
    root, writes_until = tmp_path / "sandbox", time.monotonic() + 0.5
    (root / "state").mkdir(parents=True)

    def die_slowly() -> None:
        number = 0
        while time.monotonic() < writes_until:
            number += 1
            with contextlib.suppress(OSError):
                os.mkdir(root / "state" / str(number))

    dying = threading.Thread(target=die_slowly)
    dying.start()
    try:
        _remove_tree(str(root))
    finally:
        dying.join()
    assert not root.exists()
