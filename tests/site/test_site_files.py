from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from hpc_elastic.errors import ExitCode, SiteError
from hpc_elastic.shipped import shipped_directory
from hpc_elastic.site.parse import parse_site
from hpc_elastic.site.search import find_machine, find_site, known_sites, search_folders
from tests.another_user import another_user, folder_of_everybody

PORTS = "expected the first and the last of several ports from 1024 to 65535"
HEAD = "contact: me\nlast_checked: 2026-11-20\nscheduler: slurm\n"


def write_site(folder: Path, name: str, more: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(f"name: {name}\n{HEAD}{more}")
    return path


def problems_of(text: str, path: str = "/etc/here.yaml") -> list[str]:
    with pytest.raises(SiteError) as caught:
        parse_site(text, path=path)
    assert caught.value.exit_code is ExitCode.SETUP
    return list(caught.value.problems)


def environment(home: Path, **more: str) -> Mapping[str, str]:
    return {"HOME": str(home), **more}


def test_a_site_file_says_all_of_a_cluster() -> None:
    site = parse_site(
        f"""\
name: here
{HEAD}
url: https://example.org
defaults:
  sbatch: {{account: 012, qos: on}}
  setup: [module load cuda/12.4]
  env: {{NCCL_DEBUG: WARN}}
run_root: /scratch/${{USER}}
template: here.sh.j2
network: {{interface: ib0, hostname_transform: i, port_range: [30000, 31000], nccl_socket_ifname: ib0}}
gpu_request: gres:gpu:a100
memory_request: mem-per-cpu
srun: [--mpi=none, --time=1.10]
max_nodes: 64
max_time: 1-00:00:00
""",
        path="/etc/here.yaml",
    )
    assert site.defaults.sbatch == {"account": "012", "qos": "on"}
    assert site.defaults.setup == ("module load cuda/12.4",)
    assert site.network.port_range == (30000, 31000)
    assert site.srun == ("--mpi=none", "--time=1.10")
    assert site.max_time == timedelta(days=1)


def test_a_key_with_nothing_behind_it_counts_as_left_out() -> None:
    site = parse_site(f"name: here\n{HEAD}defaults:\nnetwork:\nsrun:\nurl:\n", path="here.yaml")
    assert site.defaults.sbatch is None
    assert site.srun == ()


def test_a_site_file_rejects_all_mistakes_at_once() -> None:
    text = f"""\
name: there
{HEAD}defaults:
  sbatch: {{-N: 2, partition: x, -p: y}}
  entrypoint: {{script: x}}
  restart: {{max_restart: 3}}
  stage: {{sources: data}}
gpu_request: gpus
network: {{port_range: [9, 10], interfaces: ib0}}
wait_all_nodes: yes
run_root: runs
"""
    assert problems_of(text) == [
        "/etc/here.yaml:1: name: expected here, as the file is called, found 'there'",
        "/etc/here.yaml:6: defaults.sbatch.-p: the same option as partition; give one of them",
        "/etc/here.yaml:6: defaults.sbatch.-N: sbatch's --nodes does not belong here: use the key nodes",
        "/etc/here.yaml:7: defaults.entrypoint: unknown key",
        "/etc/here.yaml:8: defaults.restart.max_restart: unknown key; did you mean max_restarts?",
        "/etc/here.yaml:9: defaults.stage.sources: unknown key; did you mean source?",
        "/etc/here.yaml:10: gpu_request: expected gpus_per_node, gres:<name> or none, found 'gpus'",
        f"/etc/here.yaml:11: network.port_range: {PORTS}, found [9, 10]",
        "/etc/here.yaml:11: network.interfaces: unknown key; did you mean interface?",
        "/etc/here.yaml:12: wait_all_nodes: expected true or false, found 'yes'",
        "/etc/here.yaml:13: run_root: expected an absolute path, found 'runs'",
    ]


def test_a_site_file_rejects_missing_keys() -> None:
    assert problems_of("name: here\nscheduler: pbs\n") == [
        "/etc/here.yaml:1: contact: missing",
        "/etc/here.yaml:1: last_checked: missing",
        "/etc/here.yaml:2: scheduler: expected slurm or local, found 'pbs'",
    ]


def test_a_site_file_rejects_impossible_defaults() -> None:
    (problem,) = problems_of(f"name: here\n{HEAD}defaults: {{nodes: {{min: 3, max: 2}}}}\n")
    assert problem == "/etc/here.yaml:5: defaults.nodes.min: expected at most nodes.max, which is 2, found 3"


@pytest.mark.parametrize("name", os.listdir(shipped_directory("site-configs")))
def test_a_shipped_site_file_is_right(name: str, tmp_path: Path) -> None:
    stem, suffix = os.path.splitext(name)
    if suffix == ".yaml":
        assert find_site(stem, job_dir=str(tmp_path), environ=environment(tmp_path)).name == stem


def test_the_first_folder_that_has_the_name_counts(tmp_path: Path) -> None:
    job_dir, first, second = tmp_path / "job", tmp_path / "first", tmp_path / "second"
    environ = environment(tmp_path / "home", HPC_ELASTIC_SITE_PATH=f"{first}:{second}")

    def found() -> str:
        return find_site("local", job_dir=str(job_dir), environ=environ).contact

    assert found() == "the hpc_elastic project"
    for folder in (tmp_path / "home/.config/hpc-elastic/sites", second, first, job_dir / "site-configs"):
        write_site(folder, "local")
        path = folder / "local.yaml"
        path.write_text(path.read_text().replace("contact: me", f"contact: {folder}"))
        assert found() == str(folder)


@pytest.mark.parametrize("home", ["", "home", None])
def test_without_a_home_the_users_sites_are_not_looked_for_in_the_working_directory(home: str | None) -> None:
    environ = {} if home is None else {"HOME": home}
    own = pwd.getpwuid(os.getuid()).pw_dir
    assert f"{own}/.config/hpc-elastic/sites" in search_folders("/j", environ)


def test_the_search_order_has_the_systems_the_users_and_our_folder() -> None:
    environ = {"HOME": "/h", "XDG_CONFIG_HOME": "/c", "HPC_ELASTIC_SITE_PATH": "/a::/b"}
    assert search_folders("/j", environ) == [
        "/j/site-configs",
        "/a",
        "/b",
        "/etc/hpc-elastic/sites",
        "/c/hpc-elastic/sites",
        shipped_directory("site-configs"),
    ]


def test_a_site_may_be_a_path_relative_to_the_job(tmp_path: Path) -> None:
    write_site(tmp_path / "sites", "mine", "template: ./mine.sh.j2\nrun_root: /scratch/${USER}/$$x\n")
    site = find_site("sites/mine.yaml", job_dir=str(tmp_path), environ=environment(tmp_path, USER="ada"))
    assert site.template == str(tmp_path / "sites/mine.sh.j2")
    assert site.run_root == "/scratch/ada/$x"


def test_an_unknown_site_is_told_with_the_known_ones(tmp_path: Path) -> None:
    write_site(tmp_path / "site-configs", "ourcluster")
    with pytest.raises(SiteError) as caught:
        find_site("ourclster", job_dir=str(tmp_path), environ=environment(tmp_path))
    assert str(caught.value) == "site: there is no site 'ourclster'; did you mean ourcluster?"
    known = known_sites(str(tmp_path), environment(tmp_path))
    assert caught.value.tip == f"known sites: {', '.join(known)}; or give the path of a site file"
    shipped = {Path(name).stem for name in os.listdir(shipped_directory("site-configs")) if name != "README.md"}
    assert set(known) == shipped | {"ourcluster"}
    assert known == sorted(known)


def test_a_site_rejects_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"cannot read the site file .*/none\.yaml: No such file or directory"):
        find_site("./none.yaml", job_dir=str(tmp_path), environ=environment(tmp_path))
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SiteError, match="it is not UTF-8 text"):
        find_site("bytes.yaml", job_dir=str(tmp_path), environ=environment(tmp_path))


