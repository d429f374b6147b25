"""Where the values of a job came from, as `check --explain` says it."""

from __future__ import annotations

from hpc_elastic.job.parse import parse_job
from hpc_elastic.resolve.origins import find_origins
from hpc_elastic.site.parse import parse_site
from tests.resolve.test_launch_plan import SITE_HEAD

SITE = """\
run_root: /scratch
scratch: /local
failure_domains: ['a[1-4]', 'a[5-8]']
network: {interface: ib0}
partitions: {batch: {max_time: 12h}}
max_nodes: 8
"""


def test_what_a_site_file_says_of_the_plan_is_told_and_what_it_says_of_itself_is_not() -> None:
    site = parse_site(SITE_HEAD + SITE, path="here.yaml")
    origins = find_origins(parse_job("entrypoint: {script: train.py}", file="job.yaml"), site)
    told = {origin.key: origin.value for origin in origins if origin.source == "site"}
    assert told == {
        "site.run_root": "/scratch",
        "site.network.interface": "ib0",
        "site.scratch": "/local",
        "site.failure_domains": "[a[1-4], a[5-8]]",
        "site.max_nodes": "8",
    }
