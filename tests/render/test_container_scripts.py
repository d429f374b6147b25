"""Scripts that start their agents in an image really run here, with a runtime that notes how it was called."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import TemplateError
from hpc_elastic.plan.container import ContainerPlan, MountPlan
from hpc_elastic.plan.launch_plan import ResourcesPlan
from hpc_elastic.render.script import load_template, render_script
from hpc_elastic.scheduler import environment
from hpc_elastic.shipped import shipped_directory
from tests.plans import make_plan
from tests.render.test_running_scripts import Scene, make_scene

# Starts what comes behind the image, as apptainer does with --cleanenv.
APPTAINER = """#!/bin/bash
printf '%s\\0' "$@" >"$STUBS/apptainer.argv"
stubs=$STUBS
while [[ $1 != *.sif ]]; do shift; done
shift
exec env -i STUBS="$stubs" "$@"
"""
# The program of `runtime: command`: the same, and notes what it is told.
ENTERS = """#!/bin/bash
printf '%s' "$HPC_ELASTIC_CONTAINER_MOUNTS" >"$STUBS/mounts"
printf '%s' "$HPC_ELASTIC_CONTAINER_IMAGE" >"$STUBS/image"
exec env -i STUBS="$STUBS" "$@"
"""
# An agent that asks Slurm twice from within the image, and tells what it has.
AGENT = f"""
import json, os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.scheduler.slurm.host_side import ask_host_side, enter
if sys.argv[1].endswith("conclude"):
    sys.exit(0)
told = {{"ignores_term": signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, "argv": sys.argv}}
enter(sys.argv[3], os.environ)
told["environ"] = dict(os.environ)
def ask(*command, within_s=20.0):
    try:
        done = ask_host_side(sys.argv[3], command, timeout_s=within_s, cwd="/")
    except HpcElasticError as error:
        return type(error).__name__
    return [done.returncode, done.stdout, done.stderr]
told["answers"] = [ask("squeue", "it's", "a b\\n"), ask("scontrol"), ask("rm", "-r", "/nowhere")]
told["answers"].append(ask("sinfo"))
told["left"] = sorted(os.listdir(sys.argv[3]))
told["answers"].append(ask("scancel", within_s=0.1))
told["host_side"] = sys.argv[3]
with open(os.environ["STUBS"] + "/told.json", "w") as file:
    json.dump(told, file)
