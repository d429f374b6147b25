"""The JSON Schema of site files says the same as what reads them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import jsonschema
import pytest

from hpc_elastic.cli.main import main
from hpc_elastic.errors import SiteError
from hpc_elastic.job.document import Document
from hpc_elastic.shipped import shipped_directory
from hpc_elastic.site import schema
from hpc_elastic.site.config import SiteConfig
from hpc_elastic.site.limits import Limits
from hpc_elastic.site.parse import parse_site
from hpc_elastic.site.schema import site_schema

SCHEMA = site_schema()
HEAD = "name: here\ncontact: me\nlast_checked: never\nscheduler: slurm\n"
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "site-files.md"


def accepts(text: str) -> tuple[bool, bool]:
    """What the schema says, and what the parser says."""
    document = Document(file="here.yaml")
    document.read(text)
    by_schema = jsonschema.Draft202012Validator(SCHEMA).is_valid(document.data)
    try:
        parse_site(text, path="here.yaml")
    except SiteError:
        return by_schema, False
    return by_schema, True


def test_the_shipped_schema_is_that_of_the_models() -> None:
    """If it is not: `hpc-elastic schema --site > hpc_elastic/site/site.schema.json`."""
    shipped = Path(schema.__file__).with_name("site.schema.json")
    assert json.loads(shipped.read_text(encoding="utf-8")) == SCHEMA


@pytest.mark.long
def test_the_command_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--site"]) == 0
    printed = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(printed)
    assert printed == SCHEMA


@pytest.mark.parametrize("name", sorted(os.listdir(shipped_directory("site-configs"))))
def test_the_schema_accepts_a_shipped_file(name: str) -> None:
    if name.endswith(".yaml"):
        document = Document(file=name)
        document.read((Path(shipped_directory("site-configs")) / name).read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator(SCHEMA).validate(document.data)


@pytest.mark.parametrize(
    "more",
    [
        "",
        "defaults:\nnetwork:\npartitions:\nrequired:\nclusters:\n",
        "clusters: [frontier]\nhostnames: ['login*.example.org', 'jean-zay?']\nrequired: [account, -q]\n",
        "partitions: {gpu: {max_time: 20h, nodes: 8, gpus_per_node: {min: 4}, cpus_per_gpu: {min: 20, max: 20}}}\n",
        "partitions: {g: {max_time_by_nodes: [{max_nodes: 1, max_time: 1h}], memory_per_node: 64G, page: p}}\n",
        "qos: {debug: {max_time: 30m}}\nmax_time: 1-00:00:00\n",
        "network: {interface: ib0, port_range: [30000, 31000]}\ngpu_request: gres:gpu\nwait_all_nodes: true\n",
    ],
)
def test_schema_and_parser_accept(more: str) -> None:
    assert accepts(HEAD + more) == (True, True)


@pytest.mark.parametrize(
    "more",
    [
        "partition: {}\n",
        "partitions: {gpu: {time: 20h}}\n",
        "partitions: {gpu: {nodes: 0}}\n",
        "partitions: {gpu: {nodes: {}}}\n",
        "partitions: {gpu: {nodes: [1, 2]}}\n",
        "partitions: {gpu: {max_time: 3600}}\n",
        "partitions: {gpu: {max_time_by_nodes: [{max_nodes: 4}]}}\n",
        "partitions: [gpu]\n",
        "required: account\n",
        "gpu_request: gpus\n",
    ],
)
def test_schema_and_parser_reject(more: str) -> None:
    assert accepts(HEAD + more) == (False, False)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("partitions: {g: {nodes: {min: 3, max: 2}}}", "expected min at most max, found 3 and 2"),
        (
            "partitions: {g: {max_time_by_nodes: [{max_nodes: 2, max_time: 1h}, {max_nodes: 2, max_time: 2h}]}}",
            "expected rows by growing max_nodes, found 2 after 2",
        ),
        ("required: [nodes]", "sbatch's --nodes does not belong here: use the key nodes"),
        ("hostnames: ['*']", "expected a host name, in which * and ? stand for any characters, found '*'"),
        ("network: {interface: hsn 0}", "expected the name of one interface, such as ib0, found 'hsn 0'"),
    ],
)
def test_a_site_file_rejects_a_value_that_makes_no_sense(more: str, message: str) -> None:
    with pytest.raises(SiteError) as caught:
        parse_site(HEAD + more, path="here.yaml")
    (problem,) = caught.value.problems
    assert problem.startswith("here.yaml:5: ")
    assert problem.endswith(message)


@pytest.mark.parametrize("day", ["yesterday", "2026-11-31", "2026-1-2", "20261120", "Never"])
def test_a_site_file_rejects_a_last_check_that_is_no_day(day: str) -> None:
    with pytest.raises(SiteError, match="last_checked: expected a day, such as 2026-11-20, or never"):
        parse_site(HEAD.replace("never", day), path="here.yaml")


def test_the_reference_has_exactly_the_keys_of_the_limits() -> None:
    assert re.findall(r"^\| `([a-z_]+):` \|", REFERENCE.read_text(), re.M) == list(Limits.model_fields)


def test_the_generic_site_file_shows_every_key_by_an_example_that_is_right() -> None:
    path = Path(shipped_directory("site-configs"), "generic-slurm.yaml")
    text = re.sub(r"^# (?= *[a-z_]+:)", "", path.read_text(encoding="utf-8"), flags=re.M)
    assert SiteConfig.model_fields.keys() - parse_site(text, path=str(path)).model_fields_set == set()
