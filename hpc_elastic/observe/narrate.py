"""Describes in lines what happened to a run between two snapshots; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from shlex import quote

from hpc_elastic.hostlist import name_some
from hpc_elastic.observe.facts import AttemptFacts
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.rundir.states import RunState
from hpc_elastic.useful_time.division import TimeUse
from hpc_elastic.useful_time.reading import UsefulTime

PROLOG = "Prolog"  # Slurm's reason for a job that has its nodes, and no more yet (PrologFlags=Alloc)
STOPPED = ("SUSPENDED", "STOPPED")  # Slurm's words for a job that keeps its nodes and does nothing
_NODES_SHOWN = 6
_REASONS_SHOWN = 3
NO_LIMIT = 1_000_000_000  # a plan's value for no limit: another program, such as torchrun, counts instead


def narrate_state(previous: Snapshot | None, current: Snapshot) -> list[str]:
    """Return a line if the run's state has changed, with the scheduler's reason; and one for a new note or notice."""
    lines = []
    if not current.is_over and (previous is None or describe_state(previous) != describe_state(current)):
        lines.append(describe_state(current))
    if current.note and (previous is None or previous.note != current.note):
        lines.append(current.note)
    if current.notice and (previous is None or previous.notice != current.notice):
        lines.append(f"notice at {current.notice}")
    return lines


def describe_state(snapshot: Snapshot) -> str:
    """Return the state with its reason or its nodes: `PENDING (Resources)`, `RUNNING on node[1-4]`.

    Of a job that the scheduler has stopped for a while it is `RUNNING (SUSPENDED) on node[1-4]`, and of one on whose
    nodes a prolog runs before its script begins `RUNNING (Prolog) on node[1-4]`.
    """
    if snapshot.wait.reason:
        return f"{snapshot.state.value} ({snapshot.wait.reason})"
    if snapshot.state.value == "RUNNING" and snapshot.job_nodes:
        word = snapshot.job_state if snapshot.job_state in STOPPED else PROLOG if is_in_prolog(snapshot) else ""
        return f"RUNNING{f' ({word})' if word else ''} on {snapshot.job_nodes}"
    return snapshot.state.value


def is_in_prolog(snapshot: Snapshot) -> bool:
    """Return whether Slurm has given the job its nodes, and a prolog runs there before the script begins."""
    return snapshot.state.value == "RUNNING" and snapshot.job_reason == PROLOG


def describe_counts(counts: Mapping[RunState, int]) -> str:
    """Return how many runs are in each state: `6 SUCCEEDED, 1 RUNNING`."""
    return ", ".join(f"{number} {state.value}" for state, number in counts.items()) or "no tasks"


def describe_parameters(parameters: Mapping[str, str]) -> str:
    """Return the values of an array's parameters in one run: `lr=1e-3 seed=0`."""
    return " ".join(f"{name}={value}" for name, value in parameters.items())


def narrate_attempt(attempt: AttemptFacts, earlier: AttemptFacts | None, snapshot: Snapshot) -> str:
    """Return the line about an attempt that was opened: its world, and the reason for it."""
    world = f"{count(attempt.workers, 'worker')} on " if attempt.workers else ""
    line = f"attempt {attempt.number}: {world}{describe_nodes(attempt.nodes)}"
    if attempt.roles:
        line = f"attempt {attempt.number}: the workers of {' and '.join(attempt.roles)} start again"
    if earlier is None:
        return line
    if attempt.restarts > earlier.restarts:
        line += f"; restart {of_limit(attempt.restarts, snapshot.max_restarts)}"
    if attempt.node_losses > earlier.node_losses:
        line += f"; node loss {of_limit(attempt.node_losses, snapshot.max_node_losses)}"
    return f"{line}; after: {attempt.reason}" if attempt.reason else line


def narrate_end(snapshot: Snapshot, run: str | None = None) -> list[str]:
    """Return the last lines: how it ended and why, and where to look; `run` names the run in the commands."""
    code = f" (exit code {snapshot.exit_code})" if snapshot.exit_code else ""
    return [
        f"{snapshot.state.value}{code}: {snapshot.cause or 'no cause was recorded'}",
        *(f"see: {line}" for line in where_to_look(snapshot, run)),
    ]


def where_to_look(snapshot: Snapshot, run: str | None = None) -> list[str]:
    """Return the commands and paths with which a person can find out more; `run` names the run in the commands."""
    run = quote(run or snapshot.job_id or snapshot.run_dir)
    if not snapshot.is_over:
        return [f"hpc-elastic logs {run} --follow", f"hpc-elastic cancel {run}"]
    if snapshot.state.value == "SUCCEEDED":
        return [f"hpc-elastic logs {run}"]
    why = f"hpc-elastic explain {run}"
    rank = _rank_of_cause(snapshot)
    if has_no_logs(snapshot):
        return [why, f"{snapshot.run_dir}/"]
    if rank is not None:
        path = snapshot.failures.get(rank, {}).get("error_file")
        return [why, f"hpc-elastic logs {run} --rank {rank}", *([path] if isinstance(path, str) else [])]
    return [why, f"hpc-elastic logs {run}", f"{snapshot.run_dir}/"]


