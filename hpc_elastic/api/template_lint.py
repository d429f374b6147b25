"""Tries a template on this machine: renders it with hostile values, gives it to bash, and runs the script.

Nothing is submitted. `srun` is a program that ends with 42 and notes how it was called, the agent one that ends with 42
(for templates without srun); everything else that the template calls is the real one, so it runs what an admin wrote.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

from hpc_elastic.api.preflight import bash_complaint
from hpc_elastic.errors import TemplateError
from hpc_elastic.job.parse import parse_job
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.render.contract import contract_line, declared_contract
from hpc_elastic.render.script import render_script
from hpc_elastic.render.template import Template, load_template
from hpc_elastic.render.values import AGENT_MODULE
from hpc_elastic.resolve.launch_plan import SubmissionContext, resolve_plan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.site.search import find_site

AGENTS_EXIT = 42
_RUNS_FOR_S = 60.0
_HOSTILE = "a b'c\"d%j$(touch canary)`touch canary`;#é"
_HOSTILE_NAME = "-a b 'c' \"d\" %j $(touch canary) `touch canary`;#é"  # its quotes match, so that an eval runs it
_NEEDED = ("--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none")
_JOB = """\
name: lint
nodes: 2
workers_per_node: 2
time: 1h
entrypoint: {script: train.py}
resources: {gpus_per_node: 2, cpus_per_worker: 4}
env: {}
"""
# Ends as if all agents had; notes its arguments, one call a line.
_LAUNCHER = f"""#!/bin/sh
printf '%s\\t' "${{0##*/}}" "$@" >>"$HPC_ELASTIC_LINT/launched"
echo >>"$HPC_ELASTIC_LINT/launched"
exit {AGENTS_EXIT}
"""
# In the place of the package's launch.py, for agents and for what concludes a run without a result.
_AGENT = f"""
import os, sys
if sys.argv[1].endswith(".conclude"):
    sys.exit(0)
with open(os.environ["HPC_ELASTIC_LINT"] + "/launched", "a") as file:
    print(*sys.argv[1:], sep="\\t", file=file)
