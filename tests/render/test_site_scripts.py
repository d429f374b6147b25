"""What the shipped site files make of a job: one node, four nodes with GPUs, and an array.

The scripts of a site are those of `generic-slurm` with other lines. So a golden file has, of each of the three, the
`#SBATCH` lines and the lines that the generic site's script of the same job lacks; whole scripts are given to bash and
shellcheck. `HPC_ELASTIC_WRITE_GOLDEN=1 python -m pytest tests/render/test_site_scripts.py` writes them anew.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from hpc_elastic.errors import JobError
from hpc_elastic.job.parse import parse_job
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.render.array import render_array_script
from hpc_elastic.render.script import load_template, render_script
from hpc_elastic.render.template import load_array_template
from hpc_elastic.resolve.launch_plan import SubmissionContext, resolve_plan
from hpc_elastic.shipped import shipped_directory
from hpc_elastic.site.search import find_site
from tests.tiers import each_third

GOLDEN = Path(__file__).parent.parent / "golden" / "sites"
CONFIGS = Path(shipped_directory("site-configs"))
SITES = sorted({path.stem for path in CONFIGS.glob("*.yaml")} - {"generic-slurm", "local"})
CONTEXT = SubmissionContext(
    run="digits-20260102-030405-0f0f",
    run_dir="/home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f",
    job_dir="/home/ada/digits",
    created="2026-01-02T03:04:05.000000Z",
    interpreter="/opt/python/bin/python3",
    package_dir="/opt/python/lib/python3.11/site-packages/hpc_elastic",
    package_version="0.1.0",
)
JOB = "name: digits\nentrypoint: {script: train.py}\ntime: 10m\n"
# What a user has to say there, beside what to run: an account's name, and what the notes in the file ask for.
OWN = {"marenostrum5-acc": "sbatch: {account: abc, qos: acc_ehpc}\n", "isambard-ai": "", "mila": "", "snellius": ""}
GPUS_OF_A_JOB = {"mila"}  # its nodes differ, so that the file has no default


def plan_of(site: str, more: str) -> LaunchPlan:
    own = OWN.get(site, "sbatch: {account: abc}\n")
    spec = parse_job(JOB + own + more, file="job.yaml")
    return resolve_plan(spec, find_site(site, job_dir="/", environ={"USER": "ada"}), CONTEXT)


@cache
def scripts(site: str) -> dict[str, str]:
    """The three scripts of a site by their name."""
    gpus = "resources: {gpus_per_node: 4}\n" if site in GPUS_OF_A_JOB else ""
    one, four = plan_of(site, gpus), plan_of(site, f"{gpus}nodes: 4\n")
    template, array = load_template(one.template, job_dir="/"), load_array_template("slurm")
    tasks = [dataclasses.replace(one, run_dir=f"{one.run_dir}/{number}") for number in range(3)]
    return {
        "one node": render_script(one, template),
        "four nodes": render_script(four, template),
        "an array": render_array_script(tasks, array, template, limit=2),
    }


def own_lines(site: str) -> str:
    """The text of the golden file."""
    parts = []
    for name, script in scripts(site).items():
        known = set(re.sub(r"\bgeneric-slurm\b", site, scripts("generic-slurm")[name]).splitlines())
        lines = [line for line in script.splitlines() if line.startswith("#SBATCH") or line not in known]
        parts.append("\n".join([f"== {name}", *lines]))
    env = [f"{name}={value}" for name, value in plan_of(site, "").env.items()]
    return "\n".join([*parts, "== variables of the workers", *env]) + "\n"


def test_twelve_clusters_are_shipped() -> None:
    assert len(SITES) == 12
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(SITES)


@pytest.mark.parametrize("site", SITES)
def test_the_scripts_of_a_site_are_the_golden_ones(site: str) -> None:
    path, text = GOLDEN / f"{site}.txt", own_lines(site)
    if os.environ.get("HPC_ELASTIC_WRITE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def write_scripts(site: str, directory: Path) -> list[Path]:
    """Write the three scripts of a site, each into a file that has its name."""
    paths = [directory / f"{name.replace(' ', '-')}.sh" for name in scripts(site)]
    for path, script in zip(paths, scripts(site).values(), strict=True):
        path.write_text(script, encoding="utf-8")
    return paths


@pytest.mark.parametrize("site", SITES)
def test_the_scripts_of_a_site_are_good_bash(site: str, tmp_path: Path) -> None:
    for path in write_scripts(site, tmp_path):
        subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.long
@pytest.mark.parametrize("site", each_third(SITES, of="test_the_scripts_of_a_site_pass_shellcheck"))
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_scripts_of_a_site_pass_shellcheck(site: str, tmp_path: Path) -> None:
    paths = write_scripts(site, tmp_path)
    assert [path.name for path in paths] == ["one-node.sh", "four-nodes.sh", "an-array.sh"]
    command = ["shellcheck", "--exclude=SC1090,SC1091,SC2016", "--format=gcc", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize("site", SITES)
def test_a_site_file_says_who_tried_it_and_where_its_facts_are_from(site: str) -> None:
    text = (CONFIGS / f"{site}.yaml").read_text(encoding="utf-8")
    head = text[: text.index("\nname:")]
    assert head.startswith("# Nobody has run a job with this file."), "or the day on which somebody did"
    assert re.search(r"\bread 20\d\d-\d\d\b", head)
    assert re.search(r"(https?://|github\.com/)\S+", head)
    assert "last_checked: never\n" in text


@pytest.mark.parametrize(
    ("site", "job", "problem"),
    [
        ("frontier", "nodes: 91\ntime: 3h", "time: partition batch allows 2 h to at most 91 nodes"),
        ("frontier", "nodes: 200\ntime: 13h", "time: partition batch allows 12 h ("),
        ("lumi-g", "resources: {cpus_per_worker: 8}", "partition standard-g allows at most 56 CPUs a node"),
        ("clariden", "nodes: 2\ntime: 1h\nsbatch: {account: a, partition: debug}", "allows 45 min to at most 2 nodes"),
        ("snellius", "resources: {gpus_per_node: 0}", "partition gpu_a100 allows 1 to 4 GPUs a node"),
        ("roihu", "time: 37h", "time: partition gpumedium allows 36 h"),
        ("mila", "time: 4h\nsbatch: {partition: short-unkillable}", "partition short-unkillable allows 3 h"),
    ],
)
def test_a_job_beyond_the_limits_of_a_site_is_refused(site: str, job: str, problem: str) -> None:
    own = "" if "sbatch" in job else OWN.get(site, "sbatch: {account: abc}")
    spec = parse_job(f"entrypoint: {{script: train.py}}\n{own}\n{job}\n", file="job.yaml")
    with pytest.raises(JobError, match=re.escape(problem)):
        resolve_plan(spec, find_site(site, job_dir="/", environ={}), CONTEXT)


@pytest.mark.parametrize("site", sorted(set(SITES) - {"isambard-ai", "mila", "snellius"}))
def test_a_job_without_an_account_is_refused(site: str) -> None:
    spec = parse_job(JOB, file="job.yaml")
    with pytest.raises(JobError, match=r"sbatch\.account: missing; site .* requires it"):
        resolve_plan(spec, find_site(site, job_dir="/", environ={}), CONTEXT)