def test_a_run_root_rejects_a_variable_that_is_not_set(tmp_path: Path) -> None:
    path = write_site(tmp_path, "mine", "run_root: ${NO_SUCH_VARIABLE}/runs\n")
    with pytest.raises(SiteError, match=r"mine\.yaml:\d+: run_root: \$\{NO_SUCH_VARIABLE\} is not set here; export it"):
        find_site(str(path), job_dir="/", environ=environment(tmp_path))


def test_a_site_is_found_by_its_host_name_and_by_its_cluster(tmp_path: Path) -> None:
    said: list[str] = []

    def found(*, host: str = "", cluster: str = "") -> str | None:
        environ = environment(tmp_path / "home")
        path = find_machine(host=host, cluster=cluster, job_dir=str(tmp_path), environ=environ, warn=said.append)
        return path and os.path.relpath(path, tmp_path)

    folder = tmp_path / "site-configs"
    write_site(folder, "first", "hostnames: [login*.example.org, 'fe[12]']\nclusters:\n- one\n\n- two # a comment\n")
    write_site(folder, "second", "clusters: [two, 012]\nhostnames:\n")
    assert found(host="LOGIN3.example.org") == "site-configs/first.yaml"
    assert found(host="fe2") == "site-configs/first.yaml"
    assert found(host="fe3") is None
    assert found(cluster="two") == "site-configs/first.yaml"
    assert found(cluster="012") == "site-configs/second.yaml"
    assert found(cluster="three") is None
    assert found() is None
    assert said == []


