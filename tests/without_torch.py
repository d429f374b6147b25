"""An environment in which Python finds no torch, for runs that are not about it.

Fork servers and store hosts would import it for nothing: over a second of processor time on every node of hundreds of
tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_MODULE = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"


def hide_torch(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment with a module in the place of torch, which is written into a folder that need not exist.

    Args:
        environ: what the processes have else.
        folder: none that the programs run in, for there they would find the module anyhow.
    """
    folder.mkdir(exist_ok=True)
    (folder / "torch.py").write_text(_MODULE)
    before = environ.get("PYTHONPATH")
    return {**environ, "PYTHONPATH": f"{folder}:{before}" if before else str(folder)}
