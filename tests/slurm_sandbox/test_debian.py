from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.slurm_sandbox.debian import source_line
from tests.slurm_sandbox.processes import SandboxError

pytestmark = pytest.mark.skipif(not shutil.which("apt-get"), reason="not installed: apt-get")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The source list of an apt that has fetched nothing yet."""
    (tmp_path / "lists" / "partial").mkdir(parents=True)
    (tmp_path / "none").mkdir()
    settings = {"sourcelist": "sources.list", "sourceparts": "none"}
    lines = [f'Dir::Etc::{name} "{tmp_path}/{value}";' for name, value in settings.items()]
    lines += [f'Dir::State::lists "{tmp_path}/lists";', f'Dir::Cache "{tmp_path}";']
    (tmp_path / "apt.conf").write_text("\n".join(lines))
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    return tmp_path / "sources.list"


def fetch(sources: Path, place: str, release: str, origin: str) -> None:
    """Leaves what `apt-get update` does of a release."""
    name = sources.parent / "lists" / f"{place.replace('/', '_')}_dists_{release}"
    name.with_name(f"{name.name}_Release").write_text(f"Origin: {origin}\nLabel: {origin}\nComponents: main\n")
    packages = "Package: one\nVersion: 1\nArchitecture: all\nFilename: one.deb\nSize: 1\n\n"
    name.with_name(f"{name.name}_main_binary-amd64_Packages").write_text(packages)
    sources.write_text(f"{sources.read_text()}deb [arch=amd64 trusted=yes] http://{place} {release} main\n")


def test_the_mirror_is_found_if_apt_has_fetched_no_lists(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = Path("/etc/os-release").read_text()
    if "ID=debian\n" not in release:
        pytest.skip("not Debian")
    (name,) = [line.partition("=")[2] for line in release.splitlines() if line.startswith("VERSION_CODENAME=")]
    sources.write_text(f"deb http://mirror.example/debian {name} main\n")
    assert source_line("trixie").endswith(" http://mirror.example/debian/ trixie main\n")


def test_the_mirror_is_debians_if_others_have_a_release_of_that_name(sources: Path) -> None:
    sources.write_text("")
    fetch(sources, "packages.example/cloud", "bookworm", "Cloud")
    fetch(sources, "mirror.example/debian", "stable", "Debian")  # its source may name it by its suite
    assert source_line("sid").endswith(" http://mirror.example/debian/ sid main\n")


@pytest.mark.long
def test_no_mirror_is_a_reason(sources: Path) -> None:
    sources.write_text("")
    with pytest.raises(SandboxError, match="no mirror of Debian"):
        source_line("sid")
