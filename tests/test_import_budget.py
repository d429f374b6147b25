"""How much the commands and programs that users wait for import: modules are counted, for times differ by machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = "name: x\nnodes: 1\nworkers_per_node: 1\nentrypoint: {command: 'true'}\ntime: 10m\n"
CLI = "from hpc_elastic.cli.main import main; main({})"
# Of a fifth more than Python 3.11 imports: other versions have other parts of their standard library.
BUDGETS = {
    "list": (CLI.format(["list"]), 160, "asyncio jinja2 pydantic rich ssl subprocess yaml"),
    "status": ("import hpc_elastic.cli.status", 120, "asyncio jinja2 pydantic rich ssl subprocess yaml"),
    "submit": (CLI.format(["submit", "job.yaml", "--site=local", "--dry-run"]), 430, "asyncio rich ssl submitit torch"),
    "agent": ("import hpc_elastic.agent.main", 500, "jinja2 jsonschema pydantic rich torch yaml"),
    "guard": ("import hpc_elastic.agent.guard.process", 76, "asyncio ssl subprocess"),
    "keeper": ("import hpc_elastic.agent.keeper.process", 108, "asyncio ssl subprocess torch"),
    "store host": ("import hpc_elastic.worker.store_host", 85, "asyncio subprocess torch"),
    "fork server": ("import hpc_elastic.worker.fork_server", 220, "asyncio jinja2 pydantic torch yaml"),
}


@pytest.mark.long
@pytest.mark.parametrize(("code", "budget", "never"), BUDGETS.values(), ids=BUDGETS)
def test_a_command_imports_no_more_than_its_budget(tmp_path: Path, code: str, budget: int, never: str) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    count = "; print(len(set(sys.modules) - before), *(set(sys.modules) - before), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; before = set(sys.modules); {code}{count}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "XDG_STATE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = done.stdout.splitlines()
    (number,) = [int(line) for line in imported if line.isdigit()]
    assert set(never.split()) & set(imported) == set()
    assert number <= budget, f"imports {number} modules, more than {budget}; -X importtime shows what they cost"
    assert number > budget * 0.6, f"imports {number} modules: the budget of {budget} is too large to notice anything"
