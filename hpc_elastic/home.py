"""Finds a user's home, also where HOME is empty, or names a folder that is none."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping


def homes(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the folders that may be the user's home: HOME, if it is a path, then that of the password database."""
    given = environ.get("HOME", "")
    if os.path.isabs(given):
        yield given
    own = _own_home()
    if os.path.isabs(own) and own != given:
        yield own


def find_home(environ: Mapping[str, str]) -> str:
    """Return the first home that this user can write to; else the first that there is; empty if there is none.

    The root folder is no home: root's processes in containers and services have it as HOME, or an empty one.
    """
    first = ""
    for home in homes(environ):
        if home.strip("/") and os.path.isdir(home):
            if os.access(home, os.W_OK | os.X_OK):
                return home
            first = first or home
    return first


def _own_home() -> str:
    import pwd  # the answer of a name service, which those with a home of their own need not wait for

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a container has no line for this user
        return ""
