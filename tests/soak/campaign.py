"""One run with its faults: started, broken, and held against what must be true of it afterwards.

After every run: the result that its faults allow, attempts 1, 2, 3 ... by claims that follow from each other,
never two attempts at work at the same time, no step repeated that a checkpoint has, no process left, valid records.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpc_elastic.rundir.layout import RunLayout
from tests.integration.conftest import DIGITS, Door, Run
from tests.slurm_sandbox.sandbox import wait_until
from tests.soak import trainer
from tests.soak.faults import (
    ENDS_THE_RUN,
    SPENDS_A_RESTART,
    STOPS_THE_RUN,
    WEIGHTS,
    Done,
    Fault,
    Kind,
    Surgeon,
    draw_faults,
)
from tests.soak.patient import Patient
from tests.soak.rules import Mark, broken_rules, parse_marks, whole_lines

NODES = 4
WORKS_WITHIN_S = 60.0
BUSY_S = 0.25  # a fault that stops the workers has shown after so long, but for a freeze
BUSY_BYTES = 1 << 15
ENDS_WITHIN_S = 120.0
STOPS_WITHIN_S = 30.0
DIGITS_EVERY = 10
_TRAINER = """
name: soak
site: local
nodes: {{min: {min_nodes}, max: {max_nodes}}}
spares: {spares}
workers_per_node: {workers}
time: 2d
entrypoint: {{script: {script}, args: [{folder}]}}
elastic: {{lease: {lease_s}s, join_timeout: 60s, rejoin: {rejoin}}}
restart: {{max_restarts: 1000, max_node_losses: 1000}}
signals: {{grace: 5s, restart_grace: 2s}}
"""
_DIGITS = """
name: soak-digits
site: local
nodes: {{min: {min_nodes}, max: {max_nodes}}}
spares: {spares}
workers_per_node: 1
time: 2d
entrypoint:
  script: {script}
  args: [--record, {folder}/record, --pause, '0.02', --checkpoint, {folder}/checkpoint.pt]
