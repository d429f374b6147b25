"""Chooses the run that a verb may stop: the one that is named without doubt, or a person's choice on the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hpc_elastic.api.find import NONE_HERE, find_to_stop, layout_of
from hpc_elastic.api.known_runs import is_of_this_folder
from hpc_elastic.api.look_at_many import look_at_many
from hpc_elastic.cli.look import warn
from hpc_elastic.errors import UsageError
from hpc_elastic.observe.array import ArraySnapshot
from hpc_elastic.observe.narrate import count
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.printable import printable
from hpc_elastic.rundir.index import IndexEntry
from hpc_elastic.rundir.layout import ArrayLayout, RunLayout


def choose_to_stop(wanted: str | None, verb: str = "cancel") -> RunLayout | ArrayLayout:
    """Return the run or array that the user wants to stop; ask if that is not certain.

    Args:
        wanted: the user's argument.
        verb: what is to be done with the run, for the question.

    Raises:
        UsageError: there is none of this name, nobody can be asked which one is meant, or the answer was none.
        RunDirectoryError: the path exists and is no run.
    """
    found = find_to_stop(wanted)
    if isinstance(found, (RunLayout, ArrayLayout)):
        return found
    is_meant = wanted is not None or is_of_this_folder(found[0])
    left = [entry for entry in found if not _has_results(entry)]
    if is_meant and len(left) <= 1:
        return layout_of((left or found)[0])
    looked_at = look_at_many(left, warn=warn)
    unread = looked_at.count(None)  # the user may mean one of these as well
    seen = [item for item in looked_at if item is not None and not item.is_over]
    if is_meant and (not seen or (len(seen) == 1 and not unread)):
        return _layout(seen[0]) if seen else layout_of(found[0])
    if not seen:
        raise UsageError(f"{NONE_HERE}, and all others are over", tip="`hpc-elastic list` shows the runs")
    whose = f" of the name {wanted}" if wanted is not None else " of this folder" if is_meant else ""
    are = "is" if len(seen) == 1 else "are"
    problem = f"{count(len(seen), 'run')}{whose} {are} not over" + f", and {unread} cannot be read" * bool(unread)
    problem = problem if is_meant else f"{NONE_HERE}; elsewhere {problem}"
    return _layout(_ask(problem, seen, verb))


def _has_results(entry: IndexEntry) -> bool:
    """Return whether the run, or every task of the array, has its result; to know more would cost a query."""
    layout = layout_of(entry)
    runs = [layout.task(number) for number in range(entry.tasks)] if isinstance(layout, ArrayLayout) else [layout]
    return all(_is_written(run.result) for run in runs)


def _is_written(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def _layout(seen: Snapshot | ArraySnapshot) -> RunLayout | ArrayLayout:
    return ArrayLayout(seen.run_dir) if isinstance(seen, ArraySnapshot) else RunLayout(seen.run_dir)


def _ask(problem: str, seen: Sequence[Snapshot | ArraySnapshot], verb: str) -> Snapshot | ArraySnapshot:
    """Ask the person at the terminal to choose one of these runs.

    Raises:
        UsageError: there is no terminal, or the answer was none of them.
    """
    from hpc_elastic.observe.present import plain_list

    header, *rows = plain_list(seen).splitlines()
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        shown = "\n".join(["", *(f"  {line}" for line in (header, *rows))])
        ids = [item.job_id for item in seen]
        name = ids[0] if ids[0] and ids.count(ids[0]) == 1 else seen[0].run_dir  # a job may have several runs
        raise UsageError(problem + shown, tip=f"name one of them: `hpc-elastic {verb} {name}`")
    lines = [f"     {header}", *(f"{number:>3}  {row}" for number, row in enumerate(rows, start=1))]
    question = f"{verb} it? [y/N] " if len(seen) == 1 else f"which one? [1-{len(seen)}, or Enter for none] "
    print(printable("\n".join([f"{problem}:", *lines, question])), end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip().lower()
    chosen = {"y": 1, "yes": 1}.get(answer) if len(seen) == 1 else int(answer) if answer.isdecimal() else None
    if chosen is None or not 1 <= chosen <= len(seen):
        raise UsageError("none was chosen, and nothing was done", tip=f"`hpc-elastic {verb} RUN` names the run")
    return seen[chosen - 1]
