"""The template of what stands before teed lines."""

from __future__ import annotations

import pytest

from hpc_elastic.plan.log_prefix import NAMES, check_prefix, fill_prefix


def test_every_name_is_filled_in() -> None:
    template = check_prefix("".join(f"${{{name}}} " for name in NAMES) + "$rank $$[")
    values = {name: f"<{name}>" for name in NAMES}
    assert fill_prefix(template, values) == "<role_name> <local_rank> <rank> <node> <attempt> <rank> $["


@pytest.mark.parametrize(
    ("template", "found"),
    [("${host}: ", r"\$\{host\}"), ("$Rank", r"\$\{Rank\}"), ("cost: 5$", r"'\$'"), ("${rank", r"'\$\{rank'")],
)
def test_an_unknown_name_and_a_lone_dollar_are_rejected(template: str, found: str) -> None:
    with pytest.raises(ValueError, match=f"^expected .*found {found}$"):
        check_prefix(template)