env: {{OMP_NUM_THREADS: 1}}
elastic: {{lease: {lease_s}s, join_timeout: 60s, rejoin: {rejoin}}}
restart: {{max_restarts: 1000, max_node_losses: 1000}}
signals: {{grace: 5s, restart_grace: 2s}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run, drawn from a seed."""

    seed: int
    is_digits: bool
    min_nodes: int
    spares: int
    workers: int
    lease_s: float
    rejoin: str
    faults: Sequence[Fault]
    ending: Fault | None  # TERM or cancel, after the faults
    finishes_early: bool  # the last fault comes while the workers end

    @classmethod
    def draw(
        cls,
        seed: int,
        faults: int,
        *,
        lease_s: float = 3.0,
        digits_every: int = DIGITS_EVERY,
        kinds: Sequence[Kind] = (),
    ) -> Scenario:
        """The scenario of a seed; every tenth seed is the digits example."""
        dice = random.Random(seed)
        is_digits = digits_every > 0 and seed % digits_every == digits_every - 1
        ends = dice.random() < 0.15 and not is_digits and not kinds
        min_nodes = dice.choice([1, 1, 2])
        end = dice.choice(sorted(ENDS_THE_RUN if min_nodes > 1 else STOPS_THE_RUN))
        ending = Fault(kind=end, number=dice.randrange(8), after_s=dice.choice([None, 0.2]))
        return cls(
            seed=seed,
            is_digits=is_digits,
            min_nodes=min_nodes,
            spares=dice.choice([0, 0, 1]),
            workers=dice.choice([1, 2]),
            lease_s=lease_s,
            rejoin=dice.choice(["at_restart", "immediately"]),
            faults=draw_faults(dice, faults, tuple(kinds) or tuple(WEIGHTS)),
            ending=ending if ends else None,
            finishes_early=not ends and dice.random() < 0.3,
        )


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of a scenario. `recoveries`: seconds from each fault to the first work of a later attempt."""

    scenario: Scenario
    run: Run
    seconds: float
    attempts: int
    state: str
    done: list[Done] = field(default_factory=list)
    recoveries: list[tuple[Kind, float]] = field(default_factory=list)


def play(door: Door, scenario: Scenario) -> Outcome:
    """Starts a run, does the faults to it, and checks it.

    Raises:
        AssertionError: something is not as it must be.
    """
    began = time.monotonic()
    folder = door.folder
    run = _start(door, scenario)
    patient = Patient(run)
    try:
        _wait_for_agents(patient, folder)
        surgeon = Surgeon(
            patient,
            min_nodes=scenario.min_nodes,
            lease_s=scenario.lease_s,
            cancel=lambda: _cancel(door, run),
        )
        _break(patient, surgeon, scenario, folder)
        result = run.wait_until_over(within_s=ENDS_WITHIN_S)
        surgeon.thaw()
        run.assert_nothing_left(within_s=30)
        _check(run, scenario, surgeon, result, folder)
        return Outcome(
            scenario=scenario,
            run=run,
            seconds=time.monotonic() - began,
            attempts=result["attempts"],
            state=result["state"],
            done=surgeon.damage.done,
            recoveries=list(_recoveries(surgeon.damage.done, _marks(folder))),
        )
    finally:
        kill_everything(run)


def kill_everything(run: Run) -> None:
    """Ends what a broken run may have left."""
    script = int(run.job_id.split("-")[1])
    for pid in (*run.agents(), *run.processes(), *([script] if _is_script(script, run.layout) else [])):
        subprocess.run(["kill", "-KILL", str(pid)], check=False, stderr=subprocess.DEVNULL)


def _is_script(pid: int, layout: RunLayout) -> bool:
    try:
        return os.fsencode(layout.script) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _start(door: Door, scenario: Scenario) -> Run:
    template = _DIGITS if scenario.is_digits else _TRAINER
    text = template.format(
        max_nodes=NODES - scenario.spares,
        spares=scenario.spares,
        min_nodes=scenario.min_nodes,
        workers=scenario.workers,
        script=DIGITS / "train.py" if scenario.is_digits else trainer.__file__,
        folder=door.folder,
        lease_s=scenario.lease_s,
        rejoin=scenario.rejoin,
    )
    door.write("job.yaml", text)
    return door.submit("job.yaml")


def _wait_for_agents(patient: Patient, folder: Path) -> None:
    wait_until(lambda: len(patient.agents()) == NODES, "every agent runs", within_s=30, otherwise=patient.run.story)
    _wait_for_work(patient, folder)


def _break(patient: Patient, surgeon: Surgeon, scenario: Scenario, folder: Path) -> None:
    faults = [*scenario.faults, *([scenario.ending] if scenario.ending else [])]
    after = 0
    for number, fault in enumerate(faults):
        if scenario.finishes_early and number == len(faults) - 1:
            (folder / "finish").touch()
        if fault.after_s is not None:
            time.sleep(fault.after_s)  # the fault's own timing, which is what is tried here
        else:
            _wait_for_work(patient, folder, after=after)
        if patient.is_over():
            return
        after = surgeon.do(fault)
    done = {one.kind for one in surgeon.damage.done}
    if scenario.ending is None or scenario.ending.kind not in done:  # a script that was killed gets no TERM any more
        (folder / "finish").touch()
    elif scenario.ending.kind is Kind.AGENT_TERMINATED:
        try:
            wait_until(patient.is_over, "the run is stopped", within_s=STOPS_WITHIN_S)
        except AssertionError:  # it could not tell its head, and left alone with exit code 10: the others go on
            (folder / "finish").touch()


def _wait_for_work(patient: Patient, folder: Path, *, after: int = 0) -> None:
    """Until every rank of the latest attempt is at work, and it is a later one than `after`; or the run is over."""
    since = time.monotonic() + BUSY_S

    def works() -> bool:
        claims = patient.claims()
        if patient.is_over() or not claims:
            return patient.is_over()
        attempt = claims[-1]["attempt"]
        if attempt <= after:
            return False
        if not (folder / "marks").exists():
            started = {seen.node for seen in patient.processes() if (seen.what, seen.attempt) == ("worker", attempt)}
            return started >= set(claims[-1]["members"])
        return attempt in _begun(_marks(folder, only=" begin ")) and _is_busy(folder, attempt, since)

    what = f"the run works in an attempt after {after}" if after else "the run works"
    wait_until(works, what, within_s=WORKS_WITHIN_S, otherwise=patient.run.story)


def _is_busy(folder: Path, attempt: int, since: float) -> bool:
    """Whether every rank of the attempt has made a mark since then, in monotonic seconds."""
    with (folder / "marks").open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - BUSY_BYTES))
        lines = whole_lines(file.read().decode())[1:]
    recent = [mark for mark in parse_marks(lines) if mark.attempt == attempt]
    ranks = {mark.rank for mark in recent if mark.time_ns / 1e9 > since}
    return bool(recent) and len(ranks) == recent[0].world_size


