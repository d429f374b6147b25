"""Run directories, folders and scripts with names that people give them, on this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Door
from tests.tiers import variants

pytestmark = pytest.mark.local

NAMES = ["żółć 😀 $(touch canary) `touch canary` ; touch canary & ${HOME} \\n"]
MORE_NAMES = [
    "żółć 数字 😀 with spaces",
    "$(touch canary) `touch canary` ; touch canary & ${HOME} \\n",
    "with a space",
    'it\'s "quoted"',
    "100%N %j %%",
    "-rf --leading dashes",
    "~[a-z]* {x,y} # !",
]
SCRIPT = """
import os, sys
print(os.environ["HPC_ELASTIC_RUN_DIR"])
print(sys.argv[1:])
if os.environ["HPC_ELASTIC_ATTEMPT"] == "1":
    sys.exit(4)
"""


@pytest.mark.parametrize("name", [*NAMES, *variants(*MORE_NAMES, of="test_a_run_directory_of_any_name_works")])
def test_a_run_directory_of_any_name_works(door: Door, name: str) -> None:
    """The job's folder, the script and its argument are called so as well."""
    project = door.folder / name
    project.mkdir()
    Path(project, f"{name}.py").write_text(SCRIPT)
    quoted = name.replace("'", "''")
    argument = quoted.replace("$", "$$")
    job = (
        "name: odd\nsite: local\nnodes: 2\nworkers_per_node: 1\ntime: 10m\nrestart: {max_restarts: 1}\n"
        f"setup: ['true']\nentrypoint: {{script: './{quoted}.py', args: ['{argument}']}}\n"
    )
    (project / "job.yaml").write_text(job)
    inside = Door(project, door.environ)
    run = inside.submit("job.yaml", f"--run-dir={name}", wait=True)
    result = run.result()
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", 2), run.story()
    assert run.stdout(2, 1).splitlines() == [str(project / name), repr([name])]
    assert f"run directory  {project / name}\n" in inside.run("status", f"./{name}").stdout
    assert str(project / name) in inside.run("logs", f"./{name}").stdout
    again = subprocess.run(["bash", run.layout.script], capture_output=True, text=True, check=False)
    assert again.returncode == 5, again.stderr
    assert not list(door.folder.rglob("canary"))
    run.assert_nothing_left()
    run.assert_records_valid()


@pytest.mark.parametrize("name", ["line\nbreak", "tab\tstop", "bell\a"])
def test_a_run_directory_rejects_control_characters(door: Door, name: str) -> None:
    door.write("train.py", "")
    door.write("job.yaml", "site: local\ntime: 10m\nentrypoint: {script: train.py}\n")
    done = door.run("submit", "job.yaml", "--run-dir", name, exit_code=3)
    assert "control character" in done.stderr
    assert sorted(path.name for path in door.folder.iterdir()) == ["job.yaml", "train.py"]
