"""What users install: the wheel, made from the checkout and from the sdist."""

from __future__ import annotations

import configparser
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hpc_elastic.cli.completion import completion
from publish.smoke import do_login_commands, requirements
from tests.tiers import variants

REPOSITORY = Path(__file__).parent.parent
# Not among the unit tests of `make check`: building takes seconds.
pytestmark = pytest.mark.local

FIND = """
import os
from hpc_elastic.shipped import shipped_directory
for name, expected in (("templates", "slurm/job.sh.j2"), ("site-configs", "local.yaml")):
    folder = shipped_directory(name)
    assert os.path.isfile(os.path.join(folder, expected)), folder
    print(folder)
"""


def build(source: Path, target: Path, kind: str) -> Path:
    """The wheel or sdist of a source tree. Without hatchling here, build fetches it."""
    isolation = ["--no-isolation"] if importlib.util.find_spec("hatchling") else []
    command = [sys.executable, "-m", "build", f"--{kind}", *isolation, "--outdir", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(REPOSITORY, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    return root


# One from the sdist is the same byte for byte, which a test holds.
@pytest.fixture(
    scope="module",
    params=["checkout", *variants("sdist", of="test_an_sdist_is_the_same_when_it_is_built_again")],
)
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = REPOSITORY if request.param == "checkout" else request.getfixturevalue("unpacked")
    return build(source, tmp_path_factory.mktemp("wheel"), "wheel")


def run_python(python: Path | str, code: str, *, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(python), "-c", code]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_the_package_and_what_it_ships_and_no_more(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    package = {
        str(path.relative_to(REPOSITORY))
        for name in ("hpc_elastic", "hydra_plugins")
        for path in (REPOSITORY / name).rglob("*.py*")
        if path.is_file()
    }
    package = {name for name in package if "__pycache__" not in name}
    shipped = {
        f"hpc_elastic/_shipped/{path.relative_to(REPOSITORY)}"
        for folder in ("templates", "site-configs")
        for path in (REPOSITORY / folder).rglob("*")
        if path.is_file()
    }
    assert package | shipped <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} <= {"hpc_elastic", "hydra_plugins"}
    unexpected = [name for name in names if "/tests/" in name or "__pycache__" in name or name.endswith(".pyc")]
    assert not unexpected
    assert "hydra_plugins/__init__.py" not in names  # it is shared with Hydra's other plug-ins


def test_the_wheel_tells_submitit_of_our_executor(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
    entries = configparser.ConfigParser()
    entries.read_string(archive.read(name).decode())
    assert dict(entries["submitit"]) == {
        "executor": "hpc_elastic.integrations.submitit:HpcElasticExecutor",
        "job_environment": "hpc_elastic.integrations.submitit:HpcElasticJobEnvironment",
    }


def test_the_wheel_says_where_torchrun_finds_its_backend(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
    parser = configparser.ConfigParser()
    parser.read_string(archive.read(name).decode())
    assert dict(parser["torchrun.handlers"]) == {"hpc-elastic": "hpc_elastic.integrations.torchrun.entry:get_handler"}


def test_the_wheel_brings_the_manual_page_and_completions(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    shared = {name.partition("/share/")[2]: name for name in archive.namelist() if ".data/data/share/" in name}
    assert set(shared) == {
        "bash-completion/completions/hpc-elastic",
        "fish/vendor_completions.d/hpc-elastic.fish",
        "man/man1/hpc-elastic.1",
        "zsh/site-functions/_hpc-elastic",
    }
    assert archive.read(shared["bash-completion/completions/hpc-elastic"]).decode() == completion("bash")


@pytest.mark.variant(of="test_an_sdist_is_the_same_when_it_is_built_again")
def test_a_wheel_is_the_same_from_the_checkout_and_from_the_sdist(unpacked: Path, tmp_path: Path) -> None:
    """Byte by byte, with other times and modes of the files."""
    for path in unpacked.rglob("*"):
        if path.is_file():
            os.utime(path, (0, 0))
            path.chmod(0o600)
    built = [build(source, tmp_path / name, "wheel") for name, source in (("a", REPOSITORY), ("b", unpacked))]
    assert built[0].name == built[1].name
    assert built[0].read_bytes() == built[1].read_bytes()


def test_an_sdist_is_the_same_when_it_is_built_again(sdist: Path, tmp_path: Path) -> None:
    assert build(REPOSITORY, tmp_path / "again", "sdist").read_bytes() == sdist.read_bytes()


def test_the_login_command_works_without_torch(wheel: Path, tmp_path: Path) -> None:
    """In an environment with what the package requires but torch; `make release` installs that for real."""
    here = {distribution.metadata["Name"].lower(): distribution for distribution in importlib.metadata.distributions()}
    venv.create(tmp_path / "login", with_pip=False)
    python = tmp_path / "login" / "bin" / "python"
    (site_packages,) = (tmp_path / "login").glob("lib/python3*/site-packages")
    for name in needed_by(requirements(wheel, without=("torch",)), here):
        for file in here[name].files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (site_packages / top).exists():
                (site_packages / top).symlink_to(str(here[name].locate_file(top)))
    # pip writes the command with the Python that it runs in; a script of three lines does the same.
    install = ["-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps", "--no-index"]
    subprocess.run([sys.executable, *install, "--target", str(site_packages), str(wheel)], check=True)
    command = python.with_name("hpc-elastic")
    command.write_text(f"#!{python}\nfrom hpc_elastic.cli.main import run\nrun()\n")
    command.chmod(0o755)
    do_login_commands(python, tmp_path / "login")


def needed_by(lines: list[str], here: Mapping[str, importlib.metadata.Distribution]) -> set[str]:
    """The names of what some requirements need, theirs included, of what is installed here."""
    found: set[str] = set()
    waiting = [Requirement(line) for line in lines]
    while waiting:
        requirement = waiting.pop()
        name = requirement.name.lower()
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        known = next((other for other in here if canonicalize_name(other) == canonicalize_name(name)), None)
        if applies and known is not None and known not in found:
            found.add(known)
            waiting += [Requirement(line) for line in here[known].requires or ()]
    return found


def test_the_page_about_installing_names_what_is_needed_without_torch(wheel: Path) -> None:
    page = (REPOSITORY / "docs/how-to/install.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("~/hpc-elastic/bin/pip install cloudpickle")]
    named = line.partition(" #")[0].split()[2:]
    assert named == sorted(Requirement(line).name for line in requirements(wheel, without=("torch",)))


def test_the_sdist_holds_what_a_developer_needs(unpacked: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE", "Makefile", "templates/README.md", "tests/test_wheel.py"):
        assert (unpacked / name).is_file(), name


def test_an_installed_wheel_finds_templates_and_site_configs(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    site_packages = run_python(python, "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    install = ["-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps", "--no-index"]
    subprocess.run([sys.executable, *install, "--target", site_packages, str(wheel)], check=True, capture_output=True)
    found = run_python(python, FIND, cwd=tmp_path).splitlines()
    assert found == [f"{site_packages}/hpc_elastic/_shipped/{name}" for name in ("templates", "site-configs")]


def test_a_checkout_and_an_unpacked_sdist_find_them_beside_the_package(unpacked: Path) -> None:
    for root in (REPOSITORY, unpacked):
        found = run_python(sys.executable, f"import sys; sys.path.insert(0, {str(root)!r})\n{FIND}", cwd=root)
        assert found.splitlines() == [f"{root}/templates", f"{root}/site-configs"]
