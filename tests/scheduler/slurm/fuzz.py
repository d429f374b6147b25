"""Mutated answers of Slurm's commands, and what must hold of every one of them.

    python -m tests.scheduler.slurm.fuzz --count 100000

plays so many mutations of each captured answer (`make soak` does); `make test` plays fewer. A seed is one mutation:
the same on every machine.
"""

from __future__ import annotations

import argparse
import random
import re
import string
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpc_elastic.errors import SchedulerError
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from hpc_elastic.scheduler.slurm import from_node, output
from hpc_elastic.scheduler.slurm.output import CommandOutput
from tests.scheduler.slurm.captured import FOLDER, VERSIONS, Captured, captured

LONGEST_MESSAGE = 2000
_PIECES = (
    *("", "|", "||", "\n", "\r\n", "\0", "\x1b[2J", "\ufffd", "\u2028", "\uff11", "\t", " ", "[", "]", "[1-", "node[1"),
    *(
        "-1",
        "0",
        "0:0",
        "3:0:core",
        "9" * 30,
        "1e9",
        "(null)",
        "N/A",
        "None",
        "RUNNING",
        "CANCELLED",
        "GONE",
        "%s",
        "{}",
    ),
    *("Invalid job id specified", "already completing or completed", " is UP", "slurm_load_jobs error: ", "1_[2-3%2]"),
)


@dataclass(frozen=True)
class Parsers:
    """The parsers of the answers; a test replaces one by a worse one."""

    queue: Callable[[CommandOutput, list[str]], Mapping[str, JobStatus]] = output.parse_queue
    accounting: Callable[[CommandOutput, list[str]], Mapping[str, JobStatus] | None] = output.parse_accounting
    nodes_left: Callable[[JobStatus | None], tuple[str, ...] | None] = output.nodes_left
    submission: Callable[[CommandOutput], str] = output.parse_submission
    cancellation: Callable[[CommandOutput, str], None] = output.parse_cancellation
    requeue: Callable[[CommandOutput, str], None] = output.parse_requeue
    ping: Callable[[CommandOutput], bool] = output.parse_ping


def captures() -> Iterator[tuple[str, str]]:
    """Version and case of every captured answer."""
    for version in VERSIONS:
        for path in sorted((FOLDER / version).glob("*.json")):
            yield version, path.stem


def mutate(answer: CommandOutput, dice: random.Random, donors: list[str]) -> CommandOutput:
    """The answer, changed in one to four ways.

    Args:
        answer: what Slurm said.
        dice: decides.
        donors: texts of other answers, pieces of which it may get.
    """
    stdout, stderr, returncode = answer.stdout, answer.stderr, answer.returncode
    for _ in range(dice.randint(1, 4)):
        what = dice.random()
        if what < 0.7:
            stdout = _mutate_text(stdout, dice, donors)
        elif what < 0.9:
            stderr = _mutate_text(stderr, dice, donors)
        else:
            returncode = dice.choice((0, 0, 1, 2, 127, 137, -9, -15))
    return CommandOutput(returncode=returncode, stdout=stdout, stderr=stderr)


def _mutate_text(text: str, dice: random.Random, donors: list[str]) -> str:
    start = dice.randint(0, len(text))
    end = min(len(text), start + dice.choice((0, 1, 1, 2, 5, 20)))
    what = dice.random()
    if what < 0.25:
        return text[:start] + dice.choice(_PIECES) + text[end:]
    if what < 0.4:
        return text[:start] + text[end:]
    if what < 0.5:
        return text[:start]  # cut off
    if what < 0.6:
        return text + text[start:end] * dice.choice((1, 3, 50))
    if what < 0.75:
        fields = text.split("|")
        fields[dice.randrange(len(fields))] = dice.choice(_PIECES)
        return "|".join(fields)
    if what < 0.85:
        donor = dice.choice(donors)
        cut = dice.randint(0, len(donor))
        return text[:start] + donor[cut : cut + dice.randint(0, 200)] + text[end:]
    return text[:start] + dice.choice(string.printable + "\x00\x07\x1b\u202e\ufffd") + text[end:]


