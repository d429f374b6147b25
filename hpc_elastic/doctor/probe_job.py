"""Starts the job whose nodes make the checks, waits for their answers for a bounded time, and ends it.

The job is started as a run is: by the site's own template, with its setup lines, Python and options of srun; only the
program is another one. Its output is the way on which answers come back, through srun, so that a node that cannot
write on the shared file system can say so.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from glob import escape, glob

from hpc_elastic.api.prepare import JobSource, PreparedRun, prepare_run
from hpc_elastic.api.submission import deferred_interrupt
from hpc_elastic.codec import to_json
from hpc_elastic.doctor.probes.answers import LeftoversSeen, ProbeAnswer, ProbeRequest, other_lines, read_answers
from hpc_elastic.doctor.probes.bounded import LateError, answer_within
from hpc_elastic.doctor.results import CheckResult, Severity, name_nodes
from hpc_elastic.errors import HpcElasticError, RunDirectoryError, SchedulerError, TemplateError
from hpc_elastic.hostlist import HostlistError, expand_hostlist
from hpc_elastic.observe.waiting import Wait
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.render.script import render_template
from hpc_elastic.render.template import Templates
from hpc_elastic.render.values import AGENT_MODULE, template_values
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.protocol import JobState, JobStatus, Scheduler
from hpc_elastic.units import parse_slurm_memory

MODULE = "hpc_elastic.doctor.node.main"
# Answers go to standard output of srun, and so of the job; nodes start in a folder that cannot hang. Of two equal
# options srun takes the last.
_SRUN = ("--chdir=/", "--output=all")
_TIMED_OUT = "Socket timed out on send/recv operation"  # srun's word about a launch that slurmd has not answered
_ACTION = "look on the node: the Python of the job, the package's folder, slurmd"
_ACTION_LATE = (
    "look at slurmd on the node, and how long its prolog takes: it has MessageTimeout without PrologFlags=Alloc"
)
ENDLESS_S = 5.0  # a reason for which a job waits for ever is one that stays
FIRST_LINE_S = 60.0  # the script says at once where it runs
FIRST_ANSWER_S = 300.0  # setup lines may load modules from a slow file system
ALL_ANSWERS_S = 130.0  # more than a node takes at most
OUTPUT_S = 6.0  # until the last output of a job that is over is seen here
DISK_S = 20.0
LOOK_S = 0.3
ASK_S = 2.0
_JOB = """\
name: doctor
nodes: {nodes}
spares: 0
workers_per_node: 1
time: 10m
workdir: /
requeue: {{max: 0}}
entrypoint: {{command: "true"}}
"""
# What a script that is stopped outside of a batch job looks for before it lets a TERM reach srun at once.
_STOP_LINE = '{"format_version": 1, "kind": "stop", "by": "doctor"}\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOutcome:
    """What came of the job.

    `nodes` are the job's, as far as they are known; `read` says when the first answer of each was read. `problem`
    says why there is no answer of some, `advice` and `key` what to do; `lines` is what the job wrote beside answers.
    """

    job_id: str
    nodes: tuple[str, ...] = ()
    answers: tuple[ProbeAnswer, ...] = ()
    sent: float
    read: Mapping[str, float]
    waited_s: float
    took_s: float
    problem: str = ""
    advice: str = ""
    key: str = ""
    lines: tuple[str, ...] = ()


def prepare_probe(
    nodes: int, *, site_name: str | None, overrides: list[str], is_allocated: bool, say: Callable[[str], None]
) -> PreparedRun:
    """Return the job that a site's defaults make of a small one.

    Raises:
        JobError, SiteError, TemplateError: something of the user's or the admin's is wrong.
    """
    source = JobSource(text=_JOB.format(nodes=nodes), file="the job of doctor", directory=os.getcwd())
    return prepare_run(source, overrides=overrides, site_name=site_name, is_allocated=is_allocated, say=say)


def request_of(plan: LaunchPlan) -> ProbeRequest:
    """Return what the nodes of a job are to try."""
    memory = plan.resources.memory_per_node
    return ProbeRequest(
        run=plan.run,
        folder=plan.run_dir,
        network=plan.network,
        scratch=plan.scratch,
        gpus=plan.resources.gpus_per_node or None,
        cpus=plan.resources.cpus_per_task,
        memory=parse_slurm_memory(memory) or None if memory else None,
    )


def render_probe(prepared: PreparedRun) -> str:
    """Return the script of the job: the site's own, which starts the checks where a run's starts its agents.

    Raises:
        TemplateError: the template does not render.
    """
    import json

    plan = prepared.plan
    template, environment = Templates(prepared.source.directory).load(plan.template)
    values = dict(template_values(replace(plan, srun=(*plan.srun, *_SRUN))))
    request = json.dumps(to_json(request_of(plan)), separators=(",", ":"))
    ours = {AGENT_MODULE: MODULE, RunLayout(plan.run_dir).root: request}
    words = [str(word) for word in values["agent"]] if isinstance(values["agent"], (list, tuple)) else []
    values["agent"] = tuple(ours.get(word, word) for word in words)
    values["conclude"] = ("-c", "pass")  # there is no run that needs a result
    script = render_template(template, values, environment)
    if MODULE not in script:
        path = template.sources[template.name].path
        raise TemplateError(f"{path}: the script does not start `{{{{ agent }}}}`, in whose place doctor's checks are")
    return script


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Why no more answers are waited for, and what to do."""

    problem: str
    advice: str
    key: str = ""


