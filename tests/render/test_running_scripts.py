"""The scripts really run here, with a fake srun on PATH and a fake agent in the package's folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.api.requests import ask_to_stop
from hpc_elastic.codec import from_json
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.roles import NodesPlan
from hpc_elastic.render.array import render_array_script
from hpc_elastic.render.script import load_template, render_script
from hpc_elastic.render.template import load_array_template
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Request
from tests.plans import make_local_plan, make_plan
from tests.slurm_sandbox.sandbox import wait_until
from tests.tiers import each_third

# It notes how it was called, says that it runs, waits to be let go if there is a gate, and starts the agent or ends.
SRUN = """#!/bin/bash
printf '%s\\0' "$@" >"$STUBS/srun.argv"
env -0 >"$STUBS/srun.env"
trap 'echo got TERM >>"$STUBS/srun.signals"' TERM
touch "$STUBS/srun.runs"
[ ! -p "$STUBS/gate" ] || read -r _ <"$STUBS/gate"
while [[ $1 == --* ]]; do shift; done
[ -n "${STUB_STATUS-}" ] || exec "$@"
exit "$STUB_STATUS"
"""
STARTS = "hpc_elastic: starting an agent on each of 2 nodes (start 0)\n"
TEMPLATE = Path(__file__).parents[2] / "templates" / "local" / "job.sh.j2"
# In the place of the package's launch.py.
AGENT = """
import json, os, signal, sys
stubs = os.environ["STUBS"]
if sys.argv[1] == "hpc_elastic.agent.conclude":
    with open(f"{stubs}/concluded", "w") as file:
        file.write(sys.argv[3])
    sys.exit(int(os.environ.get("STUB_CONCLUDES", "0")))
if sys.argv[1] == "hpc_elastic.agent.survivors":
    found = open(f"{stubs}/survivors").read() if os.path.exists(f"{stubs}/survivors") else ""
    with open(f"{stubs}/looked", "a+") as file:
        print(found, file=file)  # a line of this for each look
        file.seek(0)
        looks = len(file.readlines())
    if found:
        print(found.replace("LOOKS", str(looks)))
    sys.exit(0)
node = os.environ.get("HPC_ELASTIC_LOCAL_NODE_ID", "0")
def terminated(number, frame):
    with open(f"{stubs}/terminated{node}", "a") as file:
        file.write("TERM\\n")
signal.signal(signal.SIGTERM, terminated)
with open(f"{stubs}/agent{node}.json", "w") as file:
    json.dump({"argv": sys.argv, "environ": dict(os.environ), "cwd": os.getcwd(), "pid": os.getpid()}, file)
print("agent", node, "prints")
open(f"{stubs}/agent{node}.runs", "w").close()
if os.path.exists(f"{stubs}/gate{node}"):
    open(f"{stubs}/gate{node}").read()
