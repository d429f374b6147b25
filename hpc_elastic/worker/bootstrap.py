"""Prepares a worker process and then runs the user's program in it.

    PYTHON <package>/launch.py hpc_elastic.worker.bootstrap --parent PID [--deadline DESCRIPTOR]
        [--heartbeat DESCRIPTOR --stack DESCRIPTOR] [--state DESCRIPTOR --node-state DESCRIPTOR]
        (--script PATH | --module NAME | --command PROGRAM | --function FILE) [--] ARGUMENTS...

A spawned worker is started by this command; a fork of the fork server calls `run`. The agent, process PID, has made the
session, the environment, the working directory and the three standard files. Here the process ties its
life to the agent's, ends if the node's deadline has passed meanwhile, takes its slot of the heartbeats' memory
and the memory for its training states, and then is, for the code it runs, what `python PATH`, `python -m NAME` or
`PROGRAM` would be; or, as in `python -c`, it calls the run's function. An exception that ends it is written to
`TORCHELASTIC_ERROR_FILE` before Python prints it, and told to the agent then. What ends a process
otherwise, `sys.exit`, `os._exit` or a signal (SIGINT too, which Python makes a KeyboardInterrupt of), is
the agent's to record; of `sys.exit` and KeyboardInterrupt it is told, because a stop may come before their end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpc_elastic import state_memory
from hpc_elastic.cpu_binding import bind_this_process
from hpc_elastic.death_signal import die_if_late, die_with_parent
from hpc_elastic.heartbeat_memory import NOTICE_SIGNAL, VARIABLE
from hpc_elastic.worker import heartbeat_writer, main_module, rank_state
from hpc_elastic.worker.closing import tell_before_closing
from hpc_elastic.worker.command import become
from hpc_elastic.worker.dispositions import dump_stack_if_killed, ignore_in_children, take_back_ignored
from hpc_elastic.worker.ending import Ending
from hpc_elastic.worker.exception_texts import settle_exit
from hpc_elastic.worker.failure import ErrorReporter
from hpc_elastic.worker.function_call import FunctionCall
from hpc_elastic.worker.own_finder import install_own_finder
from hpc_elastic.worker.stack_signal import write_stacks_at_signal
from hpc_elastic.worker.uncaught import show_as_users_own, without_own_frames

KINDS = ("--script", "--module", "--command", "--function")
CANNOT_OPEN = 2  # the exit code of `python missing.py`


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The program to run: one of KINDS, its name, and the user's arguments."""

    kind: str
    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ties:
    """What ties a worker to its agent: the agent's process id (0: not checked), and descriptors, None: not given.

    `deadline` is of the memory with the node's deadline, `heartbeat` of that of its workers' heartbeats, `stack` of the
    file for this worker's stacks, `state` of the memory for its training states, `node_state` of that of local rank 0.
    """

    parent: int
    deadline: int | None = None
    heartbeat: int | None = None
    stack: int | None = None
    state: int | None = None
    node_state: int | None = None


_OPTIONS = ("--deadline", "--heartbeat", "--stack", "--state", "--node-state")  # as Ties names them, in this order


def parse_arguments(arguments: Sequence[str]) -> tuple[Ties, Target]:
    """Read the command line above, which only agents write.

    Raises:
        SystemExit: the command line is not of that form.
    """
    rest = list(arguments)
    parent = take_number(rest, "--parent")
    found = {_field_of(name): take_number(rest, name) for name in _OPTIONS}
    kind = "".join(rest[:1])
    if parent is None or kind not in KINDS or len(rest) < 2:
        options = " ".join(f"[{name} DESCRIPTOR]" for name in _OPTIONS)
        form = f"--parent PID {options} {'|'.join(KINDS)} X"
        sys.exit(f"hpc-elastic: the worker bootstrap was given {list(arguments)}, not {form}")
    _, name, *words = rest
    words = words[1:] if words[:1] == ["--"] else words
    return Ties(parent=parent, **found), Target(kind=kind, name=name, arguments=tuple(words))


