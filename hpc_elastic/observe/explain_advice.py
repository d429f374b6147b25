"""Says what a class of failure means in this run, and what to do about it; pure.

The table of classes has a phrase and an advice for each. Here stand the cases in which more is known than the class:
the signal, the place in the script, the words of an exception, whether stacks were taken, why the run ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from hpc_elastic.failures.classes import MEANINGS, FailureClass
from hpc_elastic.observe.diagnosis import JOB_CANCELLED, KILLED_BEFORE_NEXT_START, NAMED_BY_BASH_ENV
from hpc_elastic.observe.explain_facts import (
    ExplainFacts,
    attempt_after,
    frame_of,
    number_of,
    root_cause_of_attempt,
    text_of,
)
from hpc_elastic.rundir.allocation_ends import NOT_STARTED_AGAIN
from hpc_elastic.rundir.full_disk import describe_cure, tells_of_no_space
from hpc_elastic.rundir.states import RunState
from hpc_elastic.scheduler.slurm.words import find_tip

# By the result's reason, beside what the class of a failure advises.
_BY_REASON = {
    "no_progress": "mend the cause first: the same failure came again and again, so another run will meet it too",
    "nodes_missing": "read why each node did not join; lower nodes.min if the run can do with fewer nodes",
    "node_losses_used_up": "ask the administrator about these nodes; raise restart.max_node_losses if they are usual",
    "node_lost": "lower nodes.min, or ask for spare nodes, so that the next loss does not end the run",
    "setup_failed": "read the end of the script's output: the line that failed is there",
    "terminated": "if it was the time limit or preemption, let the run requeue itself then, or ask for more time",
    "time_limit": "ask for more time, or let the job be started again more often: requeue.max, requeue.on",
    "deadline": "submit the job file again with a later deadline, or less time: the script goes on from its checkpoint",
    "preempted": "let the job be started again more often (requeue.max, requeue.on), or use another partition",
    "exit_timeout": "look what the ranks that ran on did at the end; raise elastic.exit_timeout if they had work left",
    "run_directory": "look whether the run directory is on that node (srun -w NODE ls -ld DIRECTORY), or choose with "
    "--run-dir a folder that all nodes share; doctor tries that",
    "no_result": "read the ends of the agents' outputs, and ask whether the nodes were switched off or rebooted",
}
ENDED_EARLY = "had ended with exit code 0"  # in the line of a root cause: a rank that the others still needed
WAITED_APART = "they waited at different lines"  # in the line of a root cause: ranks that waited for each other
# What a signal means that is no class of its own, and what to do; all others come from outside, as far as is known.
_BY_SIGNAL = {
    "SIGILL": (
        "an instruction that the node's processor does not have",
        "compare the processors of the nodes: a library was built for a newer one than this node has",
    ),
    "SIGFPE": ("an arithmetic error in native code", "look for a division by zero in an extension"),
    "SIGXCPU": ("the limit of CPU time", "raise the limit of CPU time (ulimit -t) where the job or the site sets it"),
    "SIGXFSZ": ("the limit of a file's size", "raise the limit of file sizes (ulimit -f), or write smaller files"),
    "SIGALRM": (
        "an alarm, which nearly always the process has set itself",
        "look for signal.alarm or setitimer in the script and its libraries: nothing handled the alarm",
    ),
    "SIGINT": (
        "an interrupt, as of Ctrl-C",
        "look for KeyboardInterrupt, os.kill, raise_signal or interrupt_main in the script; else ask who sent it",
    ),
    "SIGPIPE": ("a pipe whose reader had ended", "look which program read what this rank wrote, and why it ended"),
}
# Of fork and clone: no more processes or threads.
_NO_PROCESSES = (
    r"Resource temporarily unavailable|[Cc]an't start new thread",
    (
        "start fewer processes and threads (data loader workers, OMP_NUM_THREADS), or raise their limit: ulimit -u, "
        "which Slurm passes on from where the job is submitted, or pids.max of the job's cgroup"
    ),
)
# The hub of Hugging Face, wandb, and what requests and Python say of any host that cannot be reached.
_NO_INTERNET = (
    r"huggingface\.co|\bLocalEntryNotFoundError\b|\bOfflineModeIsEnabled\b|Couldn't reach .* on the Hub|"
    r"Network is unreachable|[Nn]ame resolution|Name or service not known|Max retries exceeded|"
    r"\bCommError: Run initialization has timed out"
)
_GO_OFFLINE = (
    "look whether compute nodes of this cluster reach the internet at all; if not, download on the login node to a "
    "folder that they share (HF_HOME), and run offline: HF_HUB_OFFLINE=1, WANDB_MODE=offline in env"
)
# What to do about an exception, by a pattern of its type or message: the first that is found.
_BY_MESSAGE = (
    _NO_PROCESSES,
    # Before what says that memory is short: InfiniBand pins it.
    (
        r"ibv_reg_mr\w* failed .*Cannot allocate memory|ibv_create_\w+ failed .*Cannot allocate memory",
        "have the limit of locked memory raised on the nodes (ulimit -l, LimitMEMLOCK of slurmd): InfiniBand needs it",
    ),
    (
        r"Duplicate GPU detected",
        "give each rank a GPU of its own: torch.cuda.set_device(LOCAL_RANK), and as many GPUs as workers on the node",
    ),
    (
        r"Cannot re-initialize CUDA in forked subprocess",
        "start that process by spawn (multiprocessing_context='spawn' of a DataLoader), or use no GPU before the fork",
    ),
    (_NO_INTERNET, _GO_OFFLINE),
    (r"api_key not configured", "log in once on the login node (wandb login), or set WANDB_MODE=offline in env"),
    (r"Too many open files", "close files, or raise the limit (ulimit -n) in setup; data loader workers share it"),
    (
        r"\bMemoryError\b|[Cc]an't allocate memory|Cannot allocate memory",
        "ask for more memory (sbatch.mem) or use less, and look for a size that is far too large",
    ),
    (
        r"PytorchStreamReader|failed finding central directory",
        "go back to an older checkpoint: this file is torn; write to another name and rename, so that it cannot be",
    ),
    (r"size mismatch for|in loading state_dict", "the checkpoint is of another model: compare the configurations"),
    (
        r"DataLoader worker .* killed by signal: Killed",
        "look whether the node ran out of memory (dmesg, sacct): then use fewer data loader workers or ask for more",
    ),
    (
        r"DataLoader worker (?:.* )?exited unexpectedly",
        "run once with num_workers=0: then the exception itself is shown",
    ),
    (
        r"\bFileNotFoundError\b",
        "look whether the path is there on that node as well; relative ones begin in the folder of the job file",
    ),
    (r"\bPermissionError\b", "compare the owner and the mode of that file with the user of the job"),
    (r"loss is nan|is nan\b", "go back to an earlier checkpoint, and look at the learning rate and the data"),
    (
        r"\bConnectionRefusedError\b",
        "look whether the service that the script calls runs, and can be reached there",
    ),
    (
        r"Detected mismatch between collectives",
        "find out why these ranks call different collectives, or tensors of different shapes, at that place",
    ),
    (r"Unable to find address for", "set the name of the network interface for all nodes alike, or leave it out"),
)
# What to do about native code that gave up, by a pattern of the message.
_BY_ABORT = (
    (
        r"Received data size doesn't match expected size",
        "compare the tensors' shapes on all ranks; with TORCH_DISTRIBUTED_DEBUG=DETAIL torch names two that differ",
    ),
)
# What to do about a program that could not be started, by a pattern of the message.
_BY_START = (
    _NO_PROCESSES,
    (r"\bPermissionError: .*\.py'", "look who may read it, and at the rights of the folders above it"),
    (r"Permission denied", "make it executable (chmod +x), and look at the rights of the folders above it"),
    (r"No such file", "look whether it is there on that node; relative paths begin in the folder of the job file"),
    (
        r"Argument list too long",
        "shorten the arguments and the environment: 128 KiB for each, and for all a quarter of the stack limit",
    ),
    (r"neither a binary", "begin a script with a #! line; a binary has to be built for the nodes' processors"),
)
# The cause where the job, or the agents' step in it, was cancelled.
_BY_A_PERSON = re.compile(rf"{JOB_CANCELLED}|step \S+ of the job, in which the agents ran, was cancelled")
# The cause where the job had fewer nodes from its start.
_MADE_SMALLER = re.compile(r"the job has [0-9]+ nodes? \(.*\), and the run needs at least ")
# The cause where srun had no answer about the launch of an agent.
_LAUNCH_TIMED_OUT = re.compile(r"srun could not start the agents on .*Socket timed out")
# The cause where a line of setup is csh's, or has a word that bash does not know; and how bash names that word, after
# the number of a line, in any language: the line's own first word may be `source`, `if` or `cd`.
_SETUP_OF_CSH = re.compile(r"setup line failed \(status [0-9]+\): (?:setenv|unsetenv|source\s\S*\.csh)(?![^\s;])")
_SETUP_UNKNOWN = re.compile(r"setup line failed \(status 127\): ")
_NAMED_BY_BASH = re.compile(r".*[0-9]\D{0,4}[:\uff1a]\s?([A-Za-z_][\w.-]*)\s?[:\uff1a]")
_ENDED_THREAD = re.compile(r"Exception in thread (.{1,200}):$")  # threading.excepthook
_WORDS = frozenset(member.value for member in FailureClass)
_IN_A_ROW = 3  # failures on one node, where another node had one before
# What a node may be the reason of that no class says: memory with errors, a slow disk, another library.
_MAY_BE_OF_NODE = frozenset(
    {
        FailureClass.EXCEPTION,
        FailureClass.EXIT_CODE,
        FailureClass.SIGNAL,
        FailureClass.SEGMENTATION_FAULT,
        FailureClass.ABORTED,
        FailureClass.BUS_ERROR,
        FailureClass.IMPORT_ERROR,
        FailureClass.CUDA_ERROR,
        FailureClass.CUDA_ILLEGAL_ACCESS,
        FailureClass.STALLED,
        FailureClass.SILENT,
    }
)
_HANGS = ("stalled", "silent", "collective_timeout")


def meaning_of(facts: ExplainFacts, failure_class: str | None) -> str:
    """Return what a class means in this run, a phrase; empty for none, and for one that only a newer version knows.

    A success at `elastic.exit_timeout` (`elastic.after_exit_timeout: succeed`) is nothing that failed, so it has none.
    """
    if failure_class is None:
        return ""
    if _ends_with(facts, "exit_timeout"):
        return "" if _has_succeeded(facts) else "it ran on after the first rank had exited 0"
    if _ended_early(facts, failure_class):
        return "it ended before the ranks that still needed it"
    if _is_about_joins(facts, failure_class):
        return "a job of fewer nodes than the run needs" if _is_made_smaller(facts) else "nodes that did not join"
    if failure_class == FailureClass.OUT_OF_MEMORY.value and _ends_with(facts, "out_of_memory"):
        return "more memory than the job may have, for which the scheduler kills all of it"
    if failure_class == FailureClass.SIGNAL.value and (name := _signal(facts)) in _BY_SIGNAL:
        return _BY_SIGNAL[name][0]
    return MEANINGS[FailureClass(failure_class)].phrase if failure_class in _WORDS else ""


def advice_of(facts: ExplainFacts, failure_class: str | None) -> Iterable[str]:
    """Yield what to do, a sentence without capital and full stop each: about the failure, then about the run's end."""
    is_end = facts.snapshot.is_over and attempt_after(facts.snapshot, facts.attempt) is None
    full = _tells_of_no_space(facts) if is_end else ""
    is_for_want_of_space = bool(full)
    _, is_refused, refusal = (facts.snapshot.cause or "").partition(f"{NOT_STARTED_AGAIN}: ")
    if is_end and not is_for_want_of_space and is_refused:
        if tip := find_tip(refusal):
            yield tip
        yield "mend what Slurm refuses, and submit the job file again: the script goes on from its last checkpoint"
        return
    if is_end and KILLED_BEFORE_NEXT_START in (facts.snapshot.cause or ""):
        yield "submit the job file again: the script goes on from its last checkpoint"
        yield (
            "have the workers save in less time after a TERM, or ask the administrator for a larger KillWait: the next "
            "start is asked for between their end and Slurm's KILL"
        )
        return
    is_agents = is_for_want_of_space and failure_class == FailureClass.AGENT_LOST.value
    about = "" if is_agents else _about_failure(facts, failure_class)
    yield from filter(None, [about, _about_node(facts, failure_class)])
    if is_for_want_of_space:
        yield f"{describe_cure(full)}, or choose another place with --run-dir, and submit the job again"
    elif facts.is_scancelled or _BY_A_PERSON.match(facts.snapshot.cause or ""):
        return  # by a person, and nothing has to be found out
    elif is_end and NAMED_BY_BASH_ENV in (facts.snapshot.cause or ""):
        yield "have that file neither exit nor `exec` in scripts, or submit with `env -u BASH_ENV hpc-elastic submit`"
    elif is_end and _is_made_smaller(facts):
        yield (
            "lower nodes.min, or submit the job file again: somebody has made the job smaller while it waited "
            "(scontrol update NumNodes), or has submitted its script with another number (sbatch --nodes)"
        )
    elif is_end and facts.is_foreground and facts.snapshot.reason == "terminated":
        yield (
            "keep the allocation until the run is over: it ended because its shell was left, because its time was up, "
            "or by scancel; a run of `hpc-elastic submit` has a job of its own, which is started again"
        )
    elif is_end and not _has_succeeded(facts):
        advice = _about_setup(facts) or _BY_REASON.get(facts.snapshot.reason or "", "")
        yield from filter(None, [advice])


