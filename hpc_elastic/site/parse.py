"""The text of a site file as a checked SiteConfig."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from hpc_elastic.errors import SiteError
from hpc_elastic.job.check import check_document, note_double_options
from hpc_elastic.job.conflicts import Conflict, find_conflicts
from hpc_elastic.job.document import Document
from hpc_elastic.job.parse import TEXT_PATHS
from hpc_elastic.job.problems import KeyPath, format_problems
from hpc_elastic.site.config import SiteConfig

_TEXT_PATHS: Sequence[KeyPath] = (
    *(("defaults", *path) for path in TEXT_PATHS),
    *((key,) for key in ("name", "contact", "url", "last_checked", "run_root", "template", "gpu_request", "srun")),
    *((key,) for key in ("clusters", "hostnames", "required")),
    *(("network", key) for key in ("interface", "hostname_transform", "nccl_socket_ifname")),
)


def parse_site(text: str, *, path: str) -> SiteConfig:
    """Read a site file.

    A key with nothing behind it, as `defaults:` whose lines are all comments, counts as left out.

    Args:
        text: what is in the file.
        path: the file, for messages; the site is called as the file is.

    Raises:
        SiteError: something is wrong; it holds all problems, a line each.
    """
    document = Document(file=path, text_paths=_TEXT_PATHS)
    document.read(text)
    document.data = {key: value for key, value in document.data.items() if value is not None}
    note_double_options(document, ("defaults", "sbatch"))
    site = check_document(document, SiteConfig, _find_conflicts) if document.data else None
    name = os.path.splitext(os.path.basename(path))[0]
    if site is not None and site.name != name:
        document.add_problem(("name",), f"expected {name}, as the file is called, found {site.name!r}")
    if site is None or document.problems:
        raise SiteError(format_problems(document.problems))
    return site


def _find_conflicts(site: SiteConfig) -> Iterator[Conflict]:
    for conflict in find_conflicts(site.defaults):
        yield Conflict(("defaults", *conflict.path), conflict.message, ("defaults",) if conflict.about else ())