sys.exit(int(os.environ.get(f"STUB_STATUS_{node}", "0")))
"""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A run directory with a script, and the fakes around it."""

    root: Path
    plan: LaunchPlan

    @property
    def run_dir(self) -> Path:
        return Path(self.plan.run_dir)

    @property
    def stubs(self) -> Path:
        return self.root / "stubs"

    def start(self, prefix: tuple[str, ...] = (), /, **variables: str) -> subprocess.Popen[str]:
        """Runs the script; `prefix` runs it by something else."""
        script = render_script(self.plan, load_template(self.plan.template, job_dir="/"))
        (self.run_dir / "job.sh").write_text(script, encoding="utf-8")
        environment = {
            "PATH": f"{self.stubs}:{os.environ['PATH']}",
            "HOME": str(self.root),
            "LANG": "C.UTF-8",
            "STUBS": str(self.stubs),
            **({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"} if self.plan.scheduler == "slurm" else {}),
            **variables,
        }
        return subprocess.Popen(
            [*prefix, "bash", str(self.run_dir / "job.sh")],
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, **variables: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        process = self.start(**variables)
        output, errors = process.communicate(timeout=60)
        return process.returncode, output, errors

    def srun_argv(self) -> list[str]:
        return (self.stubs / "srun.argv").read_text().split("\0")[:-1]

    def srun_environment(self) -> Mapping[str, str]:
        return dict(entry.split("=", 1) for entry in (self.stubs / "srun.env").read_text().split("\0")[:-1])

    def agent(self, node: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.stubs / f"agent{node}.json").read_text())
        return found

    def wait_for(self, name: str) -> None:
        wait_until((self.stubs / name).exists, f"{name} is there")

    def has_canary(self) -> bool:
        return any(self.root.rglob("canary"))


@pytest.fixture(autouse=True)
def no_surprises(monkeypatch: pytest.MonkeyPatch) -> None:
    """BASH_ENV would run before every script."""
    monkeypatch.delenv("BASH_ENV", raising=False)


def make_scene(root: Path, *, run_dir: str = "run", local: bool = False, **changes: Any) -> Scene:
    values = {
        "run_dir": str(root / run_dir),
        "workdir": str(root / "work"),
        "package_dir": str(root / "package"),
        "python": sys.executable,
        **changes,
    }
    plan = (make_local_plan if local else make_plan)(**values)
    scene = Scene(root=root, plan=plan)
    for folder in (scene.run_dir / "agents", Path(plan.workdir), Path(plan.package_dir), scene.stubs):
        folder.mkdir(parents=True)
    (scene.stubs / "srun").write_text(SRUN)
    (scene.stubs / "srun").chmod(0o755)
    (Path(plan.package_dir) / "launch.py").write_text(AGENT)
    return scene


@pytest.mark.long
def test_the_script_exits_as_srun_does_if_nobody_wrote_an_exit_code(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    status, output, errors = scene.run(STUB_STATUS="42")
    assert (status, errors) == (42, "")
    assert (scene.stubs / "concluded").read_text() == "42"
    assert output == f"hpc_elastic: run directory {tmp_path}/run\n{STARTS}"


@pytest.mark.long
@pytest.mark.parametrize(("concluded", "status"), [("75", 75), ("5", 10)])
def test_the_script_exits_75_if_the_job_starts_again_whatever_the_agents_left_with(
    concluded: str, status: int, tmp_path: Path
) -> None:
    assert make_scene(tmp_path).run(STUB_STATUS="10", STUB_CONCLUDES=concluded)[0] == status


@pytest.mark.long
@pytest.mark.parametrize(("written", "srun"), [("0", "137"), ("1", "0"), ("10", "143")])
def test_the_script_exits_as_the_agents_wrote_it(written: str, srun: str, tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    (scene.run_dir / "exit_code").write_text(f"{written}\n")
    assert scene.run(STUB_STATUS=srun)[0] == int(written)
    assert not (scene.stubs / "concluded").exists()


@pytest.mark.long
def test_the_script_says_to_srun_what_a_step_that_lives_on_needs(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, run_dir="50%")
    scene.run(STUB_STATUS="0")
    assert scene.srun_argv() == [
        *("--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"),
        *("--cpu-bind=none", "--mem=0", "--mpi=none", "--export=ALL", "--input=none"),
        *(f"--chdir={tmp_path}/50%", "--open-mode=append", "--output=agents/%N.out"),
        *(sys.executable, f"{tmp_path}/package/launch.py", "hpc_elastic.agent.main", f"{tmp_path}/50%"),
    ]


@pytest.mark.long
@pytest.mark.parametrize(("allocated", "used"), [("1", "1"), ("3", "3"), ("9", "4")])
def test_the_step_takes_the_nodes_of_the_allocation_up_to_the_plans(allocated: str, used: str, tmp_path: Path) -> None:
    scene = make_scene(tmp_path, nodes=NodesPlan(min=1, max=3, spares=1))
    scene.run(STUB_STATUS="0", SLURM_JOB_NUM_NODES=allocated)
    assert scene.srun_argv()[:2] == [f"--nodes={used}", f"--ntasks={used}"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("variables", "shares"),
    [({}, False), ({"SLURM_STEP_ID": "0"}, True), ({"SLURM_STEP_ID": "4294967290"}, False)],
)
def test_the_step_shares_its_nodes_with_the_step_that_the_script_runs_in(
    variables: dict[str, str], shares: bool, tmp_path: Path
) -> None:
    """The shell of `srun --pty bash` holds all of its job, and another step would wait for its end without a word.

    The shell that `salloc` starts on a node is a step, too, by that great number, and holds nothing.
    """
    scene = make_scene(tmp_path)
    scene.run(**variables)
    assert ("--overlap" in scene.srun_argv()) is shares


@pytest.mark.long
def test_a_batch_script_with_the_variables_of_another_step_shares_nothing(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    scene.start(("bash", "-c", 'SLURM_TASK_PID=$$ exec "$@"', "-"), SLURM_STEP_ID="0").communicate(timeout=60)
    assert "--overlap" not in scene.srun_argv()


@pytest.mark.long
def test_srun_sees_no_variable_that_would_be_an_option(tmp_path: Path) -> None:
    options = (
        "SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK SLURM_NTASKS_PER_NODE SLURM_EXACT SLURM_MEM_PER_CPU SLURM_MEM_PER_NODE "
        "SLURM_DISTRIBUTION SLURM_NTASKS SLURM_GPUS_PER_NODE SLURM_WAIT SLURM_KILL_BAD_EXIT SLURM_HINT SLURM_MPI_TYPE "
        "SLURM_GPU_BIND SLURM_TRES_BIND SLURM_TRES_PER_TASK"
    )
    inherited = dict.fromkeys(options.split(), "1")
    kept = {"SLURM_JOB_NAME": "x", "SLURM_CONF": "/x", "SLURM_RESTART_COUNT": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    scene = make_scene(tmp_path)
    scene.run(STUB_STATUS="0", **inherited, **kept)
    seen = scene.srun_environment()
    assert not set(inherited) & set(seen)
    assert kept.items() <= seen.items()


@pytest.mark.long
def test_srun_does_not_see_the_token_with_which_the_job_was_submitted(tmp_path: Path) -> None:
    """Sbatch before 26.05 hands it on to the job, where no step can be started with it; srun of 26.05 refuses it."""
    scene = make_scene(tmp_path)
    scene.run(STUB_STATUS="0", SLURM_JWT="secret")
    assert "SLURM_JWT" not in scene.srun_environment()


@pytest.mark.long
def test_the_script_adds_nothing_of_its_own_to_the_environment(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, env={"SECRET_OF_THE_PLAN": "1"})
    scene.run(STUB_STATUS="0")
    added = set(scene.srun_environment()) - {"SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "STUB_STATUS", "STUBS"}
    for_srun = {"HPC_ELASTIC_TIME_LEFT", "SLURM_OOM_KILL_STEP"}
    assert added <= {"PATH", "HOME", "LANG", "PWD", "OLDPWD", "SHLVL", "_", *for_srun}


@pytest.mark.long
def test_a_site_does_not_have_all_ranks_killed_where_one_is_out_of_memory(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    scene.run(STUB_STATUS="0", SLURM_OOM_KILL_STEP="1")  # as sbatch sets it by the site's own
    assert scene.srun_environment()["SLURM_OOM_KILL_STEP"] == "0"


HOSTILE_NAMES = (
    "a b'c\"d",
    "$(touch canary)`touch canary`",
    "-rf; touch canary #",
    "50% %j %N",
    "${HOME}*?[a]{b,c}~!",
    "grün 学",
)


@pytest.mark.long
@pytest.mark.parametrize("local", [False, True], ids=["slurm", "local"])
@pytest.mark.parametrize("name", each_third(HOSTILE_NAMES, of="test_hostile_values_reach_the_agent_unchanged"))
def test_hostile_values_reach_the_agent_unchanged(name: str, local: bool, tmp_path: Path) -> None:
    python = tmp_path / f"env {name}" / "python3"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    scene = make_scene(
        tmp_path,
        local=local,
        name=name,
        run=name,
        site=name,
        run_dir=f"runs/{name}",
        workdir=str(tmp_path / f"work {name}").replace("$", "S"),
        package_dir=str(tmp_path / f"package {name}"),
        python=str(python),
        sbatch={"account": name, "comment": name},
        log_level=name,
        env={"A": name},
    )
    status, output, errors = scene.run()
    assert (status, errors) == (0, "")
    assert output.splitlines()[0] == f"hpc_elastic: run directory {scene.run_dir}"
    agent = scene.agent()
    assert agent["argv"] == [f"{scene.plan.package_dir}/launch.py", "hpc_elastic.agent.main", str(scene.run_dir)]
    assert agent["cwd"] == scene.plan.workdir
    assert not scene.has_canary()


def test_the_script_refuses_to_start_if_the_run_is_over(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    (scene.run_dir / "result.json").write_text("{}")
    status, _, errors = scene.run(STUB_STATUS="0")
    assert status == 5
    assert "this run is over" in errors
    assert not (scene.stubs / "srun.runs").exists()


@pytest.mark.parametrize(("told", "status"), [("0\n", 0), ("10\n", 10), (None, 5), ("", 5)])
def test_a_job_that_slurm_starts_again_after_the_end_of_its_run_ends_as_the_run_did(
    told: str | None, status: int, tmp_path: Path
) -> None:
    """Slurm never hears of the end of a job whose batch host is lost while it ends, and requeues it."""
    scene = make_scene(tmp_path)
    (scene.run_dir / "result.json").write_text("{}")
    if told is not None:
        (scene.run_dir / "exit_code").write_text(told)
    found, _, errors = scene.run(STUB_STATUS="0", SLURM_RESTART_COUNT="1")
    assert found == status
    assert ("ends as the run did" in errors) == (status != 5)
    assert not (scene.stubs / "srun.runs").exists()


def test_the_slurm_script_refuses_to_start_outside_an_allocation(tmp_path: Path) -> None:
    status, _, errors = make_scene(tmp_path).run(STUB_STATUS="0", SLURM_JOB_ID="")
    assert status == 2
    assert "no Slurm allocation" in errors


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("true", "exit_with() { return 7; }", "exit_with"), "setup line failed (status 7): exit_with"),
        (("true", "exit 0"), "setup line ended the script (status 0): exit 0"),
        (("exit 9",), "setup line ended the script (status 9): exit 9"),
        (("set -e", "false # it's"), "setup line ended the script (status 1): false # it's"),
        (("set -u; echo $nothing_of_this_name",), "setup line ended the script (status 1): set -u; echo"),
        (("no-such-program --x",), "setup line failed (status 127): no-such-program --x"),
        (("if true; then\n    false\nfi",), "setup line failed (status 1): if true; then ..."),
        (("echo 'unbalanced",), "setup line ended the script (status 2): echo 'unbalanced"),
        (("if then",), "setup line ended the script (status 2): if then"),
        (("source nowhere/activate",), "setup line failed (status 1): source nowhere/activate"),
    ],
)
def test_a_failing_setup_line_ends_the_job_with_its_name(lines: tuple[str, ...], message: str, tmp_path: Path) -> None:
    scene = make_scene(tmp_path, setup=lines)
    status, _, errors = scene.run(STUB_STATUS="0")
    assert status == 3
    assert f"hpc_elastic: {message}" in errors.splitlines()[-1]
    assert not (scene.stubs / "srun.runs").exists()


@pytest.mark.parametrize("line", ["export PATH=/no/such/bin", "unset PATH"])
def test_a_setup_that_takes_the_path_away_is_the_cause(line: str, tmp_path: Path) -> None:
    status, _, errors = make_scene(tmp_path, setup=(line,)).run(STUB_STATUS="0")
    assert status == 3
    path = "/no/such/bin" if "=" in line else ""
    assert errors.endswith(f" a PATH without the system's programs, such as sleep: {path}\n")
    assert errors.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize("local", [False, True], ids=["slurm", "local"])
def test_setup_lines_act_in_the_shell_of_the_launch(local: bool, tmp_path: Path) -> None:
    lines = (
        "set -eu",
        "load() { export LOADED=$1; }",
        'load "it\'s $HOME"',
        "if true; then\n\texport BRANCH=1\nfi",
        "read -r -d '' TEXT <<EOF || true\ntwo\nlines\nEOF",
        "export TEXT",
        "cat >written <<'EOF'\n$HOME\nEOF\n",
        "nodes=99 python=none status=1 run_dir=/nowhere",
        "export PIPED=$(echo a | cat) # a comment",
    )
    scene = make_scene(tmp_path, local=local, setup=lines)
    status, _, errors = scene.run()
    assert (status, errors) == (0, "")
    environment = scene.agent()["environ"]
    assert environment["LOADED"] == f"it's {tmp_path}"
    assert (environment["BRANCH"], environment["PIPED"]) == ("1", "a")
    assert environment["TEXT"].strip() == "two\nlines"
    assert (tmp_path / "work" / "written").read_text() == "$HOME\n"


@pytest.mark.long
def test_a_users_trap_at_the_exit_stays(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, setup=("trap 'echo cleaned up' EXIT",))
    assert scene.run(STUB_STATUS="42")[:2] == (
        42,
        f"hpc_elastic: run directory {scene.run_dir}\n{STARTS}cleaned up\n",
    )


@pytest.mark.long
def test_python_is_found_after_setup(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "our-python").symlink_to(sys.executable)
    scene = make_scene(tmp_path, python="our-python", setup=(f"export PATH={tmp_path}/bin:$PATH",))
    assert scene.run()[0] == 0


@pytest.mark.parametrize(
    "program", [None, "#!/bin/sh\nexit 1\n", "#!/bin/sh\nexit 127\n"], ids=["missing", "old", "broken"]
)
def test_the_script_says_so_if_python_is_of_no_use(program: str | None, tmp_path: Path) -> None:
    scene = make_scene(tmp_path, python="their python")
    if program:
        (scene.stubs / "their python").write_text(program)
        (scene.stubs / "their python").chmod(0o755)
    status, _, errors = scene.run(STUB_STATUS="0")
    assert status == 3
    assert "python is missing on" in errors
    assert errors.endswith("or older than 3.10: their python\n")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("python: error while loading shared libraries: libpython3.11.so.1.0", None),
        ("Python path configuration:\n  isolated = 0\nFatal Python error: no codec\nCurrent thread:", "no codec"),
    ],
    ids=["a library is missing", "the python home is wrong"],
)
def test_the_script_says_why_python_cannot_be_started(said: str, cause: str | None, tmp_path: Path) -> None:
    scene = make_scene(tmp_path, python="their python")
    (scene.stubs / "their python").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 127\n")
    (scene.stubs / "their python").chmod(0o755)
    status, _, errors = scene.run(STUB_STATUS="0")
    assert status == 3
    *told, last = errors.splitlines()
    assert told == said.splitlines()
    assert last.startswith("hpc_elastic: the job's python cannot be started on ")
    assert last.endswith(f": their python: {cause or said}")


@pytest.mark.long
def test_setup_runs_where_it_was_submitted_if_the_workdir_is_known_on_the_node_only(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, workdir=f"{tmp_path}/${{SCRATCH}}")
    assert scene.run()[0] == 0
    assert scene.agent()["cwd"] == str(tmp_path)


def test_the_script_ends_with_3_if_the_workdir_is_missing(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    (tmp_path / "work").rmdir()
    status, _, errors = scene.run(STUB_STATUS="0")
    assert status == 3
    assert f"{tmp_path}/work: No such file or directory" in errors


def is_waiting_again(pid: int) -> bool:
    """Whether a process sleeps and has no signal pending; see proc_pid_status(5)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return fields["State"].startswith("S") and not int(fields["ShdPnd"], 16) and not int(fields["SigPnd"], 16)


@pytest.mark.long
def test_slurms_term_is_not_passed_on_and_does_not_end_the_wait(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    os.mkfifo(scene.stubs / "gate")
    process = scene.start(("bash", "-c", 'SLURM_TASK_PID=$$ exec "$@"', "-"), STUB_STATUS="42")
    scene.wait_for("srun.runs")
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        # Bash 5.2 itself may lose the status of a process that ends in the very moment of a trapped signal.
        wait_until(lambda: is_waiting_again(process.pid), "bash has taken the signal and waits on")
    (scene.stubs / "gate").write_text("go\n")
    process.communicate(timeout=60)
    assert process.returncode == 42
    assert not (scene.stubs / "srun.signals").exists()
    assert not (scene.run_dir / "requests.jsonl").exists()


START = '{"format_version": 1, "kind": "start", "by": "node0", "time": "", "allocation": 2}\n'


@pytest.mark.long
@pytest.mark.parametrize(("number", "lines"), [(signal.SIGTERM, ""), (signal.SIGINT, ""), (signal.SIGINT, START)])
def test_a_signal_to_a_script_in_the_foreground_asks_the_agents(
    number: signal.Signals, lines: str, tmp_path: Path
) -> None:
    """Lines of other starts of the job are no question to these agents."""
    scene = make_scene(tmp_path)
    os.mkfifo(scene.stubs / "gate")
    requests = scene.run_dir / "requests.jsonl"
    requests.write_text(lines)
    process = scene.start(STUB_STATUS="42", SLURM_TASK_PID="1")
    scene.wait_for("srun.runs")
    process.send_signal(number)
    wait_until(lambda: requests.read_text() != lines, "there is a request")
    (scene.stubs / "gate").write_text("go\n")
    process.communicate(timeout=60)
    assert process.returncode == 42
    request = from_json(Request, json.loads(requests.read_text().removeprefix(lines)))
    assert (request.kind, request.reason) == ("stop", "the script was stopped")
    assert not (scene.stubs / "srun.signals").exists()


@pytest.mark.long
def test_srun_gets_a_term_if_the_agents_were_asked_before(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    os.mkfifo(scene.stubs / "gate")
    requests = scene.run_dir / "requests.jsonl"
    ask_to_stop(RunLayout(scene.run_dir), "enough")
    process = scene.start(STUB_STATUS="42")
    scene.wait_for("srun.runs")
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: requests.read_text().count("\n") == 2, "there is a second request")
    (scene.stubs / "gate").write_text("go\n")
    process.communicate(timeout=60)
    assert process.returncode == 42
    assert (scene.stubs / "srun.signals").read_text() == "got TERM\n"


def make_scene_where_srun_stays(root: Path, **changes: Any) -> Scene:
    """As srun does when a node was lost: it ends when the gate opens. The script's seconds are short."""
    scene = make_scene(root, **changes)
    os.mkfifo(scene.stubs / "gate")
    (scene.stubs / "sleep").write_text("#!/bin/sh\nexec /bin/sleep 0.02\n")
    (scene.stubs / "sleep").chmod(0o755)
    return scene


@pytest.mark.long
def test_the_batch_script_does_not_wait_for_an_srun_that_stays_after_the_run(tmp_path: Path) -> None:
    scene = make_scene_where_srun_stays(tmp_path)
    process = scene.start(("bash", "-c", 'SLURM_TASK_PID=$$ exec "$@"', "-"), STUB_STATUS="137")
    scene.wait_for("srun.runs")
    (scene.run_dir / "exit_code").write_text("0\n")
    assert process.wait(timeout=60) == 0
    assert not (scene.stubs / "srun.signals").exists()
    (scene.stubs / "gate").write_text("go\n")
    output, errors = process.communicate(timeout=60)
    assert "the run is over; not waiting for srun" in output
    assert errors == ""


@pytest.mark.long
@pytest.mark.parametrize("setup", [(), ("trap 'exit 9' ERR",)])
def test_a_script_in_the_foreground_ends_an_srun_that_stays_after_the_run(
    setup: tuple[str, ...], tmp_path: Path
) -> None:
    scene = make_scene_where_srun_stays(tmp_path, setup=setup)
    process = scene.start(STUB_STATUS="137")
    scene.wait_for("srun.runs")
    (scene.run_dir / "exit_code").write_text("0\n")
    scene.wait_for("srun.signals")
    assert process.poll() is None
    (scene.stubs / "gate").write_text("go\n")
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert "the run is over; not" not in output


@pytest.mark.long
def test_the_script_waits_for_srun_as_long_as_the_run_is_not_over(tmp_path: Path) -> None:
    scene = make_scene_where_srun_stays(tmp_path)
    process = scene.start(STUB_STATUS="42")
    scene.wait_for("srun.runs")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)  # fifty of its seconds
    (scene.stubs / "gate").write_text("go\n")
    process.communicate(timeout=60)
    assert process.returncode == 42
    assert not (scene.stubs / "srun.signals").exists()


def srun_of(scene: Scene, process: subprocess.Popen[str]) -> int:
    """The process of the stub."""
    found: list[int] = []

    def look() -> bool:
        """Other children of the script come and go, and the kernel's list of them may leave some out meanwhile."""
        for child in children_of(process.pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if b"stubs/srun" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(child)
        return bool(found)

    wait_until(look, "srun is among the script's children")
    return found[-1]


def state_of_srun(scene: Scene, process: subprocess.Popen[str]) -> str:
    """The state of the stub, as /proc has it: T if it is stopped."""
    return Path(f"/proc/{srun_of(scene, process)}/stat").read_text().rpartition(") ")[2][0]


@pytest.mark.long
def test_srun_is_stopped_once_an_attempt_has_begun_while_the_agent_beside_it_lives(tmp_path: Path) -> None:
    scene = make_scene_where_srun_stays(tmp_path)
    (scene.run_dir / "attempts" / "0001").mkdir(parents=True)  # of an earlier allocation
    agent = subprocess.Popen(["sleep", "600"])
    start = Path(f"/proc/{agent.pid}/stat").read_text().rpartition(") ")[2].split()[19]
    (scene.run_dir / "agents" / "launch_agent").write_text(f"{agent.pid} {start}\n")
    process = scene.start(STUB_STATUS="42")
    scene.wait_for("srun.runs")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)  # fifty of its seconds
    assert state_of_srun(scene, process) != "T"
    (scene.run_dir / "attempts" / "0002").mkdir()
    wait_until(lambda: state_of_srun(scene, process) == "T", "srun is stopped")
    agent.kill()
    agent.wait()
    wait_until(lambda: state_of_srun(scene, process) != "T", "srun goes on")
    (scene.run_dir / "agents" / "launch_agent").write_text(f"{os.getpid()} {start}\n")  # a number that is used again
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    assert state_of_srun(scene, process) != "T"
    (scene.stubs / "gate").write_text("go\n")
    process.communicate(timeout=60)
    assert process.returncode == 42


@pytest.mark.long
@pytest.mark.parametrize("line", ["set -m", r"IFS=$'\n'"])
def test_what_setup_does_to_the_shell_ends_no_job_whose_srun_is_stopped(line: str, tmp_path: Path) -> None:
    """With job control bash's `wait` ends for a process that is stopped; with an own IFS `read` splits no words."""
    scene = make_scene_where_srun_stays(tmp_path, setup=(line,))
    me = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(") ")[2].split()[19]
    (scene.run_dir / "agents" / "launch_agent").write_text(f"{os.getpid()} {me}\n")
    process = scene.start(STUB_STATUS="42")
    scene.wait_for("srun.runs")
    (scene.run_dir / "attempts" / "0001").mkdir(parents=True)
    wait_until(lambda: state_of_srun(scene, process) == "T", "srun is stopped")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)  # fifty of its seconds
    (scene.run_dir / "exit_code").write_text("0\n")
    wait_until(lambda: state_of_srun(scene, process) != "T", "srun goes on")
    (scene.stubs / "gate").write_text("go\n")
    process.communicate(timeout=60)
    assert process.returncode == 0


OWN_LINES = """{{% extends "{parent}" %}}
{{% block {block} %}}
{{{{ super() }}}}
set -efu -o posix
shopt -s failglob nullglob
IFS=:
trap 'exit 9' ERR
trap 'set -e' DEBUG
{{% endblock %}}
"""


@pytest.mark.long
@pytest.mark.parametrize("block", ["before", "launch"])
@pytest.mark.parametrize("local", [False, True], ids=["slurm", "local"])
def test_what_a_sites_own_block_does_to_the_shell_changes_nothing_behind_it(
    block: str, local: bool, tmp_path: Path
) -> None:
    """With -e the script would leave at the status of srun, and nobody would write the result."""
    template = tmp_path / "own.sh.j2"
    template.write_text(OWN_LINES.format(parent="local/job.sh.j2" if local else "slurm/job.sh.j2", block=block))
    scene = make_scene(tmp_path, local=local, template=str(template), nodes=NodesPlan(min=1, max=1))
    status, _, errors = scene.run(STUB_STATUS="42", STUB_STATUS_0="42")
    assert (status, errors) == (42, "")
    assert (scene.stubs / "concluded").read_text() == "42"


OWN_LAUNCH = """{% extends "slurm/job.sh.j2" %}
{% block launch %}
hpc_elastic_stop() { :; }
srun --nodes=2 "$hpc_elastic_python" {{ agent }} &
hpc_elastic_launched+=("$!")
{% endblock %}
"""


def test_a_notice_reaches_the_agents_of_a_site_that_launches_them_in_its_own_way(tmp_path: Path) -> None:
    template = tmp_path / "own.sh.j2"
    template.write_text(OWN_LAUNCH)
    scene = make_scene(tmp_path, template=str(template))
    os.mkfifo(scene.stubs / "gate")
    process = scene.start(STUB_STATUS="42")
    scene.wait_for("srun.runs")
    process.send_signal(signal.SIGUSR2)
    requests = scene.run_dir / "requests.jsonl"
    wait_until(lambda: requests.exists() and '"notice"' in requests.read_text(), "there is a notice")
    (scene.stubs / "gate").write_text("go\n")
    process.communicate(timeout=60)
    assert process.returncode == 42


@pytest.mark.long
@pytest.mark.parametrize("is_pending", [True, False], ids=["pending", "taken"])
def test_a_stopped_srun_goes_on_after_a_term_that_has_ended_the_agent_and_the_watch(
    is_pending: bool, tmp_path: Path
) -> None:
    """Slurm sends every process of the job a CONT, and then a TERM: the watch may stop srun again between the two."""
    scene = make_scene_where_srun_stays(tmp_path)
    agent = subprocess.Popen(["sleep", "600"])
    start = Path(f"/proc/{agent.pid}/stat").read_text().rpartition(") ")[2].split()[19]
    (scene.run_dir / "agents" / "launch_agent").write_text(f"{agent.pid} {start}\n")
    process = scene.start(("bash", "-c", 'SLURM_TASK_PID=$$ exec "$@"', "-"), STUB_STATUS="42")
    scene.wait_for("srun.runs")
    (scene.run_dir / "attempts" / "0001").mkdir(parents=True)
    wait_until(lambda: state_of_srun(scene, process) == "T", "srun is stopped")
    script = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    shells = [pid for pid in children_of(process.pid) if Path(f"/proc/{pid}/cmdline").read_bytes() == script]
    for pid in [*shells, agent.pid]:  # the watch is among these; others wait for a sleep
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    agent.wait()
    if is_pending:
        os.kill(srun_of(scene, process), signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: state_of_srun(scene, process) != "T", "srun goes on")
    (scene.stubs / "gate").write_text("go\n")
    process.communicate(timeout=60)
    assert process.returncode == 42
    assert (scene.stubs / "srun.signals").exists() == is_pending


@pytest.mark.long
def test_nothing_of_a_script_that_is_killed_while_srun_is_stopped_stays(tmp_path: Path) -> None:
    scene = make_scene_where_srun_stays(tmp_path)
    agent = subprocess.Popen(["sleep", "600"])
    start = Path(f"/proc/{agent.pid}/stat").read_text().rpartition(") ")[2].split()[19]
    (scene.run_dir / "agents" / "launch_agent").write_text(f"{agent.pid} {start}\n")
    process = scene.start()
    scene.wait_for("srun.runs")
    (scene.run_dir / "attempts" / "0001").mkdir(parents=True)
    wait_until(lambda: state_of_srun(scene, process) == "T", "srun is stopped")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    agent.kill()
    agent.wait()
    (scene.stubs / "gate").write_text("go\n")
    process.communicate(timeout=60)
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children), "srun and its watch are gone")


@pytest.mark.long
def test_nothing_of_a_script_that_is_killed_before_the_first_attempt_stays(tmp_path: Path) -> None:
    scene = make_scene_where_srun_stays(tmp_path)
    process = scene.start()
    scene.wait_for("srun.runs")
    children = children_of(process.pid)
    process.kill()
    (scene.stubs / "gate").write_text("go\n")
    process.communicate(timeout=60)
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children), "srun and its watch are gone")


