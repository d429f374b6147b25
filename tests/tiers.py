"""What makes cases of a test variants: `make test` runs the first, and `make test-all` the others too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def variants(*cases: Any, of: str, ids: Iterable[str] | None = None) -> list[Any]:
    """Cases for `parametrize` that only `make test-all` runs.

    Args:
        cases: one value each, or a tuple of values where a case has several.
        of: the test that keeps the promise in `make test`, often the very test that has these cases.
        ids: names of the cases, where the values do not name them well.
    """
    names = list(ids) if ids is not None else [None] * len(cases)
    mark = pytest.mark.variant(of=of)
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), id=name, marks=mark)
        for case, name in zip(cases, names, strict=True)
    ]
