"""Finds the site file of a name: beside the job, in the user's and the system's folders, then ours."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping

from hpc_elastic.errors import SiteError, UnknownSiteError
from hpc_elastic.job.document import find_place
from hpc_elastic.plan.references import BadReferenceError, expand_references
from hpc_elastic.shipped import shipped_directory
from hpc_elastic.site.config import SiteConfig
from hpc_elastic.site.parse import parse_site

_SUFFIXES = (".yaml", ".yml")
_SYSTEM_FOLDER = "/etc/hpc_elastic/sites"


def find_site(name: str, *, job_dir: str, environ: Mapping[str, str]) -> SiteConfig:
    """Read the site of this name, or the site file at this path.

    A name with a slash or a YAML suffix is a path, relative to `job_dir`. Any other is looked for as
    `<name>.yaml` in `search_folders`; the first one counts. A relative `template:` of a site that begins
    with a dot is relative to the site file, and `run_root` is expanded by `environ`.

    Raises:
        SiteError: there is none, or it is wrong.
    """
    path = _find(name, job_dir, environ)
    text = _read(path)
    site = parse_site(text, path=path).at(path)
    template = site.template
    if template and template.startswith("."):
        template = os.path.normpath(os.path.join(os.path.dirname(path), template))
    return site.model_copy(update={"template": template, "run_root": _expand(site.run_root, text, path, environ)})


def search_folders(job_dir: str, environ: Mapping[str, str]) -> list[str]:
    """Return the folders that are looked through for site files, in order; not all of them need exist."""
    configuration = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "/"), ".config")
    return [
        os.path.join(job_dir, "site-configs"),
        *(folder for folder in environ.get("HPC_ELASTIC_SITE_PATH", "").split(os.pathsep) if folder),
        os.path.join(configuration, "hpc_elastic", "sites"),
        _SYSTEM_FOLDER,
        shipped_directory("site-configs"),
    ]


def known_sites(job_dir: str, environ: Mapping[str, str]) -> list[str]:
    """Return the names of all sites that `find_site` finds, in alphabetical order."""
    return sorted({name for folder in search_folders(job_dir, environ) for name in _names_in(folder)})


def is_site_path(name: str) -> bool:
    """Return whether `find_site` takes this for a path, not for a name."""
    return os.sep in name or name.endswith(_SUFFIXES)


def _find(name: str, job_dir: str, environ: Mapping[str, str]) -> str:
    if is_site_path(name):
        return os.path.normpath(os.path.join(job_dir, name))
    for folder in search_folders(job_dir, environ):
        for suffix in _SUFFIXES:
            path = os.path.join(folder, name + suffix)
            if os.path.isfile(path):
                return path
    known = known_sites(job_dir, environ)
    close = difflib.get_close_matches(name, known, n=1)
    guess = f"; did you mean {close[0]}?" if close else ""
    raise UnknownSiteError(
        [f"site: there is no site {name!r}{guess}"],
        tip=f"known sites: {', '.join(known)}; or give the path of a site file",
    )


def _names_in(folder: str) -> Iterator[str]:
    try:
        files = os.listdir(folder)
    except OSError:
        return
    for file in files:
        stem, suffix = os.path.splitext(file)
        if suffix in _SUFFIXES:
            yield stem


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UnknownSiteError([f"site: cannot read the site file {path}: {reason}"]) from error


def _expand(run_root: str | None, text: str, path: str, environ: Mapping[str, str]) -> str | None:
    if run_root is None:
        return None
    try:
        return expand_references(run_root, environ, advice="is not set here; export it before you submit")
    except BadReferenceError as error:
        raise SiteError([f"{find_place(text, path, ('run_root',))}: {error}"]) from error