@pytest.mark.long
def test_srun_goes_on_when_the_run_is_over(tmp_path: Path) -> None:
    scene = make_scene_where_srun_stays(tmp_path)
    me = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(") ")[2].split()[19]
    (scene.run_dir / "agents" / "launch_agent").write_text(f"{os.getpid()} {me}\n")
    process = scene.start(STUB_STATUS="0")
    scene.wait_for("srun.runs")
    (scene.run_dir / "attempts" / "0001").mkdir(parents=True)
    wait_until(lambda: state_of_srun(scene, process) == "T", "srun is stopped")
    (scene.run_dir / "exit_code").write_text("0\n")
    wait_until(lambda: state_of_srun(scene, process) != "T", "srun goes on")
    (scene.stubs / "gate").write_text("go\n")
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.long
def test_the_local_script_starts_an_agent_for_each_node(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, local=True, nodes=NodesPlan(min=1, max=3))
    (scene.run_dir / "agents" / "local1.out").write_text("before\n")
    process = scene.start(STUB_STATUS_1="7", STUB_STATUS_2="3")
    process.communicate(timeout=60)
    assert process.returncode == 7
    for node in range(3):
        environment = scene.agent(node)["environ"]
        assert environment["HPC_ELASTIC_LOCAL_NODE_ID"] == str(node)
        assert environment["HPC_ELASTIC_LOCAL_NODES"] == "3"
        assert environment["HPC_ELASTIC_LOCAL_JOB_ID"].startswith(f"local-{process.pid}-")
    assert (scene.run_dir / "agents" / "local0.out").read_text() == "agent 0 prints\n"
    assert (scene.run_dir / "agents" / "local1.out").read_text() == "before\nagent 1 prints\n"


