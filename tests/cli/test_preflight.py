"""What is missing or cannot be: said by `check` and `submit`, before anything is made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from tests.cli.conftest import FakeSlurm

Capture = pytest.CaptureFixture[str]
SLURM = ("--site", "generic-slurm")
LOCAL = ("--site", "local")
VERBS = pytest.mark.parametrize("verb", ["check", "submit"])
MISSING = [
    ("entrypoint: {script: nowhere.py}", "job.yaml:1: entrypoint.script: cannot read {here}/nowhere.py: No such file"),
    ("entrypoint: {script: folder}", "job.yaml:1: entrypoint.script: cannot read {here}/folder: Is a directory"),
    ("entrypoint: {command: ./nowhere}", "job.yaml:1: entrypoint.command: cannot run {here}/nowhere: No such file"),
    ("entrypoint: {command: ./train.py}", "job.yaml:1: entrypoint.command: cannot run {here}/train.py: it may not be"),
    ("entrypoint: {command: no-such-one}", "job.yaml:1: entrypoint.command: no program no-such-one is in PATH"),
    ("entrypoint: {script: train.py}\nworkdir: gone", "job.yaml:2: workdir: there is no directory {here}/gone"),
    ("entrypoint: {script: train.py}\npython: ./gone/python", "job.yaml:2: python: cannot run {here}/gone/python"),
    ("entrypoint: {script: train.py}\npython: no-such-python", "job.yaml:2: python: no program no-such-python is in"),
    (
        "roles:\n  - {name: a, entrypoint: {script: train.py}}\n  - {name: b, entrypoint: {script: gone.py}}",
        "job.yaml:3: roles[1].entrypoint.script: cannot read {here}/gone.py: No such file or directory",
    ),
]


def write(workplace: Path, text: str) -> None:
    (workplace / "folder").mkdir(exist_ok=True)
    (workplace / "job.yaml").write_text(f"{text}\n")


def left(workplace: Path) -> list[str]:
    return sorted(path.name for path in workplace.iterdir() if path.name.startswith("hpc-elastic-runs"))


@pytest.mark.long
@VERBS
@pytest.mark.parametrize(("text", "message"), MISSING)
def test_what_is_missing_on_this_machine_is_an_error(
    verb: str, text: str, message: str, workplace: Path, capsys: Capture
) -> None:
    write(workplace, text)
    assert main([verb, "job.yaml", *LOCAL]) == 3
    said = capsys.readouterr()
    assert f"error: {message.format(here=workplace)}" in said.err
    assert "is fine" not in said.out
    assert left(workplace) == []


@pytest.mark.long
@VERBS
@pytest.mark.parametrize(("text", "message"), MISSING)
def test_what_is_missing_here_is_a_warning_if_compute_nodes_may_see_it(
    verb: str, text: str, message: str, workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    write(workplace, text)
    assert main([verb, "job.yaml", *SLURM]) == 0
    assert f"warning: {message.format(here=workplace)}" in capsys.readouterr().err


def test_a_script_that_may_not_be_read_is_an_error(workplace: Path, capsys: Capture) -> None:
    assert main(["check", "job.yaml", *LOCAL]) == 0  # which imports all that the other user may not read
    (workplace / "train.py").chmod(0)
    owner, closed = os.geteuid(), [folder for folder in workplace.parents if folder.stat().st_mode & 0o777 == 0o700]
    for folder in closed:  # pytest's own
        folder.chmod(0o711)
    os.seteuid(owner or 65534)  # to root nothing is forbidden
    try:
        assert main(["check", "job.yaml", *LOCAL]) == 3
    finally:
        os.seteuid(owner)
        for folder in closed:
            folder.chmod(0o700)
    assert f"cannot read {workplace}/train.py: Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "entrypoint: {script: made.py}\nsetup: ['touch made.py']",
        "entrypoint: {command: ./made}\nsetup: ['touch made']",
        "entrypoint: {command: of-a-module}\nsetup: ['module load it']",
        "entrypoint: {script: train.py}\npython: python-of-a-module\nsetup: ['module load it']",
    ],
)
def test_what_setup_may_make_is_no_error(text: str, workplace: Path, capsys: Capture) -> None:
    write(workplace, text)
    assert main(["check", "job.yaml", *LOCAL]) == 0


@pytest.mark.parametrize(
    "text",
    [
        "entrypoint: {script: train.py}\nworkdir: ${SOMEWHERE}",
        "entrypoint: {script: train.py, args: ['${NOWHERE}']}",
        "entrypoint: {module: perhaps.there}",
        "entrypoint: {command: python3}",
    ],
)
def test_what_only_the_node_can_know_is_not_looked_at(text: str, workplace: Path, capsys: Capture) -> None:
    write(workplace, text)
    assert main(["check", "job.yaml", *LOCAL]) == 0
    assert "warning" not in capsys.readouterr().err


def test_all_that_is_missing_is_said_at_once(workplace: Path, capsys: Capture) -> None:
    write(workplace, "entrypoint: {script: /gone.py}\npython: no-such-python\nsetup: ['if then']\nworkdir: gone")
    assert main(["check", "job.yaml", *LOCAL]) == 3
    said = capsys.readouterr().err
    assert [said.count(key) for key in ("setup[0]:", "workdir:")] == [1, 1]


@VERBS
@pytest.mark.parametrize("site", [LOCAL, SLURM])
def test_a_setup_line_that_bash_cannot_read_is_an_error_everywhere(
    verb: str, site: tuple[str, ...], workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    write(workplace, "entrypoint: {script: train.py}\nsetup:\n  - 'true'\n  - if then")
    assert main([verb, "job.yaml", *site]) == 3
    said = capsys.readouterr().err
    assert "error: job.yaml:4: setup[1]: bash cannot read it: syntax error near unexpected token `then'" in said
    assert left(workplace) == []


@pytest.mark.parametrize(
    "line", ["shopt -s extglob; echo !(a)", "f() {\n  cat <<END\nif then\nEND\n}", "[[ a =~ (b|c) ]]; :"]
)
def test_setup_that_bash_can_read_is_fine(line: str, workplace: Path, capsys: Capture) -> None:
    (workplace / "job.yaml").write_text(
        "entrypoint: {script: train.py}\nsetup:\n  - |\n    " + line.replace("\n", "\n    ")
    )
    assert main(["check", "job.yaml", *LOCAL]) == 0


@VERBS
@pytest.mark.parametrize("site", [LOCAL, SLURM])
def test_a_run_directory_that_is_not_empty_is_an_error_everywhere(
    verb: str, site: tuple[str, ...], workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    assert main([verb, "job.yaml", "--run-dir", ".", *site]) == 5
    assert f"the run directory {workplace} is not empty" in capsys.readouterr().err
    assert main([verb, "job.yaml", "--run-dir", "train.py", *site]) == 5


@VERBS
def test_a_run_directory_that_cannot_be_made_is_an_error(verb: str, workplace: Path, capsys: Capture) -> None:
    write(workplace, "entrypoint: {script: train.py}")
    assert main([verb, "job.yaml", *LOCAL, "--run-dir", f"{workplace}/train.py/run"]) == 5
    said = capsys.readouterr()
    assert f"error: cannot write {workplace}/train.py" in said.err
    assert "is fine" not in said.out


def test_check_shows_a_dollar_sign_of_a_folder_s_name_once(workplace: Path, capsys: Capture) -> None:
    (workplace / "a$b").mkdir()
    (workplace / "a$b" / "train.py").touch()
    write(workplace, "entrypoint: {script: train.py}\nworkdir: a$$b")
    assert main(["check", "job.yaml", *LOCAL]) == 0
    assert f"in             {workplace}/a$b\n" in capsys.readouterr().out


def test_an_empty_run_directory_is_fine(workplace: Path) -> None:
    (workplace / "empty").mkdir()
    assert main(["check", "job.yaml", "--run-dir", "empty", *LOCAL]) == 0
    assert main(["check", "job.yaml", "--run-dir", "new/one", *LOCAL]) == 0
    assert not (workplace / "new").exists()


@pytest.mark.parametrize("verb", ["check", "submit --dry-run", "submit"])
def test_what_this_machine_cannot_give_is_said_in_one_line(
    verb: str, workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    write(
        workplace,
        "entrypoint: {script: gone.py}\nsetup: ['false']\nresources: {memory_per_node: 4G, exclusive: true, "
        "cpus_per_worker: 1}\nsbatch: {partition: gpu, qos: null}",
    )
    assert main([*verb.split(), "job.yaml", *LOCAL]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "this machine" in line]
    keys = "resources.memory_per_node, resources.exclusive, sbatch.partition"
    assert lines == [f"hpc-elastic: warning: nothing on this machine acts on {keys}"]


def test_slurm_gives_all_of_it(workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    write(workplace, "entrypoint: {script: train.py}\nresources: {memory_per_node: 4G}\nsbatch: {partition: gpu}")
    assert main(["check", "job.yaml", *SLURM]) == 0
    assert "warning" not in capsys.readouterr().err


def test_an_array_says_what_is_missing_once(workplace: Path, capsys: Capture) -> None:
    write(workplace, "entrypoint: {script: gone.py, args: ['${lr}']}")
    assert main(["submit", "job.yaml", "--array", "lr=1,2,3", *LOCAL]) == 3
    assert capsys.readouterr().err.count("gone.py") == 1
    assert left(workplace) == []


LIMITED = """\
name: cluster
contact: me
url: https://example.org
last_checked: never
scheduler: slurm
partitions: {gpu: {max_time: 20h, default_time: 10m}}
"""


@pytest.mark.parametrize("verb", ["check", "render", "submit"])
def test_more_than_a_partition_allows_is_refused_before_sbatch(
    verb: str, workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    (workplace / "cluster.yaml").write_text(LIMITED)
    arguments = [verb, "job.yaml", "--site", "./cluster.yaml", "--set", "sbatch.partition=gpu"]
    assert main([*arguments, "--set", "time=30h"]) == 3
    captured = capsys.readouterr()
    assert captured.err.splitlines()[0] == (
        "hpc-elastic: error: time: partition gpu allows 20 h (https://example.org), the job asks 30 h"
    )
    assert not fake_slurm.calls("sbatch")
    assert main([*arguments, "--set", "time=20h"]) == 0


@pytest.mark.long
def test_check_says_what_a_job_without_a_time_gets(workplace: Path, fake_slurm: FakeSlurm, capsys: Capture) -> None:
    (workplace / "cluster.yaml").write_text(LIMITED)
    (workplace / "job.yaml").write_text("entrypoint: {script: train.py}\nsbatch: {partition: gpu}\n")
    assert main(["check", "job.yaml", "--site", "./cluster.yaml"]) == 0
    assert "time limit     10m, the default of partition gpu (https://example.org)\n" in capsys.readouterr().out
    assert main(["check", "job.yaml", "--site", "generic-slurm"]) == 0
    assert "time limit     the partition's\n" in capsys.readouterr().out
