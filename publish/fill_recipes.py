"""Fills the version and the sdist's hash into the recipes of package managers."""

from __future__ import annotations

from pathlib import Path

RECIPES = Path(__file__).resolve().parent / "recipes"
# Where each package manager wants its file.
PLACES = {
    "conda.recipe.yaml": "conda/recipe.yaml",
    "easybuild.eb": "easybuild/hpc_elastic-{version}-foss-2024a.eb",
    "module.lua": "module/hpc_elastic/{version}.lua",
    "spack.package.py.in": "spack/packages/py_hpc_elastic/package.py",
}


def filled(name: str, *, version: str, sha256: str) -> str:
    """Return a recipe of a version of the package, of which the sdist has this hash."""
    text = (RECIPES / name).read_text(encoding="utf-8")
    return text.replace("@VERSION@", version).replace("@SHA256@", sha256)


def write_recipes(folder: Path, *, version: str, sha256: str) -> None:
    """Write all recipes into a folder."""
    for name, place in PLACES.items():
        path = folder / place.format(version=version)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(filled(name, version=version, sha256=sha256), encoding="utf-8")
