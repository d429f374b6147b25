"""Chooses a run that is at work, asks its head for something, and waits for the attempt that follows."""

from __future__ import annotations

import sys
import time

from hpc_elastic.api.cancel import check_no_copy, grace_of
from hpc_elastic.api.requests import send
from hpc_elastic.cli.choose import choose_to_stop
from hpc_elastic.cli.look import look
from hpc_elastic.errors import ExitCode, HpcElasticError, RunDirectoryError, UsageError
from hpc_elastic.observe.facts import FactReader, Facts
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import ArrayLayout, RunLayout
from hpc_elastic.rundir.records import Request

_REACTION_S = 15.0  # beyond the grace: the head sees the request, all stop, the next attempt is claimed
_LOOK_EVERY_S = 0.3


class NotRestartedError(HpcElasticError):
    """The run did not open another attempt in time. Exit code 9."""

    exit_code = ExitCode.STALLED


def choose_at_work(wanted: str | None, verb: str) -> tuple[RunLayout, Snapshot]:
    """Return the run that the user means, and a snapshot of it; its workers run, or have run.

    Raises:
        UsageError: there is none, it is not certain which one is meant, or it is an array.
        RunDirectoryError: the run is over, none of its workers runs yet, or the directory is a copy.
    """
    found = choose_to_stop(wanted, verb)
    if isinstance(found, ArrayLayout):
        raise UsageError(f"{verb} goes with one run, and this is an array of runs", tip="name a task, such as 1234_5")
    check_no_copy(found.root)
    snapshot = look(found)
    if snapshot.is_over:
        raise RunDirectoryError(f"{snapshot.name} is over already", tip="submit its job file again")
    if not snapshot.attempts:
        raise RunDirectoryError(f"{snapshot.name} is {snapshot.state.value}, and none of its workers runs yet")
    return found, snapshot


def ask_and_wait(layout: RunLayout, snapshot: Snapshot, request: Request, what: str, *, without: str = "") -> int:
    """Send a request to the head, and return the number of the attempt that follows.

    Args:
        layout: the run's.
        snapshot: the run a moment ago.
        request: what is asked for.
        what: the same for people, such as `restart`.
        without: a node that is not to be in that attempt.

    Raises:
        NotRestartedError: no attempt follows.
        RunDirectoryError: the run directory cannot be written.
    """
    send(layout, request)
    grace_s = grace_of(layout)
    print(f"asked {snapshot.name} to {what}; its workers have {grace_s:g} s", file=sys.stderr)
    return _await_attempt(layout, snapshot.attempts, grace_s + _REACTION_S, without)


def ask_to_set_aside(layout: RunLayout, request: Request, node: str, *, within_s: float = _REACTION_S) -> str:
    """Ask the head to use a spare or a lost node no more, and return the reason that it has noted for that.

    Raises:
        NotRestartedError: the head has not done it in time, or the run ended.
        RunDirectoryError: the run directory cannot be read or written.
    """
    send(layout, request)
    reader, deadline = FactReader(layout), time.monotonic() + within_s
    while (why := _why_aside(facts := reader.read(), node)) is None:
        if facts.result is not None:
            raise NotRestartedError(f"the run ended instead: `hpc-elastic status {layout.root}` says how")
        if node in facts.attempts[-1].nodes:
            raise NotRestartedError(
                f"{node} has got workers meanwhile", tip="call it again: the workers stop, and start without it"
            )
        if time.monotonic() > deadline:
            raise NotRestartedError(
                f"the head has not set {node} aside within {within_s:g} s",
                tip=f"the request stands for the head of the run's next start as well; the log of this one, in "
                f"{layout.agents}, may say why it refused",
            )
        time.sleep(_LOOK_EVERY_S)
    return why


def _why_aside(facts: Facts, node: str) -> str | None:
    return facts.beside.set_aside.get(node) or facts.beside.lost_aside.get(node)


def _await_attempt(layout: RunLayout, above: int, within_s: float, without: str) -> int:
    """Wait for a later attempt than `above`, without the node `without`, and return its number.

    Raises:
        NotRestartedError: there is none within so many seconds, or the run ended.
    """
    deadline = time.monotonic() + within_s
    while not (numbers := _opened(layout, above, without)):
        if store.find_json(layout.result) is not None:
            raise NotRestartedError(f"the run ended instead: `hpc-elastic status {layout.root}` says how")
        if time.monotonic() > deadline:
            raise NotRestartedError(
                f"no attempt{f' without {without}' if without else ''} was opened within {within_s:g} s",
                tip=f"`hpc-elastic status {layout.root}` says whether the run waits for nodes, and the head's log in "
                "agents/ why it refused",
            )
        time.sleep(_LOOK_EVERY_S)
    return max(numbers)


def _opened(layout: RunLayout, above: int, without: str) -> list[int]:
    """Return the numbers of the later attempts that are claimed, without the node `without`."""
    claims = {
        number: store.find_json(layout.claim(number)) for number in store.list_numbers(layout.attempts, above=above)
    }
    return [n for n, claim in claims.items() if claim is not None and without not in (claim.get("members") or ())]
