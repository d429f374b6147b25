"""Makes the pages of the repository into pages of the documentation's site: a hook of mkdocs.

The pages in `docs/` and the others (README.md, CONTRIBUTING.md, the examples) link to each other, and to files, as they
stand in the repository. The site holds the others below `project/`, and links to files lead to the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parents[1]
# Pages outside docs/, and where the site has them.
OTHERS = {
    "README.md": "project/readme.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "RELEASING.md": "project/releasing.md",
    "SECURITY.md": "project/security-policy.md",
    "examples/accelerate/README.md": "project/example-accelerate.md",
    "examples/digits/README.md": "project/example-digits.md",
    "examples/lightning/README.md": "project/example-lightning.md",
    "examples/roles/README.md": "project/example-roles.md",
    "examples/transformers/README.md": "project/example-transformers.md",
    "site-configs/README.md": "project/site-configs.md",
    "templates/README.md": "project/templates.md",
}
_IN_THE_REPOSITORY = {there: here for here, there in OTHERS.items()}
_FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.M | re.S)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def repository_path(page: str) -> str:
    """Return where a page of the site stands in the repository."""
    return _IN_THE_REPOSITORY.get(page, f"docs/{page}")


def site_path(path: str) -> str | None:
    """Return the page or picture of the site that a file of the repository is; None if it is none."""
    if path in OTHERS:
        return OTHERS[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def link_of(target: str, page: str, repository_url: str) -> str:
    """Return the link on a page of the site for one that stands in the repository's page.

    Args:
        target: as it is written there, such as `../../README.md#install`.
        page: the site's page, such as `tutorial/first-run.md`.
        repository_url: where files are shown that are no pages.
    """
    path, hash_, anchor = target.partition("#")
    if not path or re.match(r"[a-z]+:", target):
        return target
    here = repository_path(page)
    there = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    if (REPOSITORY / there).is_dir() and (REPOSITORY / there / "README.md").is_file():
        there = posixpath.join(there, "README.md")
    found = site_path(there)
    if found is None or (REPOSITORY / there).is_dir():
        kind = "tree" if (REPOSITORY / there).is_dir() else "blob"
        return f"{repository_url}/{kind}/main/{there}{hash_}{anchor}"
    return posixpath.relpath(found, posixpath.dirname(page) or ".") + hash_ + anchor


def rewrite_links(text: str, page: str, repository_url: str) -> str:
    """Return the text of a page with the site's links; what stands in fences is left as it is."""

    def rewritten(prose: str) -> str:
        return _LINK.sub(lambda found: found[1] + link_of(found[2], page, repository_url) + found[3], prose)

    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [rewritten(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, rewritten(text[end:])])


def swallowed_lists(html: str) -> list[str]:
    """Return the lines of lists and tables that became text of a paragraph: GitHub wants no blank line before them."""
    paragraphs = re.findall(r"<p>(.*?)</p>", html, re.S)
    return [line for text in paragraphs for line in re.findall(r"^(?:[-*] |\d+\. |\|).*", text, re.M)]


def bars_of_tables(html: str) -> str:
    """Return a page on which code in a table has a bar where GitHub shows one, without its backslash."""
    return re.sub(r"<td[^>]*>.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.S)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand outside docs/."""
    from mkdocs.structure.files import File

    for here, there in OTHERS.items():
        files.append(File.generated(config, there, content=(REPOSITORY / here).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links of a page to the site's pages, or to the repository."""
    if page.file.src_uri == "README.md":
        page.meta["hide"] = ["navigation"]  # of the first page it would be this page alone
    return rewrite_links(markdown, page.file.src_uri, str(config.repo_url).rstrip("/"))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show what GitHub shows; warn where that is not possible, which ends the build under --strict."""
    from mkdocs.plugins import get_plugin_logger

    for line in swallowed_lists(html):
        get_plugin_logger(__name__).warning(f"{page.file.src_uri}: no blank line before {line!r}")
    return bars_of_tables(html)
