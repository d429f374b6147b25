"""Accounting in a sandbox: Debian's MariaDB and a slurmdbd on the controller, so that sacct can be read.

slurmdbd is that of the sandbox's own Slurm, and the data base that of this computer. It listens on a socket in the
sandbox's directory and on no network. Debian's packages start a data base and a slurmdbd of their own when they are
installed, unless the computer's policy-rc.d forbids it; neither is used.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from tests.slurm_sandbox import versions
from tests.slurm_sandbox.configuration import CONTROLLER, Layout
from tests.slurm_sandbox.processes import SandboxError

_DATABASE = ("mariadbd", "mariadb-install-db")
_SLURM = ("slurmdbd", "sacctmgr")  # which a Slurm that was fetched has
_SEARCHED = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def why_no_accounting(version: str | None = None) -> str | None:
    """Why no sandbox of this computer can have accounting, with this Slurm or its own; None if one can."""
    wanted = (*_DATABASE, *_SLURM) if version in (None, versions.own()) else _DATABASE
    missing = [name for name in wanted if not shutil.which(name, path=_SEARCHED)]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: mariadb-server slurmdbd slurm-client)"
    return None


def prepare_database(layout: Layout) -> None:
    """Makes an empty data base and slurmdbd's configuration, which nobody else may read.

    Raises:
        SandboxError: it cannot be made.
    """
    if reason := why_no_accounting(layout.version):
        raise SandboxError(reason)
    for folder in (_data(layout), _temporary(layout)):
        os.mkdir(folder, mode=0o700)
    command = ["mariadb-install-db", "--no-defaults", f"--datadir={_data(layout)}", "--user=root", "--skip-test-db"]
    command += ["--auth-root-authentication-method=normal", "--innodb-log-file-size=4M"]
    command += [f"--tmpdir={_temporary(layout)}"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": _SEARCHED})
    if done.returncode:
        raise SandboxError(f"no data base can be made:\n{done.stdout}{done.stderr}")
    path = os.path.join(layout.configuration, "slurmdbd.conf")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(_SLURMDBD.format(layout=layout, controller=CONTROLLER))
        if plugins := layout.installation.plugins:
            file.write(f"PluginDir={plugins}\n")


def services(layout: Layout) -> list[tuple[list[str], str | tuple[str, int]]]:
    """What runs on the controller before slurmctld: commands, and where each takes connections when it is ready."""
    socket = layout.path("database.sock")
    database = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={_data(layout)}", f"--socket={socket}"]
    database += ["--skip-networking", "--skip-log-bin", f"--pid-file={layout.path('database.pid')}"]
    database += [f"--tmpdir={_temporary(layout)}"]
    database += ["--innodb-buffer-pool-size=32M", "--innodb-log-file-size=4M", "--innodb-flush-log-at-trx-commit=0"]
    slurmdbd = ["env", f"MYSQL_UNIX_PORT={socket}", "slurmdbd", "-D"]
    return [(database, socket), (slurmdbd, (layout.controller_address, 6819))]


def _data(layout: Layout) -> str:
    return layout.path("database")


def _temporary(layout: Layout) -> str:
    """Of each sandbox its own: MariaDB names temporary tables by process id, which two machines share."""
    return layout.path("database.tmp")


_SLURMDBD = """\
DbdHost={controller}
DbdAddr={layout.controller_address}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_accounting
LogFile={layout.logs}/slurmdbd.log
PidFile={layout.root}/slurmdbd.pid
MessageTimeout=10
"""
