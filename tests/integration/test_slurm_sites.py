"""A site file with a template that changes one block, found by the cluster's name, on the real Slurm."""

from __future__ import annotations

import os

import pytest

from tests.integration.conftest import Door
from tests.integration.slurm_jobs import script_output, write_job
from tests.slurm_sandbox.cluster import Cluster

pytestmark = pytest.mark.slurm

SCRIPT = 'import os\nprint("worker", os.environ["OF_THE_SITE"], os.environ["RANK"], flush=True)\n'
SITE = """\
name: ours
contact: me
url: https://example.org/ours
last_checked: never
scheduler: slurm
clusters: [{cluster}]
template: ./ours.sh.j2
defaults:
  env: {{OF_THE_SITE: "yes"}}
  sbatch: {{partition: {partition}}}
partitions: {{{partition}: {{max_time: 20m, nodes: 4}}}}
"""
TEMPLATE = """\
{# contract: 1 #}
{% extends "slurm/job.sh.j2" %}
{% block before %}
{{ super() }}
echo "staged for" {{ name }} "on $SLURM_CLUSTER_NAME"
{% endblock %}
"""


def test_a_site_with_a_block_of_its_own_is_found_and_runs_within_its_limits(slurm_door: Door, slurm: Cluster) -> None:
    config = slurm.run("scontrol", "show", "config").stdout
    cluster = next(line.split()[-1] for line in config.splitlines() if line.startswith("ClusterName"))
    partition = "batch"
    (slurm_door.folder / "site-configs").mkdir()
    slurm_door.write("site-configs/ours.yaml", SITE.format(cluster=cluster, partition=partition))
    slurm_door.write("site-configs/ours.sh.j2", TEMPLATE)
    write_job(slurm_door, SCRIPT, nodes="2", workers="1")
    job = slurm_door.folder / "job.yaml"
    job.write_text(job.read_text().replace("site: generic-slurm\n", ""))

    found = slurm_door.run("sites", "which").stdout.strip()
    assert found == os.path.join(slurm_door.folder, "site-configs", "ours.yaml")
    assert slurm_door.run("templates", "lint", "site-configs/ours.sh.j2").stdout.endswith("is fine\n")
    refused = slurm_door.run("submit", "job.yaml", "--set", "time=21m", exit_code=3).stderr
    limit = f"time: partition {partition} allows 20 min (https://example.org/ours)"
    assert f"{limit}, the job asks 21 min" in refused

    run = slurm_door.submit("job.yaml", wait=True)
    assert f"staged for probe on {cluster}\n" in script_output(run)
    assert [run.stdout(1, rank) for rank in range(2)] == ["worker yes 0\n", "worker yes 1\n"]
    assert run.result()["state"] == "SUCCEEDED"
    assert run.read(run.layout.plan)["site"] == "ours"
    run.assert_nothing_left()
    run.assert_records_valid()
