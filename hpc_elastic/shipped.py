"""Finds `templates/` and `site-configs/`, which are inside an installed package or beside it in a checkout."""

from __future__ import annotations

import os
from typing import Literal

from hpc_elastic.errors import HpcElasticError, SiteError, TemplateError

PACKAGE_DIRECTORY = os.path.dirname(os.path.abspath(__file__))

ShippedName = Literal["templates", "site-configs"]


def shipped_directory(name: ShippedName, *, package_directory: str = PACKAGE_DIRECTORY) -> str:
    """Return the absolute path of a folder that comes with the package.

    A wheel holds it in `_shipped/` inside the package. A checkout, and with it an editable install
    and an unpacked sdist, holds it beside the package: one copy, which people edit.

    Raises:
        TemplateError: `templates` is in neither place.
        SiteError: `site-configs` is in neither place.
    """
    candidates = (
        os.path.join(package_directory, "_shipped", name),
        os.path.join(os.path.dirname(package_directory), name),
    )
    for candidate in candidates:
        if os.path.isdir(candidate):
            return candidate
    raise _missing(name, candidates)


def _missing(name: ShippedName, candidates: tuple[str, ...]) -> HpcElasticError:
    message = f"the folder {name} of hpc_elastic is missing; it was expected at {' or '.join(candidates)}"
    tip = "install hpc_elastic again: a wheel and a checkout both bring the folder"
    if name == "templates":
        return TemplateError(message, tip=tip)
    return SiteError([message], tip=tip)
