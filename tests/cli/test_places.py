"""A site, a template or a variable that is not there: the file, the line and the key that name it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.cli.main import main

Capture = pytest.CaptureFixture[str]
SITE = "name: mine\ncontact: ada\nlast_checked: 2026-11-20\nscheduler: slurm\n"


def said(capsys: Capture, *argv: str) -> str:
    assert main(["check", "job.yaml", *argv]) == 3
    return capsys.readouterr().err


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def write_site(workplace: Path, text: str) -> Path:
    path = workplace / "site-configs" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(SITE + text)
    return path


def test_unknown_site_of_a_job_file_is_told_with_its_line(workplace: Path, capsys: Capture) -> None:
    append(workplace / "job.yaml", "site: generic-slrm\n")
    assert "error: job.yaml:6: site: there is no site 'generic-slrm'; did you mean generic-slurm?" in said(capsys)


def test_unknown_site_of_an_option_is_told_with_the_option(workplace: Path, capsys: Capture) -> None:
    assert "error: --site: there is no site 'nowhere'\n" in said(capsys, "--site", "nowhere")


def test_site_file_that_is_missing_is_told_once_with_the_line_that_names_it(workplace: Path, capsys: Capture) -> None:
    append(workplace / "job.yaml", "site: ./none.yaml\n")
    message = f"error: job.yaml:6: site: cannot read the site file {workplace}/none.yaml: No such file or directory\n"
    assert message in said(capsys)


def test_missing_template_of_a_job_file_is_told_with_its_line(workplace: Path, capsys: Capture) -> None:
    append(workplace / "job.yaml", "template: /nowhere/job.sh.j2\n")
    error = said(capsys, "--site", "local")
    assert "error: job.yaml:6: template: no template /nowhere/job.sh.j2: there is no such file\n" in error


def test_missing_template_of_a_site_is_told_with_the_line_of_its_file(workplace: Path, capsys: Capture) -> None:
    path = write_site(workplace, "template: ./none.j2\n")
    error = said(capsys, "--site", "mine")
    assert f"error: {path}:5: template: no template {path.parent}/none.j2: there is no such file\n" in error


def test_missing_template_of_a_sites_defaults_is_told_with_the_line_of_its_file(
    workplace: Path, capsys: Capture
) -> None:
    path = write_site(workplace, "defaults:\n  template: slurm/jobs.sh.j2\n")
    assert f"error: {path}:6: defaults.template: no template slurm/jobs.sh.j2: neither" in said(
        capsys, "--site", "mine"
    )


def test_variable_of_run_root_that_is_not_set_is_told_with_its_line_and_what_to_do(
    workplace: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("USER", raising=False)
    path = write_site(workplace, "run_root: /scratch/${USER}/runs\n")
    message = "${USER} is not set here; export it before you submit, or write $$ for a $"
    assert f"error: {path}:5: run_root: {message}\n" in said(capsys, "--site", "mine")