def test_a_file_that_cannot_be_read_is_passed_over_with_a_word(tmp_path: Path) -> None:
    said: list[str] = []
    folder = tmp_path / "site-configs"
    (write_site(folder, "a")).write_text("hostnames: [login\n")
    (write_site(folder, "b")).write_text("hostnames: login1\n")
    write_site(folder, "c", "hostnames: [login1]\n")
    environ = environment(tmp_path / "home")
    path = find_machine(host="login1", job_dir=str(tmp_path), environ=environ, warn=said.append)
    assert path == str(folder / "c.yaml")
    assert [line.split(": ")[0] for line in said] == [f"passed over {folder}/{name}.yaml" for name in "ab"]


@pytest.mark.parametrize("text", ["", "\n", "name: a\ncontact: me\nlast_checked: ne", "name: a\nclus"])
def test_a_file_that_was_cut_off_before_its_clusters_is_passed_over_with_a_word(text: str, tmp_path: Path) -> None:
    said: list[str] = []
    (write_site(tmp_path / "site-configs", "a")).write_text(text)
    environ = environment(tmp_path / "home")
    assert find_machine(cluster="big", job_dir=str(tmp_path), environ=environ, warn=said.append) is None
    assert [line.split(": ")[0] for line in said] == [f"passed over {tmp_path}/site-configs/a.yaml"]


def test_a_whole_file_that_is_found_by_its_name_alone_is_passed_over_in_silence(tmp_path: Path) -> None:
    said: list[str] = []
    write_site(tmp_path / "site-configs", "a")
    environ = environment(tmp_path / "home")
    assert find_machine(cluster="big", job_dir=str(tmp_path), environ=environ, warn=said.append) is None
    assert said == []


@pytest.mark.parametrize("closed", ["sites", "."], ids=["the folder", "the one above"])
def test_a_folder_of_site_files_that_this_user_may_not_read_is_told(closed: str) -> None:
    """An administrator's umask of 077 makes it so, and all users would be served without their site's file."""
    said: list[str] = []
    with folder_of_everybody() as place:
        above = place / "above"
        write_site(above / "sites", "mine", "hostnames: [login1]\n")
        (above / closed).chmod(0o700)
        environ = environment(place, HPC_ELASTIC_SITE_PATH=str(above / "sites"))
        with another_user():
            assert find_machine(host="login1", job_dir=str(place), environ=environ, warn=said.append) is None
            with pytest.raises(SiteError, match=f"{above}/sites.* cannot be looked at: permission denied"):
                find_site("mine", job_dir=str(place), environ=environ)
    assert said == [f"passed over {above}/sites: it cannot be looked at: permission denied"]


def test_sbatch_of_a_site_has_the_variables_of_the_submission(tmp_path: Path) -> None:
    path = write_site(tmp_path, "mine", 'defaults:\n  sbatch: {account: "aur-${USER}", comment: $5, qos: null}\n')
    site = find_site(str(path), job_dir="/", environ=environment(tmp_path, USER="ada"))
    assert site.defaults.sbatch == {"account": "aur-ada", "comment": "$5", "qos": None}
    with pytest.raises(SiteError, match=r"mine\.yaml:6: defaults\.sbatch\.account: \$\{USER\} is not set here"):
        find_site(str(path), job_dir="/", environ=environment(tmp_path))
