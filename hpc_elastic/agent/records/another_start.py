"""Has the scheduler start a job again, however long its controller is away at that moment; blocks.

A controller that is restarted, upgraded or busy answers nothing for a minute or more, and what its commands say then is
not always that (scontrol 22.05: "Unexpected message received"). So a refusal counts only if the scheduler answers
another question before and after it; else it is asked again. To ask twice does no harm: a job that waits to start again
is not requeued once more, and of two jobs that were submitted in the place of one, the second is refused by the first.

A refusal for now (too many jobs in the queue, a partition that is drained) counts only when this job's own time is
nearly over, or after the same ten minutes: other jobs may end before, and the partition may be up again.

A job that is cancelled meanwhile is not asked for again: Slurm would start it again as long as it ends (22.05).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hpc_elastic.agent.records.journal import Journal

# About ten minutes: a controller that restarts, or whose place another one takes, is back by then; the nodes idle.
PAUSES_S = (1.0, 2.0, 5.0, *[10.0] * 60)


def ask_for_another_start(
    journal: Journal,
    *,
    say: Callable[[str], None],
    pauses_s: Sequence[float] = PAUSES_S,
    avoid: Sequence[str] | None = None,
    is_by_another_job: bool = False,
) -> str:
    """Have the job started again; return why it is not, empty if it is, or was already.

    Args:
        journal: the run directory, and the scheduler.
        say: takes a line for people, once, if the scheduler does not answer, or refuses for now.
        pauses_s: the pauses in seconds after each such try; after the last one this gives up.
        avoid: the nodes that the next start is to avoid; None: those that the records name.
        is_by_another_job: have another job submitted, also where the plan has this one requeued.

    Raises:
        RunDirectoryError: the run directory cannot be read or written.
    """
    has_answered = (is_requeued := journal.next_start.is_requeued()) is not None
    was_signalled = journal.next_start.is_cancelled()
    for number, pause_s in enumerate((*pauses_s, None)):
        if number and not was_signalled and journal.next_start.is_cancelled():
            return "a person has cancelled the job"
        if is_requeued or not (refusal := journal.next_start.start_again(avoid, is_by_another_job=is_by_another_job)):
            return ""
        did_answer, is_requeued = has_answered, journal.next_start.is_requeued()
        has_answered = is_requeued is not None
        is_passing = journal.next_start.may_be_accepted_later()
        is_answer = did_answer and has_answered and not is_passing
        if is_requeued:
            return ""
        if is_answer or pause_s is None or not journal.next_start.may_answer_later():
            return refusal
        journal.requests()
        if journal.is_end_wanted:
            return "a person has asked for the end of the run"
        if number == 0:
            until = "asking until the scheduler answers whether the job starts again"
            again = "Slurm refuses the next job for now; asking again while this one has the time"
            say(f"{again if is_passing else until}: {refusal}")
        time.sleep(pause_s)
    return refusal