@pytest.mark.parametrize("setup", [(), (r"IFS=$'\n'",), ("set -k",)])
def test_the_local_job_id_holds_the_start_time_of_the_script(setup: tuple[str, ...], tmp_path: Path) -> None:
    scene = make_scene(tmp_path, local=True, nodes=NodesPlan(min=1, max=1), setup=setup)
    os.mkfifo(scene.stubs / "gate0")
    process = scene.start()
    scene.wait_for("agent0.runs")
    start_time = Path(f"/proc/{process.pid}/stat").read_text().rsplit(") ", 1)[1].split()[22 - 3]
    (scene.stubs / "gate0").write_text("go\n")
    process.communicate(timeout=60)
    assert scene.agent()["environ"]["HPC_ELASTIC_LOCAL_JOB_ID"] == f"local-{process.pid}-{start_time}"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_local_script_passes_a_signal_on_once_and_waits(number: signal.Signals, tmp_path: Path) -> None:
    scene = make_scene(tmp_path, local=True)
    for node in range(2):
        os.mkfifo(scene.stubs / f"gate{node}")
    process = scene.start(STUB_STATUS_0="10", STUB_STATUS_1="10")
    scene.wait_for("agent0.runs")
    scene.wait_for("agent1.runs")
    process.send_signal(number)
    scene.wait_for("terminated0")
    scene.wait_for("terminated1")
    process.send_signal(number)
    for node in range(2):
        (scene.stubs / f"gate{node}").write_text("go\n")
    process.communicate(timeout=60)
    assert process.returncode == 10
    assert [(scene.stubs / f"terminated{node}").read_text() for node in range(2)] == ["TERM\n", "TERM\n"]


