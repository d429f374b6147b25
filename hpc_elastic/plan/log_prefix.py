"""Checks and fills the template of the prefix of each worker's line that an agent's log repeats.

The grammar is that of torch's TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, which is `string.Template`'s:
`${name}` or `$name`, and `$$` for a dollar sign. torch leaves a name that it does not know as it is;
here it is an error.
"""

from __future__ import annotations

import string
from collections.abc import Mapping

PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
NAMES = ("role_name", "local_rank", "rank", "node", "attempt")  # the first three are torch's


def check_prefix(template: str) -> str:
    """Check the grammar and the names, and return the template.

    Raises:
        ValueError: there is a name that is not in `NAMES`, or a single dollar sign without a name.
    """
    for match in string.Template.pattern.finditer(template):
        if match["invalid"] is not None:
            found = template[match.start() : match.start() + 12]
            raise ValueError(f"expected ${{name}}, or $$ for a dollar sign, found {found!r}")
        name = match["named"] or match["braced"]
        if name is not None and name not in NAMES:
            raise ValueError(f"expected the names {', '.join(NAMES)}, found ${{{name}}}")
    return template


def fill_prefix(template: str, values: Mapping[str, object]) -> str:
    """Return the prefix of one worker; `values` has a value for each of `NAMES`."""
    return string.Template(template).substitute(values)
