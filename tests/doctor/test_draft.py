"""The drafted site file is accepted as a site file, whatever was found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpc_elastic.doctor.draft import DraftFacts, draft_site
from hpc_elastic.doctor.judge_nodes import judge_nodes
from hpc_elastic.doctor.probes.answers import InterfaceSeen
from hpc_elastic.doctor.results import CheckResult, Severity
from hpc_elastic.scheduler.slurm.limits import parse_config, parse_partitions
from hpc_elastic.site.config import SiteConfig
from hpc_elastic.site.parse import parse_site
from tests.doctor.told import SETTINGS, changed, settings, told

WELL, ASKED = told("well")
NOTHING = DraftFacts(
    name="mine",
    contact="ada@login1",
    day="2026-01-31",
    scheduler="slurm",
    config={},
    partitions=(),
    told=None,
    results=(),
)


def drafted(facts: DraftFacts) -> SiteConfig:
    return parse_site(draft_site(facts), path=f"/etc/hpc-elastic/sites/{facts.name}.yaml")


@pytest.mark.parametrize("case", SETTINGS)
def test_a_draft_of_a_real_slurm_is_accepted_and_names_its_cluster(case: str) -> None:
    printed = settings(case)
    facts = replace(
        NOTHING,
        config=parse_config(printed["config"]),
        partitions=parse_partitions(printed["partitions"]),
        told=WELL,
        results=judge_nodes(WELL, ASKED, frozenset()),
    )
    site = drafted(facts)
    assert site.clusters[0].startswith("sandbox")
    assert set(site.partitions) == {"batch", "urgent"}
    assert (site.last_checked, site.gpu_request, site.network.interface) == ("never", "gpus_per_node", None)


def test_a_draft_of_nothing_is_accepted() -> None:
    assert drafted(NOTHING).name == "mine"
    assert drafted(replace(NOTHING, scheduler="local")).scheduler == "local"


def test_limits_of_partitions_are_carried_over() -> None:
    partition = {
        "PartitionName": "gpu",
        "State": "UP",
        "Default": "YES",
        "DefaultTime": "01:00:00",
        "MaxTime": "2-12:00:00",
        "MinNodes": "2",
        "MaxNodes": "16",
        "MaxCPUsPerNode": "96",
        "MaxMemPerNode": "512000",
    }
    down = {**partition, "PartitionName": "old", "State": "DOWN"}
    free = {
        "PartitionName": "free",
        "State": "UP",
        "DefaultTime": "NONE",
        "MaxTime": "UNLIMITED",
        "MaxNodes": "UNLIMITED",
    }
    site = drafted(replace(NOTHING, partitions=(partition, down, free)))
    assert set(site.partitions) == {"gpu", "free"}
    limits = site.partitions["gpu"]
    assert (str(limits.max_time), str(limits.default_time)) == ("2 days, 12:00:00", "1:00:00")
    assert (str(limits.nodes), str(limits.cpus_per_node), limits.memory_per_node) == (
        "2 to 16",
        "at most 96",
        "500G",
    )


@pytest.mark.parametrize(
    "name", ["yes", "1234", "a: b", 'a"b', "#a", "null", "-a", "é", "a'b", "[a]", "*a", "1.5", "~"]
)
def test_odd_names_stay_what_they_are(name: str) -> None:
    """YAML would take some of them for something else."""
    facts = replace(
        NOTHING,
        contact=name,
        config={"ClusterName": name},
        partitions=({"PartitionName": name, "State": "UP"},),
        run_root="/a b/${USER}: #c",
        scratch="/local/${SLURM_JOB_ID}",
    )
    site = drafted(facts)
    assert (site.contact, site.clusters, list(site.partitions)) == (name, (name,), [name])
    assert (site.run_root, site.scratch) == ("/a b/${USER}: #c", "/local/${SLURM_JOB_ID}")


def test_what_was_found_stands_in_comments_that_stay_comments() -> None:
    bad = CheckResult(check="names", verdict=Severity.FAIL, found="a\nname: other\x07 " + "long " * 60)
    text = draft_site(replace(NOTHING, results=(bad,)))
    assert parse_site(text, path="mine.yaml").name == "mine"
    assert r"a\nname: other\x07" in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_faster_interface_is_drafted() -> None:
    def fabric(seen: object) -> object:
        return replace(seen, found=(*seen.found, InterfaceSeen(name="ib0", address="10.1.0.1", is_up=True)))  # type: ignore[type-var,attr-defined]

    site = drafted(replace(NOTHING, told=changed(WELL, "interfaces", fabric)))
    assert (site.network.interface, site.network.nccl_socket_ifname) == ("ib0", "ib0")


def test_an_interface_that_is_wrong_is_not_carried_over_and_ports_are() -> None:
    broken, _ = told("broken")
    site = drafted(replace(NOTHING, told=broken, interface="ib7", port_range=(40000, 41000)))
    assert site.network.interface is None
    assert site.network.port_range == (40000, 41000)


@pytest.mark.parametrize(
    ("config", "request_"),
    [
        ({"GresTypes": "gpu,shard", "SelectType": "select/cons_tres"}, "gpus_per_node"),
        ({"GresTypes": "gpu", "SelectType": "select/cons_res"}, "gres:gpu"),
        ({"GresTypes": "(null)"}, "gpus_per_node"),
    ],
)
def test_gpus_are_asked_for_as_this_slurm_takes_it(config: dict[str, str], request_: str) -> None:
    assert drafted(replace(NOTHING, config=config)).gpu_request == request_
