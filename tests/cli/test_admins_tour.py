"""The admin's tour does what its page says, with the files that the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from tests.cli.conftest import FakeSlurm

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "admins-tour.md"
Capture = pytest.CaptureFixture[str]


def fence(language: str) -> str:
    """The one block of this language on the page."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    return str(text)


@pytest.mark.long
def test_the_tour_leads_to_a_site_file_with_an_override(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(workplace / "config"))
    folder = workplace / "config" / "hpc-elastic" / "sites"
    folder.mkdir(parents=True)
    assert main(["sites", "show", "generic-slurm"]) == 0
    assert capsys.readouterr().out.startswith("# Any Slurm")
    site, template = folder / "mycluster.yaml", folder / "mycluster.sh.j2"
    site.write_text(fence("yaml"))
    with_account = ["--site", str(site), "--set", "sbatch.account=abc", "job.yaml"]
    assert main(["sites", "check", str(site)]) == 0
    assert main(["check", "--explain", *with_account]) == 0
    assert f"module load cuda/12.4  [site {site}:" in capsys.readouterr().out
    assert main(["check", "--site", str(site), "job.yaml"]) == 3
    assert "sbatch.account: missing" in capsys.readouterr().err
    assert main(["check", "--set", "time=30h", *with_account]) == 3
    refusal = next(line.strip() for line in PAGE.read_text().splitlines() if line.startswith("    time: partition"))
    assert f"error: {refusal}\n" in capsys.readouterr().err

    template.write_text(fence("jinja"))
    site.write_text(f"{fence('yaml')}template: ./mycluster.sh.j2\n")
    assert main(["templates", "lint", str(template)]) == 0
    capsys.readouterr()
    assert main(["templates", "diff", str(site)]) == 0
    assert "\n+ulimit -l unlimited\n" in capsys.readouterr().out
    assert main(["render", *with_account]) == 0
    assert "\nulimit -l unlimited\n" in capsys.readouterr().out

    fake_slurm._program("scontrol", "echo 'ClusterName             = mycluster'")
    assert main(["sites", "which"]) == 0
    assert capsys.readouterr().out == f"{site}\n"
