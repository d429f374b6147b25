"""How a run ended, as torch's agents return it: values and failures by global rank."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hpc_elastic.api.missing_nodes import read_missing_nodes
from hpc_elastic.codec import DecodeError, from_json
from hpc_elastic.errors import ExitCode, HpcElasticError, MissingNode, RendezvousTimeoutError, RunDirectoryError
from hpc_elastic.printable import printable
from hpc_elastic.rank_set import name_ranks
from hpc_elastic.rundir import records, store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import FailureRecord, RootCause
from hpc_elastic.rundir.states import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The end of a run; the fields that torch's RunResult has mean the same.

    All or nothing: `return_values` has every rank of a function's run that SUCCEEDED (None for one that left by
    `sys.exit(0)`) and is empty for scripts; `failures` has the ranks that failed in the last attempt of one that did
    not. `missing` has the nodes that did not join, where that ended the run. The rest is `result.json`'s,
    as docs/reference/run-directory.md says.
    """

    run_dir: str
    state: RunState
    return_values: Mapping[int, Any]
    failures: Mapping[int, FailureRecord]
    exit_code: int
    reason: str
    cause: str
    root_cause: RootCause | None = None
    attempts: int
    restarts: int
    nodes: tuple[str, ...]
    started: str | None
    ended: str
    missing: tuple[MissingNode, ...] = ()

    def is_failed(self) -> bool:
        """Return whether the state is FAILED; a run that was cancelled neither failed nor succeeded."""
        return self.state is RunState.FAILED


class RunFailed(HpcElasticError):  # noqa: N818 - it stands beside RunResult in the code of users
    """A run is over and did not succeed; the exit code is the run's.

    Args:
        name: the run's.
        result: how it ended.
        traceback: of the rank in the root cause, or that failed first, if it left one.
    """

    def __init__(self, name: str, result: RunResult, traceback: str | None) -> None:
        lines = [f"{name} {result.state.value}: {result.cause}"]
        if traceback:
            lines += ["", traceback.rstrip()]
        HpcElasticError.__init__(self, printable("\n".join(lines)), tip=f"the logs are in {result.run_dir}")
        self.name = name
        self.result = result
        self.traceback = traceback
        known = {int(code) for code in ExitCode}
        self.exit_code = ExitCode(result.exit_code) if result.exit_code in known else ExitCode.WORKERS_FAILED

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments to make it again: process pools pickle exceptions."""
        return type(self), (self.name, self.result, self.traceback)


class NodesMissing(RunFailed, RendezvousTimeoutError):  # noqa: N818 - as its base
    """A run is over because too few nodes joined; `missing` has each of the others, with its cause. Exit code 6."""

    def __init__(self, name: str, result: RunResult, traceback: str | None) -> None:
        RunFailed.__init__(self, name, result, traceback)
        self.missing = result.missing


class ReturnValuesError(RunDirectoryError):
    """What some ranks of a run that succeeded returned is missing, or cannot be unpickled here. Exit code 5.

    Args:
        problems: what is wrong with each of these ranks' values.
        result: how the run ended, with the values of all other ranks.
    """

    def __init__(self, problems: Mapping[int, str], result: RunResult) -> None:
        first, *others = problems.values()
        more = f"; {len(others)} more: {name_ranks(sorted(problems)[1:])}" if others else ""
        others_there = (
            f"the values of the other {len(result.return_values)} ranks are in `result.return_values` of this error"
        )
        super().__init__(f"{first}{more}", tip=others_there if result.return_values else None)
        self.problems = problems
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments to make it again: process pools pickle exceptions."""
        return type(self), (self.problems, self.result)


def read_result(layout: RunLayout, unwritten: Mapping[str, Any] | None = None) -> RunResult:
    """Return the result of a run that is over, with the values that its function returned.

    Args:
        layout: the run's.
        unwritten: what the result says if it could not be written.

    Raises:
        ReturnValuesError: a value is missing or cannot be unpickled here; it has the result with all others.
        RunDirectoryError: the run is not over.
    """
    data = store.read_json(layout.result) or unwritten
    try:
        record = from_json(records.RunResultRecord, data)
    except DecodeError as error:
        raise RunDirectoryError(f"{layout.result} is not a run's result: {error}") from error
    plan = store.find_json(layout.plan)
    before = str(plan.get("run_dir") or "") if isinstance(plan, dict) else ""
    files = {int(rank): os.path.join(layout.root, file) for rank, file in record.return_values.items()}
    values, problems = _unpickle_all(files)
    result = RunResult(
        run_dir=layout.root,
        state=record.state,
        return_values=values,
        failures={
            int(rank): replace(failure, error_file=layout.here(failure.error_file, before))
            for rank, failure in record.failures.items()
        },
        exit_code=record.exit_code,
        reason=record.reason,
        cause=record.cause,
        root_cause=record.root_cause,
        attempts=record.attempts,
        restarts=record.restarts,
        nodes=record.nodes,
        started=record.started,
        ended=record.ended,
        missing=read_missing_nodes(layout, record.written_by) if record.reason == "nodes_missing" else (),
    )
    if problems:
        raise ReturnValuesError(problems, result)
    return result


def raise_unless_succeeded(name: str, result: RunResult) -> RunResult:
    """Return the result if the run succeeded.

    Raises:
        NodesMissing: too few nodes joined; both a RunFailed and a RendezvousTimeoutError.
        RunFailed: the run did not succeed for another reason.
    """
    if result.state is not RunState.SUCCEEDED:
        error = NodesMissing if result.reason == "nodes_missing" else RunFailed
        raise error(name, result, _first_traceback(result))
    return result


def _unpickle_all(files: Mapping[int, str]) -> tuple[dict[int, Any], dict[int, str]]:
    """Return the values by rank, and for each that there is none of, why."""
    values, problems = {}, {}
    for rank, file in sorted(files.items()):
        try:
            with open(file, "rb") as stream:
                values[rank] = pickle.load(stream)
        except FileNotFoundError:
            why = "it was removed, or the rank ended its process itself (os._exit)"
            problems[rank] = f"what rank {rank} returned is missing: there is no {file}; {why}"
        except Exception as error:
            told = f"what rank {rank} returned cannot be unpickled here: {type(error).__name__}: {error}"
            why = f"it is in {file}; what it is made of must be importable here as on the nodes"
            problems[rank] = f"{told}; {why}"
    return values, problems


def _first_traceback(result: RunResult) -> str | None:
    """Return the traceback of the rank in the root cause, else that of the rank that failed first and left one."""
    cause = result.root_cause.rank if result.root_cause is not None else None
    for failure in sorted(result.failures.values(), key=lambda failure: (failure.rank != cause, failure.timestamp)):
        error: Any = store.find_json(failure.error_file) if failure.error_file else None
        try:
            text = str(error["message"]["extraInfo"]["py_callstack"])
        except (KeyError, TypeError):
            continue
        if text.strip():
            where = f"rank {failure.rank} on {failure.node}, attempt {failure.attempt}"
            return f"{where}:\n{text}"
    return None
