"""Batch scripts of many shapes as job files: what each becomes, and that the training gets what bash would give it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from hpc_elastic.cli.init import main
from hpc_elastic.job.parse import parse_job
from hpc_elastic.moving_in.script import carried_lines, move_script
from hpc_elastic.moving_in.shell import statements

SCRIPTS = Path(__file__).parent / "scripts"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.sbatch"))
WRITES = bool(os.environ.get("HPC_ELASTIC_WRITE_GOLDEN"))
Capture = pytest.CaptureFixture[str]

# Nodes, workers a node, GPUs a node, and CPUs a worker of what each script starts; None: it asks for none.
WORLDS = {
    "accelerate-in-variables": (4, "auto", 4, 40),
    "accelerate-config-file": (1, 2, 2, None),
    "accelerate-multi-node": (4, 4, None, 8),
    "array-sweep": (1, 1, 1, None),
    "conda-run": (1, 2, 2, None),
    "container-apptainer": (2, 4, 4, None),
    "container-pyxis": (2, 8, 8, None),
    "deepspeed-hostfile": (2, 4, 4, None),
    "deepspeed-one-node": (1, 8, 8, None),
    "ft-launcher": ((14, 16), 8, 8, None),
    "launcher-in-variables": (2, 4, 4, 10),
    "late-directives": (1, 1, None, None),
    "mpirun": (2, 4, None, None),
    "numactl-and-export": (1, 2, None, None),
    "plain-python": (1, 1, 1, 8),
    "resume-if-there": (1, 8, 8, None),
    "srun-bash-torchrun-node-rank": (8, 8, 8, 7),
    "srun-python-env-init": (2, 8, 8, 6),
    "srun-python-lightning": (2, 4, 4, 8),
    "srun-shell-script": (2, 2, None, None),
    "torch-distributed-launch": (1, 4, 4, None),
    "torchrun-c10d": (4, 8, 8, 12),
    "torchrun-one-node": (1, "auto", 4, None),
    "uv-heredoc-setup": (2, 4, 4, None),
    "wrapper-of-each-rank": (2, 8, 8, 7),
}
# Programs of a cluster in small: each goes on with the first word that is a program, and the last writes its words.
ON = """#!/bin/bash
known='bash|python3?|torchrun|ft_launcher|deepspeed|accelerate|apptainer|uv|conda|numactl'
while (( $# )) && [[ ! ${1##*/} =~ ^($known)$ ]]; do shift; done
(( $# )) || exit 0
exec "$@"
"""
WRITES_WORDS = '#!/bin/bash\n[ "$1" = -c ] || printf "%s\\0" "$@" > "$WORDS"\n'
SAYS = "#!/bin/bash\necho node1\n"
NOTHING = "#!/bin/bash\n"
PROGRAMS = {
    **dict.fromkeys(("srun", "mpirun", "apptainer", "uv", "conda", "numactl"), ON),
    **dict.fromkeys(("python", "python3", "torchrun", "ft_launcher", "deepspeed", "accelerate"), WRITES_WORDS),
    **dict.fromkeys(("scontrol", "hostname"), SAYS),
    **dict.fromkeys(("module", "clear"), NOTHING),
}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_NNODES": "2",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_ARRAY_TASK_ID": "3",
    "USER": "me",
    "DSDIR": "/ds",
    "SEED": "",
    "SLURM_SUBMIT_DIR": ".",
    "RANK": "1",
    "GROUP_RANK": "1",
    "WANDB_API_KEY": "k",
    "SLURM_CPUS_PER_TASK": "4",
}


def test_twenty_shapes_are_moved_in() -> None:
    assert len(NAMES) >= 20
    assert sorted(WORLDS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_script_becomes_this_job_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(SCRIPTS)
    target = tmp_path / "job.yaml"
    assert main(["--from", f"{name}.sbatch", "--all", "-o", str(target)]) == 0
    remarks = capsys.readouterr().err.replace(str(target), "job.yaml")
    for path, found in ((SCRIPTS / f"{name}.yaml", target.read_text()), (SCRIPTS / f"{name}.remarks", remarks)):
        if WRITES:
            path.write_text(found)
        assert found == path.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_job_has_the_script_s_world(name: str) -> None:
    spec = parse_job((SCRIPTS / f"{name}.yaml").read_text(), file=name)
    nodes, workers, gpus, cpus = WORLDS[name]
    found = spec.nodes
    assert not isinstance(found, (int, type(None)))
    bounds = nodes if isinstance(nodes, tuple) else (nodes, nodes)
    assert (found.min, found.max) == bounds
    assert spec.workers_per_node == workers
    resources = spec.resources
    assert (resources.gpus_per_node if resources else None) == gpus
    assert (resources.cpus_per_worker if resources else None) == cpus


@pytest.mark.parametrize("options", ["", "-u "])
@pytest.mark.parametrize("module", ["run --nnodes 1", "launch"])
def test_a_launcher_of_torch_is_read_behind_an_option_of_python(
    module: str, options: str, tmp_path: Path, capsys: Capture
) -> None:
    script, job = tmp_path / "old.sbatch", tmp_path / "job.yaml"
    script.write_text(
        f"#!/bin/bash\npython {options}-m torch.distributed.{module} --nproc_per_node 4 train.py --lr 1\n"
    )
    assert main(["--from", str(script), "--all", "-o", str(job)]) == 0
    spec = parse_job(job.read_text(), file="job.yaml")
    assert (spec.entrypoint.script if spec.entrypoint else None, spec.workers_per_node) == ("train.py", 4)
    assert ("-u: workers write without a buffer" in capsys.readouterr().err) == bool(options)


@pytest.mark.parametrize("name", NAMES)
def test_no_line_is_lost(name: str) -> None:
    text = (SCRIPTS / f"{name}.sbatch").read_text()
    moved = move_script(text, file=name)
    assert [line for line, _ in carried_lines(text, moved) if line != moved.launch_line] == []


def run_bash(lines: list[str], folder: Path, words: Path) -> None:
    """Run lines of bash with the small programs above in place of a cluster's."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for program, text in PROGRAMS.items():
        (programs / program).write_text(text)
        (programs / program).chmod(0o755)
    work = folder / "work"
    (work / "ckpt").mkdir(parents=True, exist_ok=True)
    (work / "ckpt" / "last.pt").touch()
    for sourced in ("activate.sh", "venv/bin/activate"):
        (work / sourced).parent.mkdir(parents=True, exist_ok=True)
        (work / sourced).touch()
    environ = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(folder),
        "WORDS": str(words),
        "TMPDIR": str(folder),
        **SLURM,
    }
    for sourced in ("venv/bin/activate", "envs/lit/bin/activate"):
        (folder / sourced).parent.mkdir(parents=True, exist_ok=True)
        (folder / sourced).touch()
    subprocess.run(["bash"], input="\n".join(lines), text=True, cwd=work, env=environ, capture_output=True, timeout=60)


def expanded(argument: str, environ: dict[str, str]) -> str:
    return re.sub(r"\$\$|\$\{(\w+)\}", lambda match: environ[match[1]] if match[1] else "$", argument)


# bash makes two words of its $RESUME, which a remark says; a script of a shell or a wrapper could not write its words.
WORDS_DIFFER = {"resume-if-there"}
NO_PYTHON = {"srun-shell-script", "wrapper-of-each-rank"}


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(set(NAMES) - WORDS_DIFFER - NO_PYTHON))
def test_the_training_gets_the_arguments_that_bash_gives_it(name: str, tmp_path: Path) -> None:
    text = (SCRIPTS / f"{name}.sbatch").read_text()
    before, after = tmp_path / "before", tmp_path / "after"
    run_bash([text], tmp_path, before)
    words = before.read_text().split("\0")[:-1]
    spec = parse_job((SCRIPTS / f"{name}.yaml").read_text(), file=name)
    assert spec.entrypoint is not None
    target = spec.entrypoint.script or spec.entrypoint.module
    run_bash([*(spec.setup or ()), 'env -0 > "$WORDS"'], tmp_path, after)
    environ = dict(entry.split("=", 1) for entry in after.read_text().split("\0")[:-1])
    args = [expanded(argument, environ | {"LOCAL_RANK": "0"}) for argument in spec.entrypoint.args or ()]
    own = [argument for argument in args if not argument.startswith(("--local-rank=", "--local_rank="))]
    given = words[words.index(str(target)) + 1 :]
    shown = [re.sub(r"/tmp\.\w+", "/made", word) for word in (*given, "|", *own)]
    assert shown[: len(given)] == shown[len(given) + 1 :]


@pytest.mark.parametrize("name", NAMES)
def test_statements_are_those_of_bash(name: str) -> None:
    """Each statement by itself is a script that bash can read."""
    for statement in statements((SCRIPTS / f"{name}.sbatch").read_text()):
        checked = subprocess.run(["bash", "-n"], input=statement.text, text=True, capture_output=True)
        assert checked.returncode == 0, statement
