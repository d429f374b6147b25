"""Python environments for tests, made of links to what the tests' own one has: seconds, not an hour of installing."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

# What the login side needs; torch and submitit are for others.
LIGHT = ("jinja2", "pydantic", "pyyaml", "rich")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def make_environment(folder: Path) -> Path:
    """An empty virtual environment of this Python; returns its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


def install_wheel(python: Path, wheel: Path) -> None:
    """Installs a wheel as users do, but without its dependencies."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, str(wheel)], check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})


def link_distributions(python: Path, names: Iterable[str]) -> None:
    """Links these distributions and all that they need into an environment."""
    target = _site_packages(python)
    for name in sorted(_with_dependencies(names)):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            _link(Path(str(distribution.locate_file(top))), target / top)


def link_all_but(python: Path, left_out: str) -> None:
    """Links everything that the tests' environment has into another one, but not what has this name."""
    target = _site_packages(python)
    for source in Path(importlib.metadata.distribution("pip").locate_file("")).iterdir():  # type: ignore[arg-type]
        if left_out not in source.name and source.name != "__pycache__":
            _link(source, target / source.name)


def find_python(version: str) -> Path | None:
    """An interpreter of this version on this machine: on PATH, or installed by pyenv; None if there is none."""
    folders = [*map(Path, os.environ["PATH"].split(os.pathsep))]
    folders += sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin"))
    for folder in folders:
        python = folder / f"python{version}"
        if ".pyenv/shims" not in str(folder) and os.access(python, os.X_OK):
            return python
    return None


def _with_dependencies(names: Iterable[str]) -> set[str]:
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            for requirement in importlib.metadata.requires(name) or ():
                match = _NAME.match(requirement)
                if match and ";" not in requirement:
                    left.append(match[0])
    return found


def _site_packages(python: Path) -> Path:
    return python.parent.parent / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def _link(source: Path, target: Path) -> None:
    if source.exists() and not target.exists():
        target.symlink_to(source)
