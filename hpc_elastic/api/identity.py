"""The user, the machine and the working directory, for records."""

from __future__ import annotations

import getpass
import os
import socket


def host_name() -> str:
    """Return this machine's name."""
    return socket.gethostname()


def user_name() -> str:
    """Return the user's name; the number where there is no name, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def as_text(path: str) -> str:
    """Return a path as records hold it: as text that is the same in every locale, even if the path is not UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def working_directory() -> str | None:
    """Return the folder that this process works in, without symbolic links; None if it was removed."""
    try:
        return os.path.realpath(os.getcwd())
    except OSError:  # ESTALE, where another machine has removed it
        return None


def folder_number() -> int:
    """Return the inode of the working directory, the same on all machines that share it; 0 if it was removed."""
    try:
        return os.stat(".").st_ino
    except OSError:
        return 0


def owner_of(path: str) -> str:
    """Return the owner of the directory, or of the nearest parent that can be seen."""
    import pwd  # a verb that is in a hurry does not need it

    while True:
        try:
            user = os.stat(path).st_uid
            return pwd.getpwuid(user).pw_name
        except PermissionError:
            path = os.path.dirname(path)
        except KeyError:
            return f"user {user}"