def _about_setup(facts: ExplainFacts) -> str:
    """Return what to do about a line of setup that works in the user's login shell; empty if nothing says so."""
    if _SETUP_OF_CSH.search(facts.snapshot.cause or ""):
        return (
            "write the line in bash, which runs setup whatever your login shell is: `export NAME=value` for setenv, "
            "`source bin/activate` for activate.csh"
        )
    if word := _find_unknown(facts):
        return (
            f"`{word}` is no command or function of the bash that runs setup, which reads no start-up files "
            "(/etc/profile, ~/.bashrc, ~/.cshrc): begin setup with the line that defines it there, as `source "
            "/etc/profile` does on most clusters for `module`"
        )
    return ""


def _find_unknown(facts: ExplainFacts) -> str:
    """Return the word of which bash said, just before a line of setup failed, that it is no command; else empty."""
    for shown in facts.excerpts:
        for before, line in pairwise(shown.lines):
            if _SETUP_UNKNOWN.search(line) and (named := _NAMED_BY_BASH.match(before)):
                return named[1]
    return ""


def _tells_of_no_space(facts: ExplainFacts) -> str:
    """Return what an agent, or the reader of it, says of a run directory without space; empty if neither does."""
    complaint = facts.snapshot.cause if facts.snapshot.reason == "agent_failed" else None
    return "; ".join(text for text in (complaint, facts.snapshot.note) if text and tells_of_no_space(text))


