"""Says what keeps a tree from being released: its state in git, its version, its changelog."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path


def project_version(root: Path) -> str:
    """Return the version of the package, as its module has it."""
    (version,) = re.findall(r'^__version__ = "(.+)"$', (root / "hpc_elastic/__init__.py").read_text(), re.M)
    return str(version)


def repository_url(root: Path) -> str:
    """Return where the project's repository is."""
    (url,) = re.findall(r'^Repository = "(.+)"$', (root / "pyproject.toml").read_text(), re.M)
    return str(url)


def find_problems(root: Path, git: Callable[..., str]) -> list[str]:
    """Return all that keeps the tree from being released.

    Args:
        root: the checkout.
        git: runs git there and returns what it prints.
    """
    version = project_version(root)
    return [*_of_git(git, version, repository_url(root)), *_of_texts(root, version)]


def _of_git(git: Callable[..., str], version: str, url: str) -> Iterator[str]:
    if changed := git("status", "--porcelain"):
        yield f"the tree is not clean:\n{changed}"
    commit = git("rev-parse", "HEAD")
    if git("tag", "--list", f"v{version}") and git("rev-list", "-n", "1", f"v{version}") != commit:
        yield f"the tag v{version} is there, and is not this commit: take the next version"
    remotes = {re.sub(r"^git@([^:]+):", r"https://\1/", line.split()[1]) for line in git("remote", "-v").splitlines()}
    if url not in {remote.removesuffix(".git") for remote in remotes}:
        yield f"no remote of this checkout is {url}, the repository that pyproject.toml names: is it ours?"


def _of_texts(root: Path, version: str) -> Iterator[str]:
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        yield f"the version {version} is none of a release, such as 0.2.0 or 0.2.0rc1"
    section = changelog_section((root / "CHANGELOG.md").read_text(), version)
    if section is None:
        yield f"CHANGELOG.md has no section `## [{version}] - YYYY-MM-DD`"
    elif not section.strip():
        yield f"the section of {version} in CHANGELOG.md is empty"


def changelog_section(text: str, version: str) -> str | None:
    """Return what the changelog says of a version that has a date; None if it has no such section."""
    found = re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return found[1] if found else None
