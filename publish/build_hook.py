"""Adds the manual page and the completions to a wheel, below `share/`: a hook of hatchling.

They are made from the parsers of the verbs, which need the standard library alone, so that no file of them has to be
kept beside the code. An editable install is left without: `hpc-elastic completion` prints what there is to install.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_DAY_OF_HATCHLING = 1580601600  # 2020-02-02, the time of all files in an archive if nobody says another
_SHARED = {
    "hpc-elastic.1": "share/man/man1/hpc-elastic.1",
    "bash": "share/bash-completion/completions/hpc-elastic",
    "zsh": "share/zsh/site-functions/_hpc-elastic",
    "fish": "share/fish/vendor_completions.d/hpc-elastic.fish",
}


class SharedFiles(BuildHookInterface[Any]):
    """Writes the shared files for the time of the build."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files, and tell where in the wheel they stand."""
        if self.target_name != "wheel" or version != "standard":
            return
        self._folder = tempfile.TemporaryDirectory()
        for name, text in shared_texts(Path(self.root)).items():
            path = Path(self._folder.name, name)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o644)
            build_data["shared_data"][str(path)] = _SHARED[name]

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the files again."""
        if self._folder is not None:
            self._folder.cleanup()


def shared_texts(root: Path) -> dict[str, str]:
    """Return the text of each shared file, by the key of `_SHARED`."""
    sys.path.insert(0, str(root))
    try:
        from hpc_elastic import __version__
        from hpc_elastic.cli.completion import completion
        from hpc_elastic.cli.shells.grammar import read_verbs
        from hpc_elastic.cli.shells.manual import manual_page
    finally:
        sys.path.remove(str(root))
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", _DAY_OF_HATCHLING))
    date = time.strftime("%Y-%m-%d", time.gmtime(seconds))
    texts = {shell: completion(shell) for shell in ("bash", "zsh", "fish")}
    return {"hpc-elastic.1": manual_page(read_verbs(), version=__version__, date=date), **texts}
