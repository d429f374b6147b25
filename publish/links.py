"""Lists the links of the documentation that lead elsewhere, each with its pages: what no test here can follow.

    python -m publish.links

A release is a good time to follow them: `python -m publish.links | cut -f1` gives them to whatever program does that.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDERS = (".", "docs", "examples", "site-configs", "templates")


def external_links() -> dict[str, list[str]]:
    """Return the pages of each link that leads out of the repository."""
    pages = {page for folder in FOLDERS for page in REPOSITORY.glob("*.md" if folder == "." else f"{folder}/**/*.md")}
    found: dict[str, list[str]] = defaultdict(list)
    for page in sorted(pages):
        for link in sorted(set(re.findall(r"\]\((https?://[^)\s]+)\)", page.read_text()))):
            found[link].append(page.relative_to(REPOSITORY).as_posix())
    return dict(sorted(found.items()))


if __name__ == "__main__":
    for link, pages in external_links().items():
        print(link, " ".join(pages), sep="\t")