def _cancel(door: Door, run: Run) -> None:
    door.run("cancel", run.job_id, exit_code=None)


def _check(run: Run, scenario: Scenario, surgeon: Surgeon, result: dict[str, object], folder: Path) -> None:
    done = surgeon.damage.done
    kinds = {one.kind for one in done}
    story = "\n".join([*map(repr, done), run.story()])
    expected = [("SUCCEEDED", 0)]
    if Kind.BELOW_MIN in kinds:
        expected = [("FAILED", 7)]
    if kinds & STOPS_THE_RUN:
        # A TERM to one agent, or a request that comes when nobody is head, may find the run over before it is seen.
        expected = [("CANCELLED", 10)] + ([("SUCCEEDED", 0)] if Kind.AGENT_TERMINATED in kinds else [])
    assert (result["state"], result["exit_code"]) in expected, f"{result}\n{story}"
    assert Path(run.layout.exit_code).read_text() == f"{result['exit_code']}\n"
    claims = Patient(run).claims()
    assert result["attempts"] == len(claims), story
    assert len(claims) <= 1 + 2 * len(done), f"{len(claims)} attempts after {len(done)} faults\n{story}"
    hits = sum(one.kind in SPENDS_A_RESTART for one in done)
    spent = claims[-1]["spend"]["restarts"]
    assert spent <= hits, f"{spent} restarts were spent on {hits} faults of workers\n{story}"
    marks = _marks(folder)
    broken = list(broken_rules(marks, claims))
    assert not broken, "\n".join([*broken, story])
    run.assert_records_valid(killed=surgeon.damage.killed)
    if scenario.is_digits:
        _check_digits(run, folder, len(claims))


def _check_digits(run: Run, folder: Path, attempts: int) -> None:
    """It has learnt to the end, and all ranks of each start went on from the same step."""
    assert float(run.stdout(attempts, 0).split("accuracy on held-out digits: ")[1].split("%")[0]) >= 95, run.story()
    for restart in range(attempts):
        records = [json.loads(path.read_text()) for path in (folder / "record").glob(f"restart{restart}-*.json")]
        assert len({record["first_step"] for record in records}) <= 1, records


def _marks(folder: Path, *, only: str = "") -> list[Mark]:
    """The marks so far, or those whose line holds this text: there are hundreds a second."""
    path = folder / "marks"
    lines = whole_lines(path.read_text()) if path.exists() else []
    return parse_marks(line for line in lines if only in line)


def _recoveries(done: Sequence[Done], marks: Sequence[Mark]) -> Iterator[tuple[Kind, float]]:
    """From each fault to a world at work until all ranks of the next attempt had begun, if no fault came between."""
    whole = sorted(_begun(marks).values())
    ends = [one.moment for one in done[1:]] + [float("inf")]
    for one, end in zip(done, ends, strict=True):
        later = [at for at in whole if one.moment < at < end]
        if one.to_work and later:
            yield one.kind, later[0] - one.moment


def _begun(marks: Sequence[Mark]) -> dict[int, float]:
    """When the last rank of each attempt began, in monotonic seconds; of those attempts where all did."""
    begun: dict[int, list[Mark]] = {}
    for mark in marks:
        if mark.kind == "begin":
            begun.setdefault(mark.attempt, []).append(mark)
    return {
        attempt: max(mark.time_ns for mark in made) / 1e9
        for attempt, made in begun.items()
        if len(made) == made[0].world_size
    }