def _is_about_joins(facts: ExplainFacts, failure_class: str | None) -> bool:
    """Return whether nodes did not join the others; ranks that found no process group are another matter."""
    return failure_class == FailureClass.RENDEZVOUS.value and facts.culprit is None


def _is_made_smaller(facts: ExplainFacts) -> bool:
    return _MADE_SMALLER.match(facts.snapshot.cause or "") is not None


def _about_failure(facts: ExplainFacts, failure_class: str | None) -> str:
    if failure_class not in _WORDS or _ends_with(facts, "exit_timeout") or _is_about_joins(facts, failure_class):
        return ""
    if failure_class == FailureClass.NODE_LOST.value and _LAUNCH_TIMED_OUT.search(facts.snapshot.cause or ""):
        return (
            "ask the administrator about slurmd on the node, and how long its prolog takes: without PrologFlags=Alloc "
            "it has MessageTimeout; a line of setup can wait for it: for i in 1 2 3 4 5 6; do srun true && break; done"
        )
    frame = frame_of(facts)
    if _ended_early(facts, failure_class):
        return (
            "find out why it ended before the others: fewer batches, a return, another branch; every rank has to call "
            "each collective equally often"
        )
    if failure_class == FailureClass.SIGNAL.value and (name := _signal(facts)) in _BY_SIGNAL:
        return _BY_SIGNAL[name][1]
    if failure_class in _HANGS:
        return _about_hang(facts, failure_class)
    message = facts.culprit.message if facts.culprit is not None else ""
    if failure_class == FailureClass.EXIT_CODE.value and frame and message.startswith("faulthandler."):
        return f"find out what it waited for at {frame}; the stacks of its other threads are in its standard error"
    if failure_class == FailureClass.EXIT_CODE.value and frame:
        return f"look why the script exits at {frame}"
    if failure_class == FailureClass.EXIT_CODE.value and message and not message.startswith("exit code"):
        return "read the end of its standard error: the program that gave up says why there"
    patterns = {
        FailureClass.EXCEPTION.value: _BY_MESSAGE,
        FailureClass.START_FAILED.value: _BY_START,
        FailureClass.ABORTED.value: _BY_ABORT,
    }
    for pattern, words in patterns.get(failure_class or "", ()):
        if re.search(pattern, message):
            return words
    begin = f"begin at {frame}, the innermost line of your own code" if frame else ""
    is_exception = failure_class in (FailureClass.EXCEPTION.value, FailureClass.CUDA_ERROR.value)
    return begin if is_exception and begin else _of_class(facts, FailureClass(failure_class))


