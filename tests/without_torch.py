"""Environments in which Python finds no torch, or only the part that trains, for runs that are not about the rest.

Fork servers and store hosts would import it for nothing: over a second of processor time on every node of hundreds of
tests. A first optimizer imports torch's compiler as well, which takes longer than `import torch` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_WITHOUT_COMPILER = Path(__file__).parent / "without_compiler"
_MODULE = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"


def hide_torch(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment with a module in the place of torch, which is written into a folder that need not exist.

    Args:
        environ: what the processes have else.
        folder: none that the programs run in, for there they would find the module anyhow.
    """
    folder.mkdir(exist_ok=True)
    (folder / "torch.py").write_text(_MODULE)
    return _with_first(environ, folder)


def hide_compiler(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with stand-ins for torch's compiler and distributed tensors, until a program uses them."""
    return _with_first(environ, _WITHOUT_COMPILER)


def _with_first(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    before = environ.get("PYTHONPATH")
    return {**environ, "PYTHONPATH": f"{folder}:{before}" if before else str(folder)}