@dataclass(slots=True, kw_only=True)
class JobTimes:
    """When the job was submitted, started, gave its first answer and was over, in monotonic seconds."""

    began: float
    started: float | None = None
    first: float | None = None
    over: float | None = None

    def note(self, now: float, state: JobState, *, has_answers: bool) -> None:
        """Note what is true now for the first time; a job that has answered has started, whatever is said of it."""
        if self.started is None and (has_answers or state is not JobState.PENDING):
            self.started = now
        if self.first is None and has_answers:
            self.first = now
        if self.over is None and state.is_terminal:
            self.over = now


def _advice_on(wait: Wait) -> str:
    """Return what to do about a job that has been cancelled, for it would never have started."""
    commands = list(wait.commands())
    if any("release" in command for command in commands):
        return "leave out `hold`, if the site or --set has it; else ask the administrators what holds jobs here"
    look = "".join(f"look with `{command}`; " for command in commands)
    return f"{look}name another account, QOS or partition: --set sbatch.qos=NAME"


def why_to_stop(
    now: float, times: JobTimes, status: JobStatus, *, has_output: bool, folder: str, pending_s: float
) -> GivenUp | None:
    """Return why no more answers of a job are waited for; None to wait on.

    Args:
        now: monotonic seconds.
        times: what has happened so far.
        status: what the scheduler said last.
        has_output: whether anything that the job wrote has come.
        folder: where that is looked for.
        pending_s: for how long the job may wait to start.
    """
    if times.started is None:
        wait = Wait(status.job_id, status.reason or "")
        if wait.endless and now >= times.began + min(ENDLESS_S, pending_s):
            return GivenUp(f"it does not start by itself: {wait.why}", _advice_on(wait), "defaults.sbatch")
        if now < times.began + pending_s:
            return None
        why = f" ({status.reason})" if status.reason else ""
        advice = "wait longer with --wait, or name a partition with free nodes: --set sbatch.partition=NAME"
        return GivenUp(f"it did not start within {pending_s:g} s{why}", advice)
    if times.over is not None:
        if now < times.over + OUTPUT_S:
            return None
        code = f" {status.exit_code}" if status.exit_code else ""
        ended = f"it has ended ({status.state.value}{code})"
        if has_output:
            return GivenUp(f"{ended} before all nodes had answered", f"read what it wrote in {folder}")
        advice = "that folder must be writable on the job's first node, and the same there as here"
        return GivenUp(f"{ended}, and nothing that it wrote has come to {folder}", advice, "run_root")
    if not has_output and now > times.started + FIRST_LINE_S:
        problem = f"its script wrote nothing to {folder} within {FIRST_LINE_S:g} s of its start"
        advice = "that folder may hang on the job's first node, or not be the same there as here"
        return GivenUp(problem, advice, "run_root")
    if times.first is None and now > times.started + FIRST_ANSWER_S:
        return GivenUp(f"no node answered within {FIRST_ANSWER_S:g} s of its start", f"read {folder}")
    if times.first is not None and now > times.first + ALL_ANSWERS_S:
        return GivenUp(f"not all nodes answered within {ALL_ANSWERS_S:g} s", "look at the nodes that are missing")
    return None


