"""The digits example under plain torchrun, without hpc_elastic: it learns, and it resumes exactly."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
TRAIN = DIGITS / "train.py"


@dataclass(frozen=True)
class Training:
    exit_code: int
    output: str
    records: list[dict[str, Any]]


def torchrun(directory: Path, ranks: int, script: Path, arguments: Sequence[str] = ()) -> Training:
    """Runs a script by torchrun in `directory`, with a numpy that cannot be imported."""
    no_numpy = directory / "no_numpy"
    no_numpy.mkdir(parents=True, exist_ok=True)
    (no_numpy / "numpy.py").write_text("raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')")
    record = directory / "record"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HPC_ELASTIC_")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(no_numpy), "RES_OPTIONS": "timeout:1 attempts:1"}
    environment["TMPDIR"] = str(directory)  # where torchrun leaves the folder of the logs of a run that failed
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*command, str(script), *arguments],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    records = [json.loads(path.read_text()) for path in sorted(record.glob("*.json"))]
    return Training(done.returncode, done.stdout, records)


def test_data_is_what_its_source_says() -> None:
    lines = gzip.decompress((DIGITS / "digits.csv.gz").read_bytes()).decode("ascii").splitlines()
    rows = [[int(field) for field in line.split(",")] for line in lines]
    assert len(rows) == 1797
    assert {len(row) for row in rows} == {65}
    assert {pixel for row in rows for pixel in row[:64]} == set(range(17))
    counts = [sum(row[64] == digit for row in rows) for digit in range(10)]
    assert counts == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert "10.24432/C50P49" in (DIGITS / "SOURCE.md").read_text()


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
@pytest.mark.local
def test_training_reaches_95_percent_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    arguments = ["--record", "record", "--keep-in-memory"]  # which keeps nothing here
    whole = torchrun(tmp_path / "whole", 2, TRAIN, arguments)
    assert whole.exit_code == 0, whole.output
    assert "started at step 1 on 2 ranks" in whole.output
    accuracy = float(whole.output.rpartition("accuracy on held-out digits: ")[2].partition("%")[0])
    assert accuracy >= 95

    failed = torchrun(tmp_path / "broken", 2, TRAIN, [*arguments, "--fail-at-step", "37", "--fail-rank", "1"])
    assert failed.exit_code == 1
    assert "rank 1 fails at step 37" in failed.output
    assert {record["last_step"] for record in failed.records} == {30}

    resumed = torchrun(tmp_path / "broken", 2, TRAIN, arguments)
    assert resumed.exit_code == 0, resumed.output
    assert "resumed at step 31 on 2 ranks" in resumed.output
    assert {record["first_step"] for record in resumed.records} == {31}
    hashes = {record["parameter_hash"] for record in whole.records + resumed.records}
    assert len(hashes) == 1
    assert None not in hashes


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
@pytest.mark.local
def test_training_exits_with_1_below_the_accuracy_and_goes_on_with_other_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    short = torchrun(tmp_path, 1, TRAIN, ["--epochs", "1", "--accuracy", "0.999"])
    assert short.exit_code == 1
    assert "accuracy on held-out digits" in short.output
    longer = torchrun(tmp_path, 3, TRAIN, ["--epochs", "2", "--accuracy", "0.1"])
    assert longer.exit_code == 0, longer.output
    assert "resumed at step 23 on 3 ranks" in longer.output
