"""`hpc-elastic doctor` without a Slurm, and with a wrong command line; on a real one in tests/integration."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.cli.main import main
from hpc_elastic.doctor.probe_job import prepare_probe, render_probe
from tests.cli.conftest import FakeSlurm


def results(text: str) -> dict[str, dict[str, Any]]:
    return {each["check"]: each for each in json.loads(text)["checks"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "two"], "--nodes is 'two', expected a number"),
        (["--nodes", "-1"], "--nodes"),
        (["--wait", "soon"], "--wait: expected a duration"),
        (["--write", "job.yaml"], "job.yaml is there already"),
        (["--write", "site.txt"], "site.txt is no name of a site file"),
        (["--write", "none/site.yaml"], "there is no folder"),
        (["--write", "my site.yaml"], "a site is called as its file"),
        (["job.yaml"], "unrecognized arguments"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_is_tried(
    arguments: list[str], message: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(os.listdir(workplace))
    assert main(["doctor", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert sorted(os.listdir(workplace)) == before


def test_no_job_is_started_for_no_nodes(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--site", "local", "--nodes", "0", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["job_id"], told["nodes"], told["verdict"]) == (None, [], "ok")
    assert [each["check"] for each in told["checks"]] == ["run root"]
    assert not (workplace / "hpc-elastic-runs").exists()


def test_a_draft_is_written_once_and_accepted(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["doctor", "--site", "local", "--nodes", "0", "--write", "mine.yaml"]
    assert main(arguments) == 0
    drafted = (workplace / "mine.yaml").read_text()
    assert main(["sites", "check", "mine.yaml"]) == 0
    assert main(arguments) == 2
    assert (workplace / "mine.yaml").read_text() == drafted
    assert "never changes a file" in capsys.readouterr().err


def test_half_a_draft_is_not_left(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        assert main(["doctor", "--site", "local", "--nodes", "0", "--write", "mine.yaml"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot write mine.yaml: File too large" in capsys.readouterr().err
    assert not (workplace / "mine.yaml").exists()


def test_a_run_root_that_cannot_be_made_starts_no_job(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workplace / "hpc-elastic-runs").write_text("a file")
    assert main(["doctor", "--site", "local", "--json"]) == 1
    found = results(capsys.readouterr().out)
    assert (found["run root"]["verdict"], found["run root"]["key"]) == ("fail", "run_root")
    assert (found["job"]["verdict"], found["job"]["found"]) == (
        "skip",
        "no job was started: its folder cannot be made",
    )


def test_a_machine_without_slurms_commands_starts_no_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["doctor", "--site", "generic-slurm", "--json"]) == 1
    found = results(capsys.readouterr().out)
    assert found["slurm"]["found"] == "cannot run scontrol: No such file or directory"
    assert found["job"]["found"] == "no job was started: Slurm does not answer"


@pytest.mark.long
def test_a_job_that_slurm_refuses_is_a_line_with_slurms_words(
    fake_slurm: FakeSlurm, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "Batch job submission failed: Invalid account or account/partition combination specified"
    fake_slurm.script("sbatch", f"echo 'sbatch: error: {words}' >&2; exit 1")
    fake_slurm._program("scontrol", "exit 1")
    assert main(["doctor", "--site", "generic-slurm", "--json"]) == 1
    found = results(capsys.readouterr().out)
    assert "Invalid account" in found["job"]["found"]
    assert found["job"]["key"] == "defaults.sbatch"
    assert "sbatch" in found["job"]["action"]
    assert not (workplace / "hpc-elastic-runs").exists()


@pytest.mark.long
def test_the_script_starts_the_checks_as_a_run_starts_its_agents(workplace: Path) -> None:
    """Only the program differs, and where its output goes; an odd path is one word."""
    odd = '/a b/it\'s "x" $$HOME %j'
    site = f"{{name: odd, contact: a, last_checked: never, scheduler: slurm, run_root: {json.dumps(odd)}, srun: [--x]}}"
    (workplace / "odd.yaml").write_text(site)
    prepared = prepare_probe(
        3, site_name="./odd.yaml", overrides=["setup=[module load x]"], is_allocated=False, say=print
    )
    ours, runs = render_probe(prepared).splitlines(), prepared.script.splitlines()
    added = [line.strip() for line in ours if line not in runs]
    assert len(added) == 3, added
    assert added[0] == "--x --chdir=/ --output=all \\"
    assert "hpc_elastic.doctor.node.main" in added[1]
    assert '"$hpc_elastic_python" -c pass' in added[2]
    assert [line for line in ours if "module load x" in line]


@pytest.mark.local
@pytest.mark.variant(of="test_doctor_finds_everything_that_is_broken_on_a_cluster")
def test_doctor_tries_this_machine_with_processes_as_nodes(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In a folder with an odd name; and another process group of the user's may be at work here."""
    odd = workplace / 'it\'s "x" $HOME %j'
    odd.mkdir()
    os.chdir(odd)
    code = main(["doctor", "--site", "local", "--nodes", "3", "--json"])
    found = results(capfd.readouterr().out)
    assert code == 0, found
    assert {"job", "python", "run root", "ports", "clocks", "shared files", "torch", "all-reduce"} <= found.keys()
    assert found["ports"]["found"].startswith("6 connections by lo to port ")
    assert os.listdir(odd) == []


@pytest.mark.local
@pytest.mark.variant(of="test_doctor_finds_everything_that_is_broken_on_a_cluster")
def test_doctor_tells_how_a_setup_line_ended(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--site", "local", "--set", "setup=[module load nothing]", "--json"]) == 1
    found = results(capfd.readouterr().out)
    assert "it has ended" in found["job"]["found"]
    assert "setup line failed (status 127): module load nothing" in found["job"]["found"]