class ProbeJob:
    """The job, from its folder on the shared file system to its end.

    Args:
        prepared: the job.
        scheduler: submits, queries and cancels it.
        say: is called with each line about its progress.
        pending_s: for how long it may wait to start.
    """

    def __init__(
        self, prepared: PreparedRun, scheduler: Scheduler, *, say: Callable[[str], None], pending_s: float
    ) -> None:
        self._plan = prepared.plan
        self._script = render_probe(prepared)
        self._layout = RunLayout(prepared.plan.run_dir)
        self._scheduler = scheduler
        self._say = say
        self._pending_s = pending_s
        self._job_id = ""
        self._is_over = False
        self._answers: tuple[ProbeAnswer, ...] = ()
        self._lines: tuple[str, ...] = ()
        self._size = -1
        self._read: dict[str, float] = {}
        self._told: str | None = None

    @property
    def folder(self) -> str:
        """The folder of the job."""
        return self._layout.root

    def run(self) -> ProbeOutcome:
        """Start the job, and return what its nodes answered; it is over then, or is being ended.

        Raises:
            SchedulerError: the scheduler refused the job.
            RunDirectoryError: its folder cannot be made.
        """
        self._make_folder()
        sent = time.time()
        try:
            with deferred_interrupt() as interruption:
                self._job_id = self._scheduler.submit(self._plan, self._layout.script)
                interruption.outcome = f"job {self._job_id} is cancelled"
            return self._attend(sent)
        finally:
            self._end()

    def remove_folder(self) -> None:
        """Remove the folder of the job; what cannot be removed stays."""
        with contextlib.suppress(LateError):
            answer_within(lambda: shutil.rmtree(self._layout.root, ignore_errors=True), DISK_S)

    def active_of(self, answers: tuple[ProbeAnswer, ...]) -> frozenset[str]:
        """Return those of the jobs of which processes were found that the scheduler knows to run."""
        found = [each.value for each in answers if isinstance(each.value, LeftoversSeen)]
        job_ids = sorted({process.job_id for each in found for process in each.processes if process.job_id})
        if not job_ids:
            return frozenset()
        try:
            told = self._scheduler.query(job_ids)
        except SchedulerError:
            return frozenset(job_ids)  # nobody is accused of what is not known
        return frozenset(job_id for job_id, status in told.items() if not status.state.is_terminal)

    def _make_folder(self) -> None:
        layout = self._layout

        def make() -> None:
            os.makedirs(os.path.dirname(layout.root), exist_ok=True)
            os.mkdir(layout.root, 0o700)
            os.mkdir(layout.agents, 0o700)
            for path, text in ((layout.requests, _STOP_LINE), (layout.script, self._script)):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)

        try:
            answer_within(make, DISK_S)
        except (OSError, LateError) as error:
            raise RunDirectoryError(
                f"cannot make {layout.root}: {error}", tip="the site's run_root names it"
            ) from error

    def _attend(self, sent: float) -> ProbeOutcome:
        """Wait until all nodes have answered, the job is over, or the time for either has passed."""
        times = JobTimes(began=time.monotonic())
        ask_at, status = times.began, JobStatus(job_id=self._job_id, state=JobState.PENDING, native_state="PENDING")
        given_up: GivenUp | None = None
        while not self._is_answered():
            now = time.monotonic()
            if now >= ask_at:
                status, ask_at = self._ask(status), now + ASK_S
            times.note(now, status.state, has_answers=bool(self._answers))
            given_up = why_to_stop(
                now,
                times,
                status,
                has_output=self._size > 0,
                folder=self._layout.root,
                pending_s=self._pending_s,
            )
            if given_up is not None:
                break
            time.sleep(LOOK_S)
            self._look()
        now = time.monotonic()
        return ProbeOutcome(
            job_id=self._job_id,
            nodes=self._nodes(status),
            answers=self._answers,
            sent=sent,
            read=self._read,
            waited_s=(times.started or now) - times.began,
            took_s=now - (times.started or now),
            problem=given_up.problem if given_up else "",
            advice=given_up.advice if given_up else "",
            key=given_up.key if given_up else "",
            lines=self._lines,
        )

    def _ask(self, last: JobStatus) -> JobStatus:
        """Ask the scheduler for the job; say what it waits for, and once that there is no answer."""
        try:
            status = self._scheduler.query([self._job_id])[self._job_id]
        except SchedulerError as error:
            self._tell(f"the scheduler does not answer: {error.message}")
            return last
        if status.state is JobState.PENDING:
            why = f" ({status.reason})" if status.reason else ""
            self._tell(f"job {self._job_id} waits to start{why}")
        elif not status.state.is_terminal and not self._answers:
            where = f" on {status.nodes}" if status.nodes else ""
            self._tell(f"job {self._job_id} runs{where}")
        return status

    def _tell(self, line: str) -> None:
        if line != self._told:
            self._told = line
            self._say(line)

    def _look(self) -> None:
        """Read what the job has written so far, if it is more than before."""
        try:
            text = answer_within(self._read_output, DISK_S)
        except (OSError, LateError):
            return
        if len(text) == self._size:
            return
        self._size = len(text)
        self._answers, self._lines = tuple(read_answers(text)), tuple(other_lines(text))
        for answer in self._answers:
            self._read.setdefault(answer.node, time.time())

    def _read_output(self) -> str:
        paths = [self._layout.script_output(self._job_id), *sorted(glob(f"{escape(self._layout.agents)}/*.out"))]
        parts = []
        with contextlib.suppress(OSError):
            os.listdir(self._layout.root)  # without a listing NFS remembers that the file was missing
        for path in paths:
            with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", errors="replace") as file:
                parts.append(file.read())
        return "".join(parts)

    def _is_answered(self) -> bool:
        nodes = self._answers[0].nodes if self._answers else ()
        ended = {each.node for each in self._answers if each.check == "end"}
        return bool(nodes) and ended >= set(nodes)

    def _nodes(self, status: JobStatus) -> tuple[str, ...]:
        if self._answers:
            return self._answers[0].nodes
        try:
            return expand_hostlist(status.nodes or "")
        except HostlistError:
            return ()

    def _end(self) -> None:
        """End the job if it is not over; a job that has answered ends by itself within moments."""
        if not self._job_id or self._is_over:
            return
        self._is_over = True
        try:
            if not self._scheduler.query([self._job_id])[self._job_id].state.is_terminal:
                self._scheduler.cancel(self._job_id)
        except HpcElasticError as error:
            self._say(f"job {self._job_id} could not be ended: {error.message}")


