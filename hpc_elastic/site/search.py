"""Finds the site file of a name or of a machine: beside the job, in the system's and the user's folders, then ours."""

from __future__ import annotations

import difflib
import fnmatch
import os
import re
from collections.abc import Callable, Iterator, Mapping

from hpc_elastic.errors import SiteError, UnknownSiteError
from hpc_elastic.home import find_home, homes
from hpc_elastic.job.document import Document, find_place
from hpc_elastic.job.problems import KeyPath
from hpc_elastic.job.yaml_core import MOST_CHARACTERS
from hpc_elastic.plan.references import BadReferenceError, expand_references
from hpc_elastic.shipped import shipped_directory
from hpc_elastic.site.config import SiteConfig
from hpc_elastic.site.parse import parse_site

_SUFFIXES = (".yaml", ".yml")
_CLOSED = "cannot be looked at: permission denied"
SYSTEM_FOLDER = "/etc/hpc-elastic/sites"
# The keys by which a file is found without its name, up to the next key; the rest of the file need not be read.
_FOUND_BY = re.compile(r"^(?:clusters|hostnames):.*(?:\n(?:[ \t#-].*)?)*", re.M)


def find_site(name: str, *, job_dir: str, environ: Mapping[str, str]) -> SiteConfig:
    """Read the site of this name, or the site file at this path.

    A name with a slash or a YAML suffix is a path, relative to `job_dir`. Any other is looked for as
    `<name>.yaml` in `search_folders`; the first one counts. A relative `template:` of a site that begins
    with a dot is relative to the site file. `run_root`, and `${NAME}` in the `sbatch:` of its defaults, are expanded
    by `environ`.

    Raises:
        SiteError: there is none, or it is wrong.
    """
    path = find_site_file(name, job_dir=job_dir, environ=environ)
    text = read_site_file(path)
    site = parse_site(text, path=path).at(path)
    template = site.template
    if template and template.startswith("."):
        template = os.path.normpath(os.path.join(os.path.dirname(path), template))
    run_root = _expand(site.run_root, ("run_root",), text, path, environ)
    sbatch = {
        option: _expand(value, ("defaults", "sbatch", option), text, path, environ) if "${" in (value or "") else value
        for option, value in (site.defaults.sbatch or {}).items()
    }
    defaults = site.defaults.model_copy(update={"sbatch": sbatch}) if sbatch else site.defaults
    return site.model_copy(update={"template": template, "run_root": run_root, "defaults": defaults})


def find_site_file(name: str, *, job_dir: str, environ: Mapping[str, str]) -> str:
    """Return the path of the site of this name, whatever is in it; of a path, as `find_site` takes one, the path.

    Raises:
        SiteError: there is none of this name.
    """
    if is_site_path(name):
        return os.path.normpath(os.path.join(job_dir, name))
    for folder in search_folders(job_dir, environ):
        for path in _candidates(folder, name):
            if os.path.isfile(path):
                return path
            if os.path.lexists(path):
                raise SiteError([f"site: {path} {_why_no_file(path)}"], tip="mend it, or move it away")
    known = known_sites(job_dir, environ)
    close = difflib.get_close_matches(name, known, n=1)
    guess = f"; did you mean {close[0]}?" if close else ""
    closed = "".join(f"; {each} {_CLOSED}" for each in search_folders(job_dir, environ) if _is_closed(each))
    raise UnknownSiteError(
        [f"site: there is no site {name!r}{guess}{closed}"],
        tip=f"known sites: {', '.join(known)}; or give the path of a site file",
    )


def search_folders(job_dir: str, environ: Mapping[str, str], *, system_folder: str = SYSTEM_FOLDER) -> list[str]:
    """Return the folders that are looked through for site files, in order; not all of them need exist.

    The system's folder goes before the user's: what the admins say of their cluster holds for everybody on it. Who
    wants something else gives the file another name, or its path.
    """
    configuration = environ.get("XDG_CONFIG_HOME") or os.path.join(
        find_home(environ) or next(homes(environ), "/"), ".config"
    )
    return [
        os.path.join(job_dir, "site-configs"),
        *(folder for folder in environ.get("HPC_ELASTIC_SITE_PATH", "").split(os.pathsep) if folder),
        system_folder,
        os.path.join(configuration, "hpc-elastic", "sites"),
        shipped_directory("site-configs"),
    ]


def known_sites(job_dir: str, environ: Mapping[str, str]) -> list[str]:
    """Return the names of all sites that `find_site` finds, in alphabetical order."""
    return sorted({name for folder in search_folders(job_dir, environ) for name in _names_in(folder)})


