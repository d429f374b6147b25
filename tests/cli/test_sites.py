"""Site files from the command line: listed, shown, found and checked; and where every value of a job came from."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from hpc_elastic.shipped import shipped_directory
from tests.cli.conftest import FakeSlurm

Capture = pytest.CaptureFixture[str]
SITE = """\
name: mine
contact: me
last_checked: never
scheduler: slurm
defaults:
  sbatch: {partition: gpu, account: abc}
  setup: [module load cuda]
network: {interface: ib0}
"""


@pytest.fixture(autouse=True)
def no_sites_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def write_site(workplace: Path, name: str = "mine", text: str = SITE) -> Path:
    folder = workplace / "site-configs"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(text.replace("name: mine", f"name: {name}"))
    return path


def test_list_names_every_site_once_with_its_file(workplace: Path, capsys: Capture) -> None:
    mine = write_site(workplace)
    broken = write_site(workplace, "broken", "name: [\n")
    assert main(["sites", "list"]) == 0
    lines = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()[1:]]
    rows = {line[0]: line[1:] for line in lines}
    assert rows["mine"] == ["slurm", "never", str(mine)]
    assert rows["local"][0] == "local"
    assert rows["broken"][2].startswith(f"{broken} (has mistakes")
    shipped = {name.removesuffix(".yaml") for name in os.listdir(shipped_directory("site-configs"))} - {"README.md"}
    assert shipped <= set(rows)
    assert len(lines) == len(rows)


def test_sites_alone_lists(workplace: Path, capsys: Capture) -> None:
    write_site(workplace)
    assert main(["sites", "list"]) == 0
    listed = capsys.readouterr().out
    assert main(["sites"]) == 0
    assert capsys.readouterr().out == listed
    assert "mine" in listed


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: path.symlink_to("gone.yaml"), "is a symbolic link to gone.yaml, which is not there or cannot be"),
        (lambda path: path.mkdir(), "is a directory, expected a file"),
    ],
    ids=["broken link", "directory"],
)
def test_what_has_the_name_of_a_site_file_and_is_none_is_named(
    make: Callable[[Path], None],
    what: str,
    workplace: Path,
    fake_slurm: FakeSlurm,
    capsys: Capture,
) -> None:
    path = write_site(workplace)
    path.unlink()
    make(path)
    assert main(["sites", "show", "mine"]) == 3
    assert f"site: {path} {what}" in capsys.readouterr().err
    assert main(["sites"]) == 0
    assert f"{path} ({what}" in capsys.readouterr().out
    fake_slurm._program("scontrol", "echo 'ClusterName             = big'")
    assert main(["sites", "which"]) == 0
    captured = capsys.readouterr()
    assert os.path.basename(captured.out.strip()) == "generic-slurm.yaml"
    assert f"passed over {path}: it {what}" in captured.err


def test_which_and_show_say_the_file_of_a_name(workplace: Path, capsys: Capture) -> None:
    mine = write_site(workplace)
    assert main(["sites", "which", "mine"]) == 0
    assert capsys.readouterr().out == f"{mine}\n"
    assert main(["sites", "show", "./site-configs/mine.yaml"]) == 0
    assert capsys.readouterr().out == SITE


def test_the_site_of_a_machine_is_the_named_one_else_that_of_its_host_or_cluster(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def which() -> tuple[str, str]:
        assert main(["sites", "which"]) == 0
        captured = capsys.readouterr()
        return os.path.basename(captured.out.strip()), captured.err

    fake_slurm._program("scontrol", "echo 'ClusterName             = big'")
    assert which()[0] == "generic-slurm.yaml"
    by_cluster = write_site(workplace, "by-cluster", SITE + "clusters: [big]\n")
    assert which() == (
        "by-cluster.yaml",
        f"no site named: Slurm calls its cluster big, so the site is {by_cluster}\n",
    )
    host = socket.gethostname()
    by_host = write_site(workplace, "by-host", SITE + f"hostnames: ['{host}*']\n")
    assert which() == (by_host.name, f"no site named: this machine is called {host}, so the site is {by_host}\n")
    monkeypatch.setenv("HPC_ELASTIC_SITE", "local")
    assert which()[0] == "local.yaml"
    fake_slurm.no_controller()
    monkeypatch.setenv("HPC_ELASTIC_SITE", "nowhere")
    assert main(["sites", "which"]) == 3
    assert "there is no site 'nowhere'" in capsys.readouterr().err


def test_the_site_is_local_if_nothing_names_it_and_no_slurm_is_set_up(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    fake_slurm.no_slurm()
    assert main(["sites", "which"]) == 0
    assert os.path.basename(capsys.readouterr().out.strip()) == "local.yaml"


@pytest.mark.long
def test_a_variable_names_the_site_of_a_job_that_names_none(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_site(workplace)
    monkeypatch.setenv("HPC_ELASTIC_SITE", "mine")
    assert main(["check", "job.yaml"]) == 0
    assert "site           mine (slurm)" in capsys.readouterr().out
    assert main(["check", "job.yaml", "--set", "site=generic-slurm"]) == 0
    assert "site           generic-slurm (slurm)" in capsys.readouterr().out
    monkeypatch.setenv("HPC_ELASTIC_SITE", "nowhere")
    assert main(["check", "job.yaml"]) == 3
    assert "error: HPC_ELASTIC_SITE: there is no site 'nowhere'" in capsys.readouterr().err


def test_check_takes_the_name_of_a_site(workplace: Path, capsys: Capture) -> None:
    good = write_site(workplace)
    write_site(workplace, "bad", SITE + "max_node: 3\n")
    assert main(["sites", "check", "mine"]) == 0
    assert capsys.readouterr().out == f"mine is fine: {good}\n"
    assert main(["sites", "check", "bad", "mini"]) == 3
    error = capsys.readouterr().err
    assert "bad.yaml:9: max_node" in error
    assert "there is no site 'mini'; did you mean mine?" in error


@pytest.mark.parametrize("action", ["which", "show"])
def test_a_site_whose_variable_is_not_set_here_is_found(action: str, workplace: Path, capsys: Capture) -> None:
    mine = write_site(workplace, text=SITE + "run_root: /scratch/${NO_SUCH_USER}\n")
    assert main(["sites", action, "mine"]) == 0
    assert str(mine) in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("echo {{ nme }}", "mine.sh.j2:4: 'nme' is undefined"),
        ("if true; then", "bash cannot read the script that {folder}/mine.sh.j2 makes: line"),
    ],
)
def test_check_tells_what_keeps_a_template_from_making_a_script(
    block: str, message: str, workplace: Path, capsys: Capture
) -> None:
    mine = write_site(workplace, text=SITE + "template: ./mine.sh.j2\n")
    start = '{# contract: 1 #}\n{% extends "slurm/job.sh.j2" %}\n{% block before %}\n'
    mine.with_suffix(".sh.j2").write_text(f"{start}{block}\n{{% endblock %}}\n")
    assert main(["sites", "check", "mine"]) == 3
    out, error = capsys.readouterr()
    assert f"{mine}:9: template: " in error
    assert message.format(folder=mine.parent) in error
    assert out == ""


def test_a_variable_of_the_users_is_no_mistake_where_the_file_is_checked(workplace: Path, capsys: Capture) -> None:
    text = SITE.replace("account: abc", "account: '${NO_SUCH_PROJECT}'") + "run_root: ${NO_SUCH_SCRATCH}/runs\n"
    mine = write_site(workplace, text=text)
    assert main(["sites", "check", str(mine)]) == 0
    out, error = capsys.readouterr()
    assert out == f"{mine} is fine\n"
    assert f"{mine}: not set here, and each user has to have it: NO_SUCH_SCRATCH, NO_SUCH_PROJECT\n" in error


def test_check_tells_all_mistakes_of_all_files(workplace: Path, capsys: Capture) -> None:
    good = write_site(workplace)
    bad = write_site(workplace, "bad", SITE + "template: ./nowhere.sh.j2\n")
    worse = write_site(workplace, "worse", SITE + "max_node: 3\n")
    assert main(["sites", "check", str(good)]) == 0
    assert capsys.readouterr().out == f"{good} is fine\n"
    assert main(["sites", "check", str(bad), str(good), str(worse)]) == 3
    out, error = capsys.readouterr()
    assert out == f"{good} is fine\n"
    assert f"{bad}:9: template: no template {workplace}/site-configs/nowhere.sh.j2" in error
    assert f"{worse}:9: max_node: unknown key; did you mean max_nodes?" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check"], "sites check wants the files to check, or names"),
        (["list", "x"], "sites list takes no name, found x"),
        (["which", "x", "y"], "sites which takes one name, found x y"),
        (["forget"], "invalid choice: 'forget'"),
    ],
)
def test_sites_rejects_other_arguments(arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(["sites", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_check_shows_the_whole_request(workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    write_site(workplace, text=SITE.replace("  setup:", "  env: {NCCL_DEBUG: WARN}\n  setup:"))
    more = ["--set", "resources.gpus_per_node=4", "--set", "resources.memory_per_node=64G"]
    assert main(["check", "job.yaml", "--site", "mine", *more]) == 0
    rows = dict(line.strip().split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line[:2] == "  ")
    assert rows["sbatch"] == "--nodes=2 --time=00:10:00 --mem=64G --gpus-per-node=4 --partition=gpu --account=abc"
    assert rows["environment"] == "NCCL_DEBUG"
    assert rows["interface"] == "ib0"


def test_explain_says_of_every_value_where_it_came_from(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = write_site(workplace)
    monkeypatch.setenv("SBATCH_QOS", "long")
    (workplace / "job.yaml").write_text(
        "entrypoint: {script: train.py}\nnodes: 2\nsetup: [echo]\nsbatch: {-A: own}\nresources: {memory_per_node: 4G}\n"
    )
    arguments = ["check", "job.yaml", "--site", "mine", "--set", "resources.gpus_per_node=4", "--explain"]
    assert main(arguments) == 0
    values, _, asked = capsys.readouterr().out.partition("where every value comes from:\n")[2].partition("\n\n")
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in values.splitlines()}
    assert rows["entrypoint.script"] == "train.py  [job.yaml:1]"
    assert rows["nodes"] == "2  [job.yaml:2]"
    assert rows["resources.gpus_per_node"] == "4  [--set]"
    assert rows["resources.memory_per_node"] == "4G  [job.yaml:5]"
    assert rows["sbatch.account"] == "own  [job.yaml:4]"
    assert rows["sbatch.partition"] == f"gpu  [site {site}:6]"
    assert rows["setup[0]"] == f"module load cuda  [site {site}:7]"
    assert rows["setup[1]"] == "echo  [job.yaml:3]"
    assert rows["restart.max_restarts"] == "3  [default]"
    assert rows["signals.lead"] == "2m  [default]"
    assert rows["site.network.interface"] == f"ib0  [site {site}:8]"
    assert rows["sbatch.qos"] == "long  [SBATCH_QOS of this shell]"
    options = asked.splitlines()
    assert options[0] == "what sbatch is asked:"
    assert {"  --gpus-per-node=4", "  --mem=4G", "  --partition=gpu", "  --account=own"} <= set(options)