def judge_job(outcome: ProbeOutcome) -> Iterator[CheckResult]:
    """Yield whether the job ran, and which of its nodes gave no answer."""
    told = {each.node for each in outcome.answers}
    silent = tuple(node for node in outcome.nodes if node not in told)
    cut = tuple(
        node
        for node in outcome.nodes
        if node in told and not any(each.node == node and each.check == "end" for each in outcome.answers)
    )
    last = f"; it wrote: {outcome.lines[-1].strip()}" if outcome.lines and outcome.problem else ""
    if outcome.problem and not told:
        yield CheckResult(
            check="job",
            verdict=Severity.FAIL,
            found=f"job {outcome.job_id}: {outcome.problem}{last}",
            expected="an answer of each node",
            action=outcome.advice,
            key=outcome.key,
            nodes=outcome.nodes,
        )
        return
    for nodes, what in ((silent, "gave no answer"), (cut, "did not make all checks")):
        if nodes:
            named = [line.strip() for line in outcome.lines if any(node in line for node in nodes)]
            said = f"; Slurm says: {named[-1]}" if named else last
            yield CheckResult(
                check="job",
                verdict=Severity.FAIL,
                found=f"{name_nodes(nodes, len(outcome.nodes))} {what}{said}",
                expected="an answer of each node",
                action=_ACTION_LATE if _TIMED_OUT in said else _ACTION,
                key="" if _TIMED_OUT in said else "defaults.python",
                nodes=nodes,
            )
    if not silent and not cut:
        found = f"job {outcome.job_id}: {outcome.took_s:.0f} s, after {outcome.waited_s:.0f} s of waiting"
        yield CheckResult(check="job", verdict=Severity.OK, found=found)
