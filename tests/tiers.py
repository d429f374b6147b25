"""Cases of a test that the quicker commands leave out: `make check` runs the first, and others the rest."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import pytest


def longer(*cases: Any, ids: Iterable[str] | None = None) -> list[Any]:
    """Cases for `parametrize` that `make check` leaves to `make test`; arguments as of `variants`."""
    return _marked(cases, pytest.mark.long, ids)


def first_of(cases: Mapping[str, Any], number: int) -> list[Any]:
    """Named cases, of which `make check` runs so many."""
    names = list(cases)
    kept = [_case(cases[name], id=name) for name in names[:number]]
    return [*kept, *longer(*(cases[name] for name in names[number:]), ids=names[number:])]


def variants(*cases: Any, of: str, ids: Iterable[str] | None = None) -> list[Any]:
    """Cases for `parametrize` that only `make test-all` runs.

    Args:
        cases: one value each, or a tuple of values where a case has several.
        of: the test that keeps the promise in `make test`, often the very test that has these cases.
        ids: names of the cases, where the values do not name them well.
    """
    return _marked(cases, pytest.mark.variant(of=of), ids)


def each_third(cases: Iterable[Any], *, of: str) -> list[Any]:
    """Cases for `parametrize` of which `make test` runs each third; arguments as of `variants`."""
    parts = [[case] if number % 3 == 0 else variants(case, of=of) for number, case in enumerate(cases)]
    return [case for part in parts for case in part]


def parts_of(seeds: range, *, check: int, test: int, of: str, part: int = 100) -> list[Any]:
    """Parts of a campaign's seeds for `parametrize`, each a range: the first ones are played by the quicker commands.

    Args:
        seeds: all seeds, which `make test-all` plays.
        check: how many of them `make check` plays.
        test: how many of them `make test` plays.
        of: the test that has these cases.
        part: the most of them in a case.
    """
    bounds = sorted({0, check, test, len(seeds), *range(check, test, part), *range(test, len(seeds), part)})
    parts = []
    for first, end in itertools.pairwise(bounds):
        marks = [pytest.mark.long] * (first >= check) + [pytest.mark.variant(of=of)] * (first >= test)
        parts.append(pytest.param(seeds[first:end], id=f"{seeds[first]}-{seeds[end - 1]}", marks=marks))
    return parts


def _marked(cases: tuple[Any, ...], mark: pytest.MarkDecorator, ids: Iterable[str] | None) -> list[Any]:
    names = list(ids) if ids is not None else [None] * len(cases)
    return [_case(case, id=name, marks=mark) for case, name in zip(cases, names, strict=True)]


def _case(case: Any, **options: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), **options)
