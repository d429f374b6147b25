"""Who uses this package, and on which machine, for records."""

from __future__ import annotations

import getpass
import os
import socket


def host_name() -> str:
    """This machine's name."""
    return socket.gethostname()


def user_name() -> str:
    """The user's name; the number where there is no name, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