@pytest.mark.long
def test_the_local_script_signals_no_process_that_has_a_dead_agents_number(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, local=True, setup=("IFS=1", "sleep 600 &"))
    for node in range(2):
        os.mkfifo(scene.stubs / f"gate{node}")
    process = scene.start(STUB_STATUS_1="10")
    scene.wait_for("agent0.runs")
    scene.wait_for("agent1.runs")
    (scene.stubs / "gate0").write_text("go\n")
    dead = Path(f"/proc/{scene.agent(0)['pid']}")
    wait_until(lambda: not dead.exists(), "the script has collected the first agent")
    process.send_signal(signal.SIGTERM)
    scene.wait_for("terminated1")
    (users,) = [pid for pid in children_of(process.pid) if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"]
    (scene.stubs / "gate1").write_text("go\n")
    assert process.wait(timeout=60) == 10
    os.kill(users, signal.SIGKILL)  # a setup line's own process lived on
    assert process.communicate()[1] == ""
    assert not (scene.stubs / "terminated0").exists()


def children_of(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@pytest.mark.long
def test_the_local_script_leaves_with_the_exit_code_of_the_run(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, local=True)
    (scene.run_dir / "exit_code").write_text("0\n")
    assert scene.run(STUB_STATUS_1="137")[0] == 0


def kill_wait_of(scene: Scene, seconds: str) -> Scene:
    """The same with another pause before KILL."""
    source = TEMPLATE.read_text()
    assert source.count("{{ kill_wait }}") == 1
    template = scene.root / "short.sh.j2"
    template.write_text(source.replace("{{ kill_wait }}", seconds))
    return dataclasses.replace(scene, plan=dataclasses.replace(scene.plan, template=str(template)))


@pytest.mark.long
def test_the_local_script_ends_its_agents_at_the_time_limit(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, local=True, time_s=3.0)
    for node in range(2):
        os.mkfifo(scene.stubs / f"gate{node}")
    process = scene.start(STUB_STATUS_0="10", STUB_STATUS_1="10")
    scene.wait_for("terminated0")
    scene.wait_for("terminated1")
    assert process.poll() is None, "it waits for them"
    for node in range(2):
        (scene.stubs / f"gate{node}").write_text("go\n")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 10
    assert errors == "hpc_elastic: the time limit of 3 s is over\n"
    assert (scene.stubs / "terminated0").read_text() == "TERM\n", "a second one would mean: at once"


@pytest.mark.long
def test_the_local_script_kills_what_the_time_limits_term_does_not_end(tmp_path: Path) -> None:
    scene = kill_wait_of(make_scene(tmp_path, local=True, time_s=3.0), "1")
    for node in range(2):
        os.mkfifo(scene.stubs / f"gate{node}")
    process = scene.start()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert (scene.stubs / "terminated0").exists()


@pytest.mark.long
@pytest.mark.parametrize("line", ["sleep 1000; touch went-on", "bash -c 'sleep 1000; true'; touch went-on"])
def test_the_time_limit_of_the_local_script_holds_for_setup(line: str, tmp_path: Path) -> None:
    status, _, errors = make_scene(tmp_path, local=True, time_s=1.0, setup=(line,)).run()
    assert status != 0
    said = errors.splitlines()
    assert said[0] == "hpc_elastic: the time limit of 1 s is over"
    assert said[-1] == "hpc_elastic: setup took longer than the time limit of 1 s"
    assert not (tmp_path / "work" / "went-on").exists()
    assert not (tmp_path / "stubs" / "agent0.runs").exists()


@pytest.mark.long
def test_the_time_limit_of_the_local_script_holds_for_setup_that_traps_its_signal(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, local=True, time_s=1.0, setup=("trap : TERM", "while :; do sleep 0.1; done"))
    status, _, errors = kill_wait_of(scene, "1").run()
    assert status == -signal.SIGKILL
    assert errors.splitlines()[-1] == "hpc_elastic: setup took longer than the time limit of 1 s"
    assert not (tmp_path / "stubs" / "agent0.runs").exists()


@pytest.mark.long
@pytest.mark.parametrize("line", ["wait", "sleep 0 & wait", "sleep 0 & wait -n"])
def test_a_wait_in_setup_does_not_wait_for_the_time_limit(line: str, tmp_path: Path) -> None:
    scene = make_scene(tmp_path, local=True, time_s=3600.0, setup=(line,))
    assert scene.run() == (0, f"hpc_elastic: run directory {tmp_path}/run\n", "")


@pytest.mark.long
@pytest.mark.parametrize("setup", [(), ("exit 4",), ("setsid sleep 1000 >/dev/null 2>&1 & echo $! >pid",)])
def test_nobody_waits_for_the_time_limit_of_a_script_that_is_over(setup: tuple[str, ...], tmp_path: Path) -> None:
    scene = make_scene(tmp_path, local=True, time_s=3600.0, setup=setup)
    process = scene.start(("setsid", "--wait"))
    process.wait(timeout=60)
    process.communicate(timeout=60)  # who waits would hold standard error
    if (left := tmp_path / "work" / "pid").exists():
        os.kill(int(left.read_text()), signal.SIGKILL)  # which holds the script's end of the pipe


def test_agents_do_not_hold_what_tells_that_the_script_is_over(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, local=True, time_s=3600.0, nodes=NodesPlan(min=1, max=1))
    os.mkfifo(scene.stubs / "gate0")
    process = scene.start()
    scene.wait_for("agent0.runs")
    pipes = [os.readlink(entry) for entry in Path(f"/proc/{scene.agent()['pid']}/fd").iterdir()]
    assert [pipe for pipe in pipes if pipe.startswith("pipe:")] == []
    (scene.stubs / "gate0").write_text("go\n")
    process.communicate(timeout=60)
    assert process.returncode == 0


# What bash 4.2 of CentOS 7 says, on a bash that can do it.
OLD_WAIT = """wait() {
    [ "${1-}" != -n ] || { echo "wait: -n: invalid option" >&2; return 2; }
    builtin wait "$@"
}
"""


@pytest.mark.long
def test_an_array_on_this_machine_goes_on_with_a_bash_that_cannot_wait_for_one_of_several(tmp_path: Path) -> None:
    plans = [make_local_plan(run_dir=str(tmp_path / str(number))) for number in range(3)]
    templates = load_array_template("local"), load_template(plans[0].template, job_dir="/")
    (tmp_path / "job.sh").write_text(render_array_script(plans, *templates, limit=1))
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "job.sh").write_text(
            f"echo {number} begins >>../story; sleep 0.3; echo ends >>../story\n"
        )
    (tmp_path / "old").write_text(OLD_WAIT)
    done = subprocess.run(
        ["bash", str(tmp_path / "job.sh")],
        env={"PATH": os.environ["PATH"], "BASH_ENV": str(tmp_path / "old")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert (tmp_path / "story").read_text().split("\n") == [
        line for number in range(3) for line in (f"{number} begins", "ends")
    ] + [""]
