"""What a real Slurm answered, from `tests/captured/`; `python -m tests.captured.record` makes it anew."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from hpc_elastic.scheduler.slurm.output import CommandOutput

FOLDER = Path(__file__).parents[2] / "captured"
VERSIONS = sorted(path.name for path in FOLDER.glob("slurm-*"))


@dataclass(frozen=True)
class Captured:
    command: list[str]
    job_ids: list[str]
    output: CommandOutput


def captured(version: str, case: str) -> Captured:
    data = json.loads((FOLDER / version / f"{case}.json").read_text())
    output = CommandOutput(returncode=data["returncode"], stdout=data["stdout"], stderr=data["stderr"])
    return Captured(data["command"], data.get("job_ids", []), output)
