"""The program that imports torch for `hpc-elastic doctor`, without torch; with it in tests/integration."""

from __future__ import annotations

import json
import subprocess
import sys

from hpc_elastic.shipped import PACKAGE_DIRECTORY


def test_a_python_without_torch_is_told_and_nothing_is_waited_for() -> None:
    command = [sys.executable, "-I", "-S", f"{PACKAGE_DIRECTORY}/launch.py", "hpc_elastic.worker.torch_probe"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"absent": "ModuleNotFoundError: No module named 'torch'"}
