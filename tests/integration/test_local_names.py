"""Runs on a machine whose own name nobody can resolve, in folders with spaces in their names."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Door
from tests.tiers import variants

pytestmark = pytest.mark.local

NAME = "a-name-without-an-address"
TRAIN = """
import os, socket
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(socket.gethostname(), "sum", int(total), flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def nameless(tmp_path: Path, door: Door) -> Door:
    """The command in a UTS namespace with that name, in a folder with a space in its path."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root may give this test's processes another host name")
    rename = f'hostname {NAME} && exec "$0" "$@"'
    if subprocess.run(["unshare", "--uts", "sh", "-ec", rename, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no UTS namespaces here")
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo(NAME, None)
    folder = tmp_path / "a check out" / "with $paces"
    folder.mkdir(parents=True)
    environ = {**door.environ, "XDG_STATE_HOME": str(tmp_path / "its state")}
    return Door(folder, environ, command=("unshare", "--uts", "sh", "-ec", rename, *door.command))


@pytest.mark.parametrize(
    "start",
    ["fork", *variants("spawn", of="test_a_run_starts_and_logs_cleanly_if_the_machines_name_is_not_resolvable")],
)
def test_a_run_starts_and_logs_cleanly_if_the_machines_name_is_not_resolvable(nameless: Door, start: str) -> None:
    nameless.write("train.py", TRAIN)
    nameless.write(
        "job.yaml",
        "name: probe\nsite: local\nnodes: 2\nworkers_per_node: 2\ntime: 10m\n"
        f"start: {start}\nentrypoint: {{script: train.py}}\n",
    )
    run = nameless.submit("job.yaml", wait=True)
    assert run.result()["state"] == "SUCCEEDED", run.story()
    assert [run.stdout(1, rank) for rank in range(4)] == [f"{NAME} sum 4\n"] * 4
    complaints = [line for line in run.story().splitlines() if "resolve" in line or "hostname" in line.lower()]
    assert complaints == [], "gloo's warning, or one of ours"
    nameless.run("status")
    run.assert_nothing_left()
    run.assert_records_valid()


def test_run_standalone_starts_where_torchruns_waits_for_the_machines_name(nameless: Door) -> None:
    nameless.write("train.py", TRAIN)
    done = nameless.run("run", "--standalone", "--nproc-per-node", "2", "train.py")
    assert f"{NAME} sum 2" in done.stdout
    assert not [line for line in done.stderr.splitlines() if "resolve" in line or "hostname" in line.lower()]
