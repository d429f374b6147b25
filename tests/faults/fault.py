"""What one fault is: how it is made, and what a run must say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Silent:
    """The culprit is a rank that did not fail: it is named as the cause, or alone as the silent one."""

    rank: int


@dataclass(frozen=True, slots=True)
class Ended:
    """What must be said of an attempt that a fault ended.

    `classes` are the words of `FailureClass` of which one must be given; empty: no failure ended the attempt, so there
    must be no root cause. `culprit` is a rank, several of which one must be named, a node, a silent rank, or None where
    nobody is to blame. `cause` is a regular expression that the line for people must contain.
    """

    classes: tuple[str, ...]
    culprit: int | tuple[int, ...] | str | Silent | None
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, and what is expected of its run.

    Neither its name nor `what` reaches the run: its script is copied into the run's folder as `job.py`.

    Args:
        name: the name of this fault; also that of its script in `scripts`, if `script` does not name another one.
        what: what happens, one phrase.
        end: what must be said of the last attempt.
        before: what must be said of each attempt before it.
        exit_code: the run's exit code, or several of which each is right.
        script: the file in `scripts` that is the run's `job.py`.
        job: more keys of job.yaml, on top of those that all runs have.
        files: more files of the project folder, by their names, with their contents; a `.sh` is executable.
        nodes: how many nodes.
        workers: how many workers on each of them.
        restarts: `restart.max_restarts`.
        act: what is done from outside once every rank has said that it is at work, see `acts`.
        around: the surroundings of the whole run, see `surroundings`.
        needs: what else there must be: `heartbeat` for detected stalls.
        is_quick: whether it is one of the few that `make test` runs.
    """

    name: str
    what: str
    end: Ended
    before: tuple[Ended, ...] = ()
    exit_code: int | tuple[int, ...] = 1
    script: str = ""
    job: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 2
    workers: int = 2
    restarts: int = 0
    act: tuple[str, ...] = ()
    around: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    is_quick: bool = False
