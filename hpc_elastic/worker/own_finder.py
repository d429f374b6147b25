"""Lets a script import `hpc_elastic` where nothing of it is installed, and where it was removed from `sys.modules`.

The finder serves this one name, and only if no other finder knows it: it is the last of `sys.meta_path`. The package's
parent, which may be another environment's site-packages, stays off the search path.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

PACKAGE = "hpc_elastic"


class OwnFinder:
    """Finds the package in this folder."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  # the protocol's arguments
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Implement `importlib.abc.MetaPathFinder`: return the package's spec, None for every other name."""
        if name != PACKAGE:
            return None
        location = os.path.join(self._directory, "__init__.py")
        return importlib.util.spec_from_file_location(name, location, submodule_search_locations=[self._directory])


def install_own_finder() -> None:
    """Append the finder to `sys.meta_path`, once."""
    if not any(isinstance(finder, OwnFinder) for finder in sys.meta_path):
        sys.meta_path.append(OwnFinder(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