def donors_of(version: str) -> list[str]:
    """The texts that mutations of a version's answers take pieces from."""
    cases = [captured(each, case).output for each, case in captures() if each == version]
    return [text for answer in cases for text in (answer.stdout, answer.stderr) if text]


def violation(capture: Captured, answer: CommandOutput, parsers: Parsers = Parsers()) -> str | None:
    """Return what is wrong with how an answer is read; None if nothing is."""
    try:
        found = _read(capture, answer, parsers)
    except SchedulerError as error:
        said = f"{error.message} {error.tip or ''}"
        if not said.isprintable():
            return f"the message has control characters: {said!r}"
        return f"the message has {len(said)} characters" if len(said) > LONGEST_MESSAGE else None
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if isinstance(found, Mapping):
        return next((wrong for job_id, status in found.items() if (wrong := _wrong(capture, job_id, status))), None)
    return None


def _read(capture: Captured, answer: CommandOutput, parsers: Parsers) -> Any:
    program, job_ids = capture.command[0], capture.job_ids
    if program == "squeue":
        found = parsers.queue(answer, job_ids)
        for status in found.values():
            parsers.nodes_left(status)
        for job_id in job_ids[:1] if parsers == Parsers() else ():
            _ask_as_a_node(job_id, answer)
        return found
    if program == "sacct":
        return parsers.accounting(answer, job_ids)
    if program == "sbatch":
        job_id = parsers.submission(answer)
        assert re.fullmatch(r"[0-9]+", job_id, re.ASCII), job_id
        return job_id
    if program == "scancel":
        return parsers.cancellation(answer, job_ids[0])
    if capture.command[:2] == ["scontrol", "requeue"]:
        return parsers.requeue(answer, job_ids[0])
    return parsers.ping(answer)


def _ask_as_a_node(job_id: str, answer: CommandOutput) -> None:
    """Ask the questions of an agent: each returns a value of its type or raises a SchedulerError."""

    def run(command: Any, **_: Any) -> CommandOutput:
        return answer

    for ask, kind in (
        (lambda: from_node.is_over(job_id, run=run), bool),
        (lambda: from_node.count_restarts(job_id, run=run), int),
        (lambda: from_node.dead_nodes(job_id, ["node1"], run=run), frozenset),
    ):
        try:
            told = ask()
        except SchedulerError:
            continue
        assert isinstance(told, kind), told


def _wrong(capture: Captured, job_id: str, status: JobStatus) -> str | None:
    if job_id not in capture.job_ids or status.job_id != job_id:
        return f"it tells of {job_id}, and {capture.job_ids} was asked for"
    if not isinstance(status.state, JobState) or status.state is JobState.GONE:
        return f"its state is {status.state}"
    if status.restarts < 0 or not re.fullmatch(r"[0-9]+:[0-9]+", status.exit_code or "", re.ASCII):
        return f"restarts {status.restarts}, exit code {status.exit_code}"
    return None


def hunt(
    version: str, case: str, count: int, *, first: int = 0, parsers: Parsers = Parsers()
) -> tuple[int, str, CommandOutput] | None:
    """The first seed whose mutation is read wrongly, with what is wrong and the answer; None if none is."""
    capture, donors = captured(version, case), donors_of(version)
    for seed in range(first, first + count):
        answer = mutate(capture.output, random.Random(f"{case} {seed}"), donors)
        if (wrong := violation(capture, answer, parsers)) is not None:
            return seed, wrong, answer
    return None


def main() -> int:
    """Hunts in every captured answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    played = failed = 0
    for version, case in captures():
        found = hunt(version, case, options.count, first=options.first)
        played += options.count
        if found is not None:
            failed += 1
            print(f"{version} {case}: seed {found[0]}: {found[1]}\n  {found[2]}", flush=True)
    print(f"{played} mutations of {len(list(captures()))} answers of {', '.join(VERSIONS)}: {failed} answers fail")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