sys.exit(10)
"""
SQUEUE = """#!/bin/bash
printf '%s|' "$@" "${SLURM_JOB_ID-}" "${SLURM_CONF-}" "${SBATCH_PARTITION-}" "${SBATCH_TIMELIMIT-}"
echo oops >&2
exit 3
"""
VARIABLES = {"SLURM_CONF": "/etc/slurm.conf", "SBATCH_PARTITION": "gpu", "SBATCH_TIMELIMIT": "1", "TOKEN": "a\nb=c"}


def make_contained(root: Path, container: ContainerPlan, **changes: Any) -> Scene:
    """A scene whose runtime, Slurm and agent are fakes."""
    scene = make_scene(root, container=container, host_python=sys.executable, **changes)
    (Path(scene.plan.package_dir) / "launch.py").write_text(AGENT)
    programs = {"apptainer": APPTAINER, "enter": ENTERS, "squeue": SQUEUE, "scancel": "#!/bin/sh\nexec sleep 5\n"}
    # As Slurm's TERM, which comes to every process of a step: timeout passes it on to the command that it runs.
    # It sleeps once it knows of its command; before, the TERM would end it, as any program that has just been started.
    is_waiting = "grep -q '^State:.S' /proc/$PPID/status"
    programs["sinfo"] = f"#!/bin/sh\nuntil {is_waiting}; do :; done\nkill -TERM $PPID\nsleep 0.2\necho answers\n"
    programs["scontrol"] = "#!/bin/sh\nexit 127\n"
    for name, text in programs.items():
        (scene.stubs / name).write_text(text)
        (scene.stubs / name).chmod(0o755)
    return scene


def told_by(scene: Scene) -> Any:
    return json.loads((scene.stubs / "told.json").read_text())


def argv(scene: Scene) -> list[str]:
    return (scene.stubs / "apptainer.argv").read_text().split("\0")[:-1]


MOUNTS = (
    MountPlan(source="${DATA}", target="/data", is_read_only=True),
    MountPlan(source="/", target="/a$$b"),
    MountPlan(source="/no such folder", target="/x", is_optional=True),
)
APPTAINER_PLAN = ContainerPlan(runtime="apptainer", image="${DATA}/it's $$.sif", mounts=MOUNTS, env=("TOKEN", "ABSENT"))


@pytest.mark.long
def test_apptainer_is_told_what_to_mount_and_starts_the_agent_in_the_image(tmp_path: Path) -> None:
    scene = make_contained(tmp_path, APPTAINER_PLAN)
    status, _, errors = scene.run(DATA="/some data", **VARIABLES)
    told = told_by(scene)
    assert (status, errors) == (10, "")
    assert argv(scene) == [
        *("exec", "--cleanenv", "--pwd", str(scene.run_dir), f"--bind={told['host_side']}:{told['host_side']}"),
        *("--bind=/some data:/data:ro", "--bind=/:/a$b", "/some data/it's $.sif"),
        *(sys.executable, f"{tmp_path}/package/launch.py", "hpc_elastic.agent.main", str(scene.run_dir)),
        told["host_side"],
    ]
    assert not Path(told["host_side"]).exists(), "the node is left as it was"


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "target", "folder"), [("/", "/tmp", "/dev/shm"), ("/", "/tmp/", "/dev/shm"), ("/tmp", "/tmp", "/tmp")]
)
def test_no_mount_at_tmp_hides_the_folder_by_which_slurm_is_asked(
    source: str, target: str, folder: str, tmp_path: Path
) -> None:
    mounts = (MountPlan(source=source, target=target, is_read_only=True),)
    scene = make_contained(tmp_path, dataclasses.replace(APPTAINER_PLAN, mounts=mounts))
    assert scene.run(DATA="/", **VARIABLES)[0] == 10
    assert str(Path(told_by(scene)["host_side"]).parent) == folder


@pytest.mark.long
def test_the_environment_crosses_over_by_an_explicit_list(tmp_path: Path) -> None:
    scene = make_contained(tmp_path, APPTAINER_PLAN)
    variables = {**VARIABLES, "CUDA_VISIBLE_DEVICES": "0,1", "PYTHONPATH": "/outside", "LD_PRELOAD_OF_MINE": "x"}
    scene.run(DATA="/", **variables)
    told = told_by(scene)
    crossed = {name for name in told["environ"] if not name.startswith(("HPC_ELASTIC_HOST_", "LC_", "SLURM_JOB_"))}
    for_srun = {"HPC_ELASTIC_TIME_LEFT", "SLURM_OOM_KILL_STEP"}
    assert crossed == {"STUBS", "TOKEN", "SLURM_CONF", "CUDA_VISIBLE_DEVICES", *for_srun}
    assert told["environ"]["TOKEN"] == "a\nb=c"
    assert told["ignores_term"], "the runtime, with which the step would end, must outlive the agent"


@pytest.mark.long
def test_slurm_is_asked_outside_of_the_image(tmp_path: Path) -> None:
    scene = make_contained(tmp_path, APPTAINER_PLAN)
    scene.run(DATA="/", **VARIABLES)
    told = told_by(scene)
    # The command has no other job's variables, as a command that the agent itself starts would not.
    assert told["answers"][0] == [3, "it's|a b\n||/etc/slurm.conf|gpu||", "oops\n"]
    assert told["answers"][1:] == ["MissingProgramError", [1, "", ""], [0, "answers\n", ""], "SilenceError"]
    assert told["left"] == ["environ", "requests", "terms"]


@pytest.mark.long
def test_a_term_that_ends_a_question_before_its_command_runs_has_it_asked_again(tmp_path: Path) -> None:
    scene = make_contained(tmp_path, APPTAINER_PLAN)
    struck = scene.stubs / "struck"
    is_first = '[[ $2 = trap* && ! -e "$STUBS/struck" ]]'
    (scene.stubs / "bash").write_text(
        f'#!/bin/bash\nif {is_first}; then : >"$STUBS/struck"; kill -TERM $$; fi\nexec /bin/bash "$@"\n'
    )
    (scene.stubs / "bash").chmod(0o755)
    scene.run(DATA="/", **VARIABLES)
    told = told_by(scene)
    assert struck.exists()
    assert told["answers"][0] == [3, "it's|a b\n||/etc/slurm.conf|gpu||", "oops\n"]
    assert told["left"] == ["environ", "requests", "terms"]


@pytest.mark.long
def test_a_command_gets_the_agents_command_line_and_is_told_image_and_mounts(tmp_path: Path) -> None:
    plan = ContainerPlan(runtime="command", image="my image", command=str(tmp_path / "stubs" / "enter"), mounts=MOUNTS)
    scene = make_contained(tmp_path, plan)
    assert scene.run(DATA="/d")[0] == 10
    told = told_by(scene)
    side = told["host_side"]
    assert (scene.stubs / "mounts").read_text() == f"{side}:{side}\n/d:/data:ro\n/:/a$b"
    assert (scene.stubs / "image").read_text() == "my image"
    assert told["argv"][1:] == ["hpc_elastic.agent.main", str(scene.run_dir), side]


@pytest.mark.long
@pytest.mark.parametrize(
    ("plan", "variables", "said"),
    [
        (APPTAINER_PLAN, {}, "container names a variable that is not set here: DATA"),
        (ContainerPlan(runtime="command", image=None, command="/none"), {}, "there is no program /none"),
    ],
)
def test_a_node_that_cannot_start_the_image_says_why(
    plan: ContainerPlan, variables: dict[str, str], said: str, tmp_path: Path
) -> None:
    scene = make_contained(tmp_path, plan)
    mktemp, made = scene.stubs / "mktemp", scene.stubs / "made"  # tests beside this one make such folders too
    mktemp.write_text(f'#!/bin/sh\n{shutil.which("mktemp")} "$@" | tee -a {made}\n')
    mktemp.chmod(0o755)
    status, _, errors = scene.run(SLURMD_NODENAME="node7", **variables)
    assert (status, errors) == (3, f"hpc-elastic agent (job 7, start 0): error: node7: {said}\n")
    left = [folder for folder in (made.read_text().splitlines() if made.exists() else []) if Path(folder).exists()]
    assert not left, "nothing is left that would wait for an agent"


@pytest.mark.long
def test_srun_is_told_by_options_of_pyxis_and_exports_no_more_than_the_list(tmp_path: Path) -> None:
    plan = ContainerPlan(runtime="pyxis", image="nvcr.io#nvidia/pytorch:24.10-py3", mounts=MOUNTS, env=("TOKEN",))
    scene = make_contained(tmp_path, plan, python="python3")
    scene.run(DATA="/d", STUB_STATUS="0")
    argv = scene.srun_argv()
    assert argv[argv.index("--output=agents/%N.out") + 1 :] == [
        *("--container-image=nvcr.io#nvidia/pytorch:24.10-py3", "--container-mounts=/d:/data:ro,/:/a$b"),
        *(f"--container-workdir={scene.run_dir}", "--container-env=TOKEN"),
        *("python3", f"{tmp_path}/package/launch.py", "hpc_elastic.agent.main", str(scene.run_dir)),
    ]
    (export,) = [word for word in argv if word.startswith("--export=")]
    exported = set(export[len("--export=") :].split(","))
    assert exported > {"HPC_ELASTIC_TIME_LEFT", "CUDA_VISIBLE_DEVICES", "TOKEN"}
    assert not exported & {"ALL", "PATH"}


@pytest.mark.long
def test_the_scripts_own_programs_run_by_a_python_of_the_node(tmp_path: Path) -> None:
    """That of the image is not there; that of the submission may not be either."""
    scene = make_contained(tmp_path, APPTAINER_PLAN, python="/image/python3")
    scene = dataclasses.replace(scene, plan=dataclasses.replace(scene.plan, host_python="/gone/python3"))
    status, _, errors = scene.run(DATA="/", STUB_STATUS="0")
    assert (status, errors) == (0, "")
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    scene = dataclasses.replace(scene, plan=dataclasses.replace(scene.plan, host_python=str(old)))
    assert scene.run(DATA="/", STUB_STATUS="0")[0] == 0


@pytest.mark.parametrize(("gpus", "asks"), [(4, True), (None, False)])
def test_apptainer_is_asked_for_gpus_only_if_the_job_has_some(gpus: int | None, asks: bool) -> None:
    plan = make_plan(container=APPTAINER_PLAN, resources=ResourcesPlan(gpus_per_node=gpus))
    script = render_script(plan, load_template(plan.template, job_dir="/"))
    assert ("--nv" in script, "--rocm" in script) == (asks, asks)


def test_a_template_that_would_start_agents_outside_of_the_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.j2").write_text(
        '{% extends "slurm/job.sh.j2" %}{% block launch %}\n"$hpc_elastic_python" {{ agent }} &\n{% endblock %}'
    )
    plan = make_plan(container=APPTAINER_PLAN, template="own.j2")
    with pytest.raises(TemplateError, match=r"own\.j2:1: the block launch starts the agents outside of the image"):
        render_script(plan, load_template("own.j2", job_dir=str(tmp_path)))


def test_the_shell_outside_keeps_the_same_variables_as_a_command_of_an_agent_would() -> None:
    text = (Path(shipped_directory("templates")) / "slurm" / "container.sh.j2").read_text()
    missing = [name for name in environment.ALLOWED if name not in text]
    assert missing == []
