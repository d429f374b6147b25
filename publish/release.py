"""Makes a release up to its upload: `make release`.

    python -m publish.release [--rehearse] [--no-smoke]

It checks tree, version and changelog; builds sdist and wheel twice, which must be equal byte by byte; checks
them with twine; installs the wheel in a new environment and tries it, with torch and without; lists what is in that
environment as a CycloneDX document; and fills version and hash into the recipes. What it makes is in `dist/`;
RELEASING.md says what a person does then.

`--rehearse` says what is not ready and goes on; what it makes must not be uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from publish.fill_recipes import write_recipes
from publish.readiness import find_problems, project_version
from publish.smoke import try_login, try_training

REPOSITORY = Path(__file__).resolve().parents[1]
DIST = REPOSITORY / "dist"


def main(arguments: Sequence[str]) -> int:
    """Make the release; 1 if it is not ready."""
    parser = argparse.ArgumentParser(prog="python -m publish.release")
    parser.add_argument("--rehearse", action="store_true", help="go on where something is not ready")
    parser.add_argument(
        "--no-smoke", action="store_true", help="do not install and try the wheel; for a rehearsal only"
    )
    chosen = parser.parse_args(arguments)
    if chosen.no_smoke and not chosen.rehearse:
        parser.error("--no-smoke goes with --rehearse")
    version = project_version(REPOSITORY)
    problems = find_problems(REPOSITORY, _git)
    for problem in problems:
        print(f"not ready: {problem}", file=sys.stderr)
    if problems and not chosen.rehearse:
        return 1
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct")}
    built = build_twice(environment)
    _run([sys.executable, "-m", "twine", "check", "--strict", *map(str, built)])
    sdist, wheel = sorted(built, key=lambda path: path.suffix == ".whl")
    if not chosen.no_smoke:
        built.append(_smoke(wheel, version))
    write_recipes(DIST / "recipes", version=version, sha256=_sha256(sdist))
    lines = [f"{_sha256(path)}  {path.name}\n" for path in built]
    (DIST / "SHA256SUMS").write_text("".join(lines))
    print("".join(lines), end="")
    print(f"hpc_elastic {version}: {'a rehearsal, not to be uploaded' if problems else 'ready; see RELEASING.md'}")
    return 0


def build_twice(environment: Mapping[str, str]) -> list[Path]:
    """Build sdist and wheel into `dist/`, and again from a copy of the tree in another folder, and compare them."""
    shutil.rmtree(DIST, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir"]
    _run([*command, str(DIST), str(REPOSITORY)], environment)
    built = sorted(DIST.iterdir())
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "elsewhere")
        files = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        for name in filter(None, files):
            if (REPOSITORY / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(REPOSITORY / name, copy / name)
        _run([*command, str(Path(folder, "dist")), str(copy)], environment)
        for path in built:
            if path.read_bytes() != Path(folder, "dist", path.name).read_bytes():
                raise SystemExit(f"{path.name} is another one when it is built again: the build is not reproducible")
    return built


def _smoke(wheel: Path, version: str) -> Path:
    """Install the wheel and try it, and write the list of what was installed; return its path."""
    parts = DIST / f"hpc_elastic-{version}.cdx.json"
    with tempfile.TemporaryDirectory() as folder:
        python = try_training(Path(folder, "full"), wheel, REPOSITORY / "constraints.txt")
        listing = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--mc-type", "library"]
        _run([*listing, "--pyproject", str(REPOSITORY / "pyproject.toml"), "-o", str(parts), str(python)])
        parts.write_text(complete_parts(parts.read_text(), version, wheel))
        try_login(Path(folder, "login"), wheel, REPOSITORY / "constraints.txt")
    return parts


def complete_parts(listed: str, version: str, wheel: Path) -> str:
    """Return a list of parts in which the package has its version and the hash of its wheel, and pip is not a part."""
    document = json.loads(listed)
    document["metadata"]["component"] |= {
        "version": version,
        "purl": f"pkg:pypi/hpc-elastic@{version}",
        "hashes": [{"alg": "SHA-256", "content": _sha256(wheel)}],
    }
    of_venv = {part["bom-ref"] for part in document["components"] if part["name"] in ("pip", "setuptools")}
    for key, name in (("components", "bom-ref"), ("dependencies", "ref")):
        document[key] = [item for item in document[key] if item[name] not in of_venv]
    return json.dumps(document, indent=2) + "\n"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    print("+", " ".join(command), flush=True)
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