def _field_of(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def take_number(words: list[str], option: str) -> int | None:
    """Remove `option NUMBER` from the beginning of the arguments, if it is there, and return the number."""
    if len(words) < 2 or words[0] != option or not words[1].isdigit():
        return None
    number = int(words[1])
    del words[:2]
    return number


def format_arguments(ties: Ties, target: Target) -> list[str]:
    """Return the arguments of `launch.py` that start such a worker."""
    given = {name: getattr(ties, _field_of(name)) for name in _OPTIONS}
    options = [word for name, number in given.items() if number is not None for word in (name, str(number))]
    return [
        "hpc_elastic.worker.bootstrap",
        "--parent",
        str(ties.parent),
        *options,
        target.kind,
        target.name,
        "--",
        *target.arguments,
    ]


def main(arguments: Sequence[str]) -> int:
    """Run a spawned worker; return its exit code, or let its exception through."""
    ties, target = parse_arguments(arguments)
    die_with_parent(ties.parent)
    take_back_ignored()
    set_command_line(target)
    return run(target, Ending(), ties)


def set_command_line(target: Target) -> None:
    """Set `sys.argv` and `sys.orig_argv` as Python does if it is given the target; call it once."""
    if target.kind == "--module":
        main_module.set_command_line(target.arguments, target=["-m", target.name])
    elif target.kind == "--script":
        main_module.set_command_line(target.arguments, target=[target.name])
    elif target.kind == "--function":
        main_module.set_command_line((), target=["-c"])


def run(target: Target, ending: Ending, ties: Ties) -> int:
    """Run the user's program in a process that is set up; return its exit code, or let its exception through.

    Args:
        target: what to run.
        ending: the first atexit function of this process.
        ties: descriptors that the process takes over: that of the deadline is read once and closed.
    """
    die_if_late(ties.deadline)
    bind_this_process(os.environ)
    reporter = ErrorReporter.from_environment(os.environ)
    take_heartbeat(target, ties)
    take_state(target, ties)
    ending.begin()
    if target.kind == "--command":
        return become(target.name, target.arguments, reporter)
    dump_stack_if_killed()
    tell_before_closing(reporter)
    if target.kind == "--module":
        _run(lambda: main_module.run_module(target.name), reporter, ending, afterwards=lambda: None)
    elif target.kind == "--function":
        function = FunctionCall.from_environment(target.name, os.environ)
        main_module.make_empty_main()
        _run(function.call, reporter, ending, afterwards=lambda: None)
    else:
        _run_script(target.name, reporter, ending)
    return 0


def take_heartbeat(target: Target, ties: Ties) -> None:
    """Let this process beat for its rank; a command gets the descriptors, and a variable that names them."""
    if ties.heartbeat is None or ties.stack is None:
        return
    number = os.environ["LOCAL_RANK"]
    if target.kind == "--command":
        for descriptor in (ties.heartbeat, ties.stack):
            os.set_inheritable(descriptor, True)
        os.environ[VARIABLE] = f"{ties.heartbeat}:{number}:{ties.stack}"
        return
    install_own_finder()
    slot = heartbeat_writer.begin(ties.heartbeat, int(number))
    os.close(ties.heartbeat)
    write_stacks_at_signal(ties.stack, slot)
    ignore_in_children(slot[NOTICE_SIGNAL])


def take_state(target: Target, ties: Ties) -> None:
    """Let this process keep its training state in memory; a command gets the descriptors, and a variable for them."""
    if ties.state is None or ties.node_state is None:
        return
    if target.kind == "--command":
        for descriptor in (ties.state, ties.node_state):
            os.set_inheritable(descriptor, True)
        os.environ[state_memory.VARIABLE] = f"{ties.state}:{ties.node_state}:{state_memory.world_name()}"
        return
    rank_state.begin(ties.state, ties.node_state)


def _run_script(path: str, reporter: ErrorReporter, ending: Ending) -> None:
    """Run a script; hand a file that cannot be one over to a plain Python, which reports the error itself."""
    try:
        code = main_module.compile_script(path)
    except OSError as error:
        reporter.report_start_failure(error, exit_code=CANNOT_OPEN)
        code = None
    except Exception as error:
        error.__traceback__ = None
        reporter.report_exception(error)
        code = None
    if code is None:
        main_module.hand_over_to_python()
    module = main_module.make_script_main(path)
    _run(lambda: exec(code, module.__dict__), reporter, ending, afterwards=lambda: main_module.forget_script(module))


def _run(run: Callable[[], None], reporter: ErrorReporter, ending: Ending, *, afterwards: Callable[[], None]) -> None:
    try:
        run()
    except SystemExit as error:
        settle_exit(error)
        reporter.tell_failing(error)
        ending.set_exit_code(error)
        raise
    except BaseException as error:
        error.__traceback__ = without_own_frames(error.__traceback__)
        is_failure = not isinstance(error, KeyboardInterrupt)
        if is_failure:
            reporter.report_exception(error)
        else:
            reporter.tell_failing(error)
        when_shown = reporter.tell_agent if is_failure else None
        show_as_users_own(error, set_exit_code=ending.set_exit_code, afterwards=afterwards, when_shown=when_shown)
        ending.set_exit_code(error)
        raise
    afterwards()
    ending.set_exit_code(None)
