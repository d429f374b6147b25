"""The recipes of package managers say what `pyproject.toml` says, and can be read."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from publish.fill_recipes import PLACES, filled, write_recipes

REPOSITORY = Path(__file__).parents[2]
PYPROJECT = (REPOSITORY / "pyproject.toml").read_text()
HASH = "a" * 64
OTHER_NAMES = {"torch": "pytorch"}  # of conda


def text_of(name: str) -> str:
    return filled(name, version="1.2.3", sha256=HASH)


def required() -> dict[str, str]:
    """What the package requires, with the oldest version of each."""
    (listed,) = re.findall(r"^dependencies = \[(.*?)\]", PYPROJECT, re.M | re.S)
    found = [Requirement(quoted) for quoted in re.findall(r'"([^"]+)"', listed)]
    return {requirement.name: str(requirement.specifier).removeprefix(">=") for requirement in found}


def assigned(text: str) -> dict[str, Any]:
    """The names that a Python file gives to constants."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = ast.unparse(node.value).replace("(name, version, {", "('hpc_elastic', '1.2.3', {")
            found[node.targets[0].id] = ast.literal_eval(value)
    return found


def test_every_recipe_is_filled_with_version_and_hash(tmp_path: Path) -> None:
    write_recipes(tmp_path, version="1.2.3", sha256=HASH)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == len(PLACES) == 4
    for path in written:
        text = path.read_text()
        assert "1.2.3" in text
        assert not re.search(r"@[A-Z]\w*@", text)
        assert (HASH in text) == (path.suffix != ".lua")


def test_the_conda_recipe_requires_what_the_package_requires() -> None:
    recipe = yaml.safe_load(text_of("conda.recipe.yaml"))
    run = [line.split(" >=") for line in recipe["requirements"]["run"] if " >=" in line]
    expected = {OTHER_NAMES.get(name, name): least for name, least in required().items()}
    assert {name: least for name, least in run if name != "python"} == expected
    assert f'requires-python = ">={recipe["context"]["python_min"]}"' in PYPROJECT
    assert recipe["build"]["python"]["entry_points"] == ["hpc-elastic = hpc_elastic.cli.main:run"]


def test_the_spack_recipe_requires_what_the_package_requires() -> None:
    text = text_of("spack.package.py.in")
    compile(text, "package.py", "exec")
    found = dict(re.findall(r'depends_on\("py-(\w+)@([\d.]+):[^"]*".*"run"\)\)', text))
    assert found.pop("plotly") in PYPROJECT
    assert found == required()
    assert 'depends_on("python@3.10:"' in text


def test_the_easybuild_recipe_brings_what_the_package_requires() -> None:
    recipe = assigned(text_of("easybuild.eb"))
    names = {name.lower() for name, *_ in (*recipe["dependencies"], *recipe["exts_list"])}
    of_bundle = {"cloudpickle", "jinja2", "rich"}  # Python-bundle-PyPI
    assert {OTHER_NAMES.get(name, name) for name in required()} - of_bundle <= names
    assert (recipe["name"], recipe["version"]) == ("hpc_elastic", "1.2.3")
    for _, _, options in recipe["exts_list"]:
        assert all(re.fullmatch("[0-9a-f]{64}", checksum) for checksum in options["checksums"])


@pytest.mark.long
def test_lmod_loads_the_module(tmp_path: Path) -> None:
    lmod = Path("/usr/share/lmod/lmod/libexec/lmod")
    if not lmod.exists() or shutil.which("bash") is None:
        pytest.skip("no Lmod here")
    write_recipes(tmp_path, version="1.2.3", sha256=HASH)
    loads = [f'eval "$({lmod} bash {words})"' for words in (f"use {tmp_path}/module", "load hpc_elastic")]
    script = "; ".join([*loads, 'echo "$PATH"', 'echo "$MANPATH"'])
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60)
    path, manuals = done.stdout.splitlines()
    assert path.split(":")[0] == "/opt/apps/hpc_elastic/1.2.3/command"
    assert manuals.split(":")[0] == "/opt/apps/hpc_elastic/1.2.3/share/man"