def _about_node(facts: ExplainFacts, failure_class: str | None) -> str:
    """Return what to do if attempt after attempt failed on one of several nodes, each time of another of its ranks."""
    if failure_class not in _MAY_BE_OF_NODE:
        return ""
    ranks: list[int | None] = []
    node, is_elsewhere = "", False
    for attempt in reversed([each for each in facts.snapshot.attempt_history if each.number <= (facts.attempt or 0)]):
        cause = root_cause_of_attempt(facts.snapshot, attempt.number)
        node = node or text_of(cause, "node")
        if not node or text_of(cause, "node") != node or len(attempt.nodes) < 2:
            is_elsewhere = text_of(cause, "node") not in ("", node)
            break
        ranks.append(number_of(cause, "rank"))
    if len(set(ranks)) < 2:  # one rank, whose part of the data or of the model may be the reason
        return ""
    if is_elsewhere and len(ranks) < _IN_A_ROW:  # of two failures on few nodes the second is often where the first was
        return ""
    only = "" if is_elsewhere else ", and none on another node"
    return (
        f"look what is different on {node}: {len(ranks)} attempts in a row failed there, in different ranks{only}; "
        f"sbatch: {{exclude: {node}}} leaves it out"
    )


def _of_class(facts: ExplainFacts, failure_class: FailureClass) -> str:
    """Return the advice of the table, but not to read an error file that is shown already, or is not there."""
    if (
        failure_class is FailureClass.DISK_FULL
        and facts.culprit is not None
        and "no inode left" in facts.culprit.detail
    ):
        return "delete files there: there is room for data, and for no other file (`df -i`)"
    advice = MEANINGS[failure_class].advice
    is_shown = any(excerpt.path.endswith("error.json") for excerpt in facts.excerpts)
    is_there = any(path.endswith("error.json") for path in facts.files)
    return advice if "error.json" not in advice or (is_there and not is_shown) else ""