def site_files(job_dir: str, environ: Mapping[str, str]) -> list[str]:
    """Return the paths of all site files that are found by a name, in the order of the folders, then by name."""
    found: dict[str, str] = {}
    for folder in search_folders(job_dir, environ):
        for name in sorted(set(_names_in(folder))):
            found.setdefault(name, next(path for path in _candidates(folder, name) if os.path.isfile(path)))
    return list(found.values())


def unusable_site_files(job_dir: str, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return what has the name of a site file and is none, and folders that are closed: the path, and what it is."""
    found = []
    for folder in search_folders(job_dir, environ):
        if _is_closed(folder):
            found.append((folder, _CLOSED))
        for path in sorted(os.path.join(folder, file) for file in _listed(folder)):
            if path.endswith(_SUFFIXES) and not os.path.isfile(path):
                found.append((path, _why_no_file(path)))
    return found


def find_machine(
    *, host: str = "", cluster: str = "", job_dir: str, environ: Mapping[str, str], warn: Callable[[str], None]
) -> str | None:
    """Return the path of the first site file that names this host or this Slurm cluster; None if none does.

    Args:
        host: the machine's own name, as `hostname` prints it; empty for none.
        cluster: Slurm's ClusterName; empty for none.
        job_dir: the folder of the job file.
        environ: the variables of the shell.
        warn: is called with a line about each file that cannot be read, which may have been the right one.
    """
    shipped = shipped_directory("site-configs")
    for path, why in unusable_site_files(job_dir, environ):
        warn(f"passed over {path}: it {why}")
    for path in site_files(job_dir, environ):
        try:
            clusters, patterns = _found_by(path)
            if not clusters and not patterns and os.path.dirname(path) != shipped:
                parse_site(read_site_file(path), path=path)  # one that was cut off might have been the right one
        except SiteError as error:
            warn(f"passed over {path}: {error.problems[0]}")
            continue
        if cluster in clusters or any(fnmatch.fnmatchcase(host.lower(), pattern.lower()) for pattern in patterns):
            return path
    return None


def _found_by(path: str) -> tuple[list[str], list[str]]:
    """Return the clusters and the patterns of host names that a site file gives.

    Raises:
        SiteError: the file cannot be read.
    """
    document = Document(file=path, text_paths=(("clusters",), ("hostnames",)))
    if text := "\n".join(_FOUND_BY.findall(read_site_file(path))):
        document.read(text)
    given = [document.data.get(key) or [] for key in ("clusters", "hostnames")]
    if document.problems or not all(isinstance(names, list) for names in given):
        raise SiteError([f"`hpc-elastic sites check {path}` says what is wrong"])
    clusters, patterns = ([str(name) for name in names if name] for names in given)
    return clusters, patterns


def is_site_path(name: str) -> bool:
    """Return whether `find_site` takes this for a path, not for a name."""
    return os.sep in name or name.endswith(_SUFFIXES)


def _why_no_file(path: str) -> str:
    """Return what stands in the place of a site file, a phrase."""
    if not os.path.lexists(path):
        return "cannot be looked at: its folder gives no permission"
    if os.path.isdir(path):
        return "is a directory, expected a file"
    if os.path.islink(path):
        return f"is a symbolic link to {os.readlink(path)}, which is not there or cannot be read"
    return "is no regular file"


def _candidates(folder: str, name: str) -> list[str]:
    return [os.path.join(folder, name + suffix) for suffix in _SUFFIXES]


def _names_in(folder: str) -> Iterator[str]:
    for file in _listed(folder):
        stem, suffix = os.path.splitext(file)
        if suffix in _SUFFIXES and os.path.isfile(os.path.join(folder, file)):
            yield stem


def _is_closed(folder: str) -> bool:
    """Return whether nobody can say which files are in a folder, for this user may not look."""
    try:
        os.listdir(folder)
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def read_site_file(path: str) -> str:
    """Return the text of a site file.

    Raises:
        UnknownSiteError: it cannot be read.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UnknownSiteError([f"site: cannot read the site file {path}: {reason}"]) from error


def _expand(value: str | None, key: KeyPath, text: str, path: str, environ: Mapping[str, str]) -> str | None:
    if value is None:
        return None
    try:
        return expand_references(value, environ, advice="is not set here; export it before you submit")
    except BadReferenceError as error:
        raise SiteError([f"{find_place(text, path, key)}: {error}"]) from error