def has_no_logs(snapshot: Snapshot) -> bool:
    """Return whether a run was cancelled before its first start, so that `logs` has nothing to show."""
    return snapshot.state is RunState.CANCELLED and not snapshot.allocations and not snapshot.attempts


def _rank_of_cause(snapshot: Snapshot) -> str | None:
    """Return the rank that the result's root cause names; without one the rank that failed first, None without any."""
    rank = (snapshot.root_cause or {}).get("rank")
    if isinstance(rank, int):
        return str(rank)
    times = {key: failure.get("timestamp") for key, failure in snapshot.failures.items()}
    return min(times, key=lambda key: moment if isinstance(moment := times[key], (int, float)) else 0.0, default=None)


def unix_time(text: str | None) -> float | None:
    """Return a record's time in Unix seconds; None if it is none."""
    try:
        moment = datetime.strptime(text or "", "%Y-%m-%dT%H:%M:%S.%fZ")
    except ValueError:
        return None
    return moment.replace(tzinfo=timezone.utc).timestamp()


def describe_nodes(nodes: Sequence[str]) -> str:
    """Return `2 nodes (node1, node2)`; of many nodes only the first are named."""
    if not nodes:
        return "no node yet"
    names = ", ".join(nodes[:_NODES_SHOWN])
    return f"{count(len(nodes), 'node')} ({names}{', ...' if len(nodes) > _NODES_SHOWN else ''})"


def waiting_rows(waiting: Sequence[str], awaited: Sequence[str]) -> list[tuple[str, str]]:
    """Return the label and the text of the nodes that are here and not at work, and of those that they wait for.

    Spares are the first only where nobody is waited for: before an attempt they are all that have joined.
    """
    rows = (("joined" if awaited else "spares", waiting), ("waiting for", awaited))
    return [(label, describe_nodes(nodes)) for label, nodes in rows if nodes]


def describe_set_aside(set_aside: Mapping[str, str]) -> str:
    """Return `node3 (drained by ada@login1)`; of many nodes only the first are named."""
    shown = [f"{node} ({why})" if why else node for node, why in list(set_aside.items())[:_NODES_SHOWN]]
    return ", ".join([*shown, "..."] if len(set_aside) > _NODES_SHOWN else shown)


def describe_left_out(left_out: Mapping[str, str]) -> str:
    """Return `node2, node3: cannot take part: no /data`, by reason; of many only the first, and how many nodes more."""
    by_reason: dict[str, list[str]] = {}
    for node, why in left_out.items():
        by_reason.setdefault(why, []).append(node)
    shown = list(by_reason.items())[:_REASONS_SHOWN]
    told = [f"{name_some(nodes)}: {why}" if why else name_some(nodes) for why, nodes in shown]
    more = len(left_out) - sum(len(nodes) for _, nodes in shown)
    return "; ".join([*told, f"and {more} more"] if more else told)


def of_limit(number: int, limit: int | None) -> str:
    """Return `1 of 3`, or `1` if the limit is unknown or there is none."""
    return f"{number}" if limit is None or limit >= NO_LIMIT else f"{number} of {limit}"


def count(number: int | None, noun: str) -> str:
    """Return the number with the noun in singular or plural: `1 worker`, `8 workers`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def describe_duration(seconds: float) -> str:
    """Return a duration for people, in its two largest units: `45 s`, `2 min 3 s`, `3 h 20 min`, `2 d 4 h`."""
    left = max(0, int(seconds))
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        number, left = divmod(left, size)
        parts.append((number, unit))
    first = next((at for at, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return " ".join(
        f"{number} {unit}" for number, unit in parts[first : first + 2] if number or unit == parts[first][1]
    )


def describe_useful_time(useful_time: UsefulTime) -> str:
    """Return the useful share of a run's allocations and the largest of what else their time went to; one sentence."""
    seconds, share = useful_time.seconds, useful_time.share
    if useful_time.forbidden:
        return f"not known: {useful_time.forbidden[0]} cannot be read: Permission denied"
    if share is None:
        return ""
    whole = sum(seconds.values())
    others = sorted(((used, use) for use, used in seconds.items() if use is not TimeUse.TRAINING), reverse=True)
    told = [f"{use.value} {100 * used / whole:.0f} %" for used, use in others if used >= 0.005 * whole]
    known = "" if useful_time.has_repeats else "; repeated steps are not known without heartbeat(step)"
    return f"{100 * share:.0f} % of {describe_duration(whole)}{''.join(f', {each}' for each in told)}{known}"
