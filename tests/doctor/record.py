"""Records what the nodes of a real Slurm answer to `doctor`, for the tests of the verdicts.

    python -m tests.doctor.record

boots a sandbox of each release that can be had, and writes `captured/settings-<version>.json`; on this machine's own it
also writes what four nodes answer when all is well and when six things are broken. Paths of this machine are replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hpc_elastic.codec import to_json
from hpc_elastic.doctor.probe_job import ProbeJob, prepare_probe, request_of
from hpc_elastic.scheduler.registry import make_scheduler
from hpc_elastic.scheduler.slurm import commands
from tests.integration.conftest import REPOSITORY, Door
from tests.integration.test_slurm_doctor import an_hour_ahead, broken_cluster, make_site
from tests.slurm_sandbox import versions
from tests.slurm_sandbox.cluster import Cluster

CAPTURED = Path(__file__).parent / "captured"


def record_settings(cluster: Cluster) -> None:
    """What `scontrol` says of the cluster and of its partitions."""
    answers = {}
    for name, command in (("config", commands.config_command()), ("partitions", commands.partitions_command())):
        done = cluster.run(*command)
        answers[name] = {"returncode": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
    write(f"settings-{cluster.version}", answers, {})


def record_nodes(cluster: Cluster, case: str, *, is_broken: bool) -> None:
    """What the nodes answer."""
    with tempfile.TemporaryDirectory() as above:
        folder = Path(above) / "project"
        folder.mkdir()
        door = Door(folder, cluster.environment)
        broken = {
            "network": "interface: ib7",
            "on_node2": "export PYTHONPATH=/opt/other",
            "on_node3": an_hour_ahead(),
        }
        runs = make_site(door, **(broken if is_broken else {}))
        with working_in(folder, cluster), broken_cluster(cluster, runs, folder) if is_broken else nothing():
            prepared = prepare_probe(4, site_name="./here.yaml", overrides=[], is_allocated=False, say=print)
            job = ProbeJob(prepared, make_scheduler("slurm"), say=print, pending_s=60.0)
            outcome = job.run()
            job.remove_folder()
        told = {
            "nodes": outcome.nodes,
            "sent": outcome.sent,
            "read": outcome.read,
            "request": request_of(prepared.plan),
            "answers": outcome.answers,
        }
        hidden = {above: "/home/ada", str(REPOSITORY): "/opt/hpc_elastic", sys.base_prefix: "/usr"}
        write(case, to_json(told), hidden)


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    yield


@contextlib.contextmanager
def working_in(folder: Path, cluster: Cluster) -> Iterator[None]:
    before, names = os.getcwd(), dict(os.environ)
    os.environ.update(cluster.environment)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(names)


def write(case: str, data: object, hidden: dict[str, str]) -> None:
    text = json.dumps(data, indent=1, default=to_json)
    for found, shown in hidden.items():
        text = text.replace(found, shown)
    CAPTURED.mkdir(exist_ok=True)
    (CAPTURED / f"{case}.json").write_text(text + "\n")


def main() -> None:
    """Record everything."""
    own = versions.own()
    for version in versions.SUPPORTED:
        if reason := versions.why_impossible(version):
            print(f"not recorded: {version}: {reason}", file=sys.stderr)
            continue
        cluster = Cluster.start(4, owner=os.getpid(), version=version)
        try:
            record_settings(cluster)
            if version == own:
                record_nodes(cluster, "well", is_broken=False)
                record_nodes(cluster, "broken", is_broken=True)
        finally:
            cluster.down()


if __name__ == "__main__":
    main()