sys.exit({AGENTS_EXIT})
"""
# Excluded: a sourced file that is not here, and text in single quotes that looks as if it should expand.
_SHELLCHECK = ["shellcheck", "--severity=warning", "--exclude=SC1090,SC1091,SC2016", "--format=gcc", "-"]


def lint_template(name: str, *, runs: bool = True, launchers: Sequence[str] = ()) -> list[str]:
    """Return everything that is wrong with a template, a line each.

    Args:
        name: a name such as slurm/job.sh.j2, or a path, relative to the working directory.
        runs: whether the script is run; what the template's blocks call is then called.
        launchers: programs that start the agents instead of srun.
    """
    try:
        template = load_template(name, job_dir=os.getcwd())
    except TemplateError as error:
        return [error.message]
    path = template.sources[name].path
    problems = []
    if declared_contract(template.sources[name].text) is None:
        problems.append(f"{path}:1: it does not say for which contract it is written: begin with {contract_line()}")
    with tempfile.TemporaryDirectory(prefix="hpc-elastic-lint-") as folder:
        bench = _Bench(folder=folder, template=template, launchers=("srun", *launchers))
        try:
            found = list(bench.read())
            problems += found or (bench.run_all() if runs else [])
        except TemplateError as error:
            problems.append(error.message)
    return problems


def sample_plan(template: Template, folder: str) -> LaunchPlan:
    """Return the plan of a small job for the scheduler that a template is for, with its files below a folder."""
    scheduler = "local" if any(name.startswith("local/") for name in template.sources) else "slurm"
    site = find_site("local" if scheduler == "local" else "generic-slurm", job_dir=folder, environ={"HOME": folder})
    context = SubmissionContext(
        run="lint",
        run_dir=os.path.join(folder, "run"),
        job_dir=folder,
        created="2026-01-02T03:04:05.000000Z",
        interpreter=sys.executable,
        package_dir=os.path.join(folder, "package"),
        package_version="0",
    )
    return dataclasses.replace(resolve_plan(parse_job(_JOB, file=""), site, context), template=template.name)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """A folder with a run directory of a hostile name, and programs that stand in for the launcher and the agent."""

    folder: str
    template: Template
    launchers: Sequence[str]

    def read(self) -> Iterator[str]:
        """Yield what is wrong with the script before it runs."""
        script = render_script(self._plan(), self.template)
        path = self.template.sources[self.template.name].path
        if not script.startswith("#!"):
            first = script.splitlines()[0]
            yield f"{path}: the script begins with {first!r}, expected #! and a shell in the block header"
        if complaint := bash_complaint(script):
            yield f"{path}: bash cannot read the script: {complaint}"
        elif shutil.which("shellcheck"):
            done = subprocess.run(_SHELLCHECK, input=script, capture_output=True, text=True, check=False)
            for line in done.stdout.splitlines():
                yield f"{path}: shellcheck, line of the script {line.removeprefix('-:')}"

    def run_all(self) -> Iterator[str]:
        """Run the script as it is met in life, and yield where it does not do what the contract says."""
        path = self.template.sources[self.template.name].path
        mark = os.path.join(self.folder, "setup ran")
        status, output = self._run(setup=(f": >'{mark}'",))
        if status != AGENTS_EXIT:
            last = f"; it said last: {output.splitlines()[-1]}" if output.strip() else ""
            yield f"{path}: the script ends with {status} where the agents end with {AGENTS_EXIT}{last}"
        launched = self._launched()
        if not launched:
            known = " or ".join(self.launchers)
            yield f"{path}: the script started no agent by {known} (--launcher PROGRAM names another)"
        elif launched[0].startswith("srun\t"):
            missing = [option for option in _NEEDED if option not in launched[0].split("\t")]
            if missing:
                yield f"{path}: srun is called without {' '.join(missing)}, so a lost node ends the job"
        if not os.path.exists(mark):
            yield f"{path}: the setup lines did not run: keep {{{{ super() }}}} in the block setup"
        if any("canary" in names for _, *found in os.walk(self.folder) for names in found):
            yield f"{path}: a part of a value was run as a command: write {{{{ }}}} bare"
        status, _ = self._run(setup=("false",))
        if status != 3 or self._launched():
            yield f"{path}: the script ends with {status} after a setup line that failed, expected 3 and no agent"
        status, _ = self._run(is_over=True)
        if status != 5 or self._launched():
            yield f"{path}: the script of a run that is over ends with {status}, expected 5 and no agent"

    def _plan(self, setup: Sequence[str] = ()) -> LaunchPlan:
        plan = sample_plan(self.template, self.folder)
        return dataclasses.replace(
            plan,
            name=_HOSTILE_NAME,
            run_dir=os.path.join(self.folder, _HOSTILE, "run"),
            workdir=os.path.join(self.folder, _HOSTILE),
            setup=tuple(setup),
        )

    def _launched(self) -> list[str]:
        """Return how agents were launched since the last time, a line each: the launcher, if any, and its arguments."""
        path = os.path.join(self.folder, "launched")
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            lines = [line for line in file.read().splitlines() if AGENT_MODULE in line.split("\t")]
        os.remove(path)
        return lines

    def _run(self, *, setup: Sequence[str] = (), is_over: bool = False) -> tuple[int, str]:
        """Run the script; return its exit status, -1 if it does not end, and what it wrote."""
        plan = self._plan(setup)
        layout = RunLayout(plan.run_dir)
        programs = os.path.join(self.folder, "programs")
        for folder in (layout.agents, plan.package_dir, programs):
            os.makedirs(folder, exist_ok=True)
        for name in (*self.launchers, "squeue"):
            _write(os.path.join(programs, name), "#!/bin/sh\n" if name == "squeue" else _LAUNCHER, mode=0o755)
        _write(os.path.join(plan.package_dir, "launch.py"), _AGENT)
        script = os.path.join(self.folder, "job.sh")
        _write(script, render_script(plan, self.template))
        if is_over:
            _write(layout.result, "{}")
        process = subprocess.Popen(
            ["bash", script],
            cwd=self.folder,
            env={
                "PATH": f"{programs}:{os.environ.get('PATH', os.defpath)}",
                "HOME": self.folder,
                "LANG": "C.UTF-8",
                "HPC_ELASTIC_LINT": self.folder,
                **({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"} if plan.scheduler == "slurm" else {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=_RUNS_FOR_S)
            return process.returncode, output.decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return -1, f"it did not end within {_RUNS_FOR_S:g} s"


def _write(path: str, text: str, *, mode: int = 0o644) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)