def _about_hang(facts: ExplainFacts, failure_class: str | None) -> str:
    if failure_class == FailureClass.SILENT.value and (thread := _ended_thread(facts)):
        return f"mend the exception above that ended the thread {thread}: its rank most likely waited for it for ever"
    line = text_of(root_cause_of_attempt(facts.snapshot, facts.attempt), "line")
    if not facts.stacks and WAITED_APART in line:
        return (
            "compare the lines at which they waited: every rank has to call the same collectives, in the same order "
            "and equally often"
        )
    if not facts.stacks:
        return (
            "nothing says where the ranks were: set stall_timeout and call heartbeat in the script, then the stacks of "
            "all ranks are taken at a hang; or call `hpc-elastic stacks` while it hangs"
        )
    if failure_class == FailureClass.STALLED.value and facts.culprit is not None:
        at = f" at {frame}" if (frame := frame_of(facts)) else ""
        return f"find out what rank {facts.culprit.rank} waited for{at}; the stacks above say where the others were"
    if all(group.where.is_waiting for group in facts.stacks):
        return "compare the stacks: every rank waits, so they have called their collectives in different orders"
    return "look at the ranks that do not wait for others: the stacks say where they were"


def _ended_thread(facts: ExplainFacts) -> str:
    """Return the name of the last thread that an exception ended, by the shown ends of standard error; "" for none."""
    heads = (_ENDED_THREAD.match(line) for shown in facts.excerpts for line in shown.lines)
    return next((found[1] for found in reversed([*heads]) if found), "")


def _ended_early(facts: ExplainFacts, failure_class: str | None) -> bool:
    line = text_of(root_cause_of_attempt(facts.snapshot, facts.attempt), "line")
    return failure_class == FailureClass.SILENT.value and ENDED_EARLY in line


def _ends_with(facts: ExplainFacts, reason: str) -> bool:
    """Return whether this attempt is the last one, and the run ended for this reason."""
    snapshot = facts.snapshot
    return snapshot.is_over and snapshot.reason == reason and attempt_after(snapshot, facts.attempt) is None


def _has_succeeded(facts: ExplainFacts) -> bool:
    return facts.snapshot.state is RunState.SUCCEEDED


def _signal(facts: ExplainFacts) -> str:
    return (facts.culprit.signal_name if facts.culprit else None) or ""
