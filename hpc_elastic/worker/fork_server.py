"""Imports torch once on each node, and forks the workers and the store host from that process.

    PYTHON <package>/launch.py hpc_elastic.worker.fork_server --parent PID [--deadline DESCRIPTOR]
        [--preload MODULE]... [--own VARIABLE]...

Theory of operation. The agent (process PID, a subreaper) starts the server with the environment and
directory that its workers have in common. Standard input is a SOCK_STREAM unix socket, which carries
the frames of `hpc_elastic.frames`.

    server -> agent   {"state": "ready", "torch": "2.13.0" | null, "no_torch": null | "ImportError: ...",
                       "unsafe": null | "why no fork may be made", "failed_preloads": [["name", "why"], ...],
                       "seconds": 1.9, "imported": 1800}
    agent -> server   {"do": "worker", "parent": PID, "kind": "script" | "module", "target": ..., "arguments": [...],
                       "environment": {...}, "directory": ..., "stdout": "file" | "null" | "inherit", "stderr": ...,
                       "heartbeat": "file" | "none", "stack": "file" | "none",
                       "state": "file" | "none", "node_state": "file" | "none"}
                      with a descriptor for each "file"
    agent -> server   {"do": "store", "parent": PID}     with the store host's end of its link
    server -> agent   {"pid": 123} | {"errno": 2, "message": "No such file or directory", "filename": ... | null}

One order is carried out at a time. The process that the answer names is the agent's child, is set up, and
ends with the agent; after an error no process is left. The server ends with the agent, by end of file and by its
parent-death signal. Slurm sends the TERM of `scancel` and of preemption to every process of a step: it
is ignored here, because the workers decide when the run is over. Of the user's code the server imports only
the modules of `--preload`; it exits without the interpreter's teardown.

A fork returns from `serve` and does the work that was ordered; the server returns only to exit. A worker
whose folder holds modules with names of modules that are loaded already replaces itself by a spawned one.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import importlib
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from hpc_elastic.death_signal import die_with_parent
from hpc_elastic.frames import receive_frame, send_frame
from hpc_elastic.whole_lines import write_line
from hpc_elastic.worker import after_fork, bootstrap, closing, store_host
from hpc_elastic.worker.dispositions import take_back_ignored
from hpc_elastic.worker.ending import Ending
from hpc_elastic.worker.fork_safety import find_danger
from hpc_elastic.worker.fork_to_agent import fork_to_agent
from hpc_elastic.worker.huge_pages import collapse_memory
from hpc_elastic.worker.namesakes import become_spawned, find_namesakes, first_folder
from hpc_elastic.worker.own_variables import describe_reads
from hpc_elastic.worker.preloads import Preloaded, import_preloads
from hpc_elastic.worker.process_image import set_process_image

PAUSE_S = 2.0  # the pause without an order after which memory is collapsed

Work = Callable[[], int]  # a fork's work, which returns its exit code


def main(arguments: Sequence[str]) -> int:
    """Serve orders to fork until the agent is gone; only forks return, with their exit code."""
    began = time.monotonic()
    ties, modules, own = parse_arguments(arguments)
    die_with_parent(ties.parent)
    take_back_ignored()
    agent = _take_link()
    closing.install()
    server = ForkServer(agent, deadline=ties.deadline)
    work = server.serve() if server.warm_up(modules, began, own) else None
    if work is None:
        os._exit(0)
    return work()


def parse_arguments(arguments: Sequence[str]) -> tuple[bootstrap.Ties, list[str], list[str]]:
    """Read the command line above, which only agents write: the ties to the agent, the modules, and the variables.

    Raises:
        SystemExit: it is not of that form.
    """
    rest = list(arguments)
    parent, deadline = bootstrap.take_number(rest, "--parent"), bootstrap.take_number(rest, "--deadline")
    if parent is None or len(rest) % 2 or not {*rest[::2]} <= {"--preload", "--own"}:
        form = "--parent PID [--deadline DESCRIPTOR] [--preload MODULE]... [--own VARIABLE]..."
        sys.exit(f"hpc-elastic: the fork server was given {list(arguments)}, not {form}")
    pairs = list(zip(rest[::2], rest[1::2], strict=True))
    modules, own = ([value for name, value in pairs if name == option] for option in ("--preload", "--own"))
    return bootstrap.Ties(parent=parent, deadline=deadline), modules, own


def _take_link() -> socket.socket:
    """Move the socket off standard input, where processes that an import starts would inherit it."""
    link = socket.socket(fileno=fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    return link


class ForkServer:
    """The server's side of the protocol.

    Args:
        agent: the link to the agent.
        deadline: the descriptor of the node's deadline, which every worker reads.
    """

    def __init__(self, agent: socket.socket, *, deadline: int | None = None) -> None:
        self._agent = agent
        self._deadline = deadline
        if deadline is not None:
            os.set_inheritable(deadline, False)  # so that processes which an import starts do not inherit it
        # Before torch, logging and others are imported, which have atexit functions too: it is the last one of a fork.
        self._ending = Ending()
        self._signals = after_fork.SignalKeeper()
        self._preloaded = Preloaded()
        self._loaded_before = frozenset(sys.modules)
        self._said: set[str] = set()
        self._is_collapsed = False

    def warm_up(self, modules: Sequence[str], began: float, own: Sequence[str] = ()) -> bool:
        """Import everything and tell the agent that the server is ready; return whether the agent is still there."""
        preloaded = self._preloaded = import_preloads(modules, own)
        self._ending.remember_open_files()
        gc.freeze()
        self._signals.ignore()
        after_fork.keep_finalizers_here()
        importlib.invalidate_caches()  # loads the modules that this call needs in every fork
        danger = describe_reads(preloaded.reads) or find_danger()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        ctypes.CDLL(None).fflush(None)  # C's buffers: else every fork would write what an import has left in them
        message = {
            "state": "ready",
            "torch": preloaded.torch,
            "no_torch": preloaded.no_torch,
            "unsafe": danger,
            "failed_preloads": [list(failure) for failure in preloaded.failed],
            "seconds": round(time.monotonic() - began, 3),
            "imported": len(sys.modules),
        }
        return self._send(message)

    def serve(self) -> Work | None:
        """Carry out orders; return the work in a fork, and None in the server when the agent is gone."""
        while (received := self._receive()) is not None:
            order, descriptors = received
            try:
                work = self._fork(order, descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            if work is not None:
                return work
        return None

    def _must_import_itself(self, order: dict[str, Any]) -> bool:
        folder = first_folder(order["kind"], order["target"], order["directory"])
        names = find_namesakes(folder, self._loaded_before) if folder else []
        if names and folder not in self._said:
            self._said.add(str(folder))
            text = f"{folder} holds {', '.join(names)}, and what torch or preload imports has the same name"
            write_line(sys.stderr, f"hpc-elastic: {text}: workers from there import for themselves")
        return bool(names)

    def _receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """Wait for the next order; the first pause is used to collapse memory, until an order interrupts it."""
        if not self._is_collapsed and not self._has_order(PAUSE_S):
            collapse_memory(is_interrupted=self._has_order)
            self._is_collapsed = not self._has_order()
        return receive_frame(self._agent)

    def _has_order(self, within_s: float = 0.0) -> bool:
        return bool(select.select([self._agent], [], [], within_s)[0])

    def _fork(self, order: dict[str, Any], descriptors: list[int]) -> Work | None:
        """Return the work in the fork, None in the server."""
        work: list[Work] = []
        must_import = order["do"] == "worker" and self._must_import_itself(order)

        def set_up() -> None:
            work.append(
                self._set_up_worker(order, descriptors, must_import=must_import)
                if order["do"] == "worker"
                else self._set_up_store(order, descriptors)
            )

        try:
            if len(descriptors) < list(order.values()).count("file") + (order["do"] == "store"):
                raise OSError(errno.EMFILE, "the fork server has no descriptor left for the worker's files")
            pid = fork_to_agent(set_up, agent=order["parent"])
        except OSError as error:
            filename = None if error.filename is None else str(error.filename)
            self._send({"errno": error.errno, "message": error.strerror, "filename": filename})
            return None
        if pid is None:
            return work[0]
        self._send({"pid": pid})
        return None

    def _set_up_worker(self, order: dict[str, Any], descriptors: list[int], *, must_import: bool) -> Work:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        left = iter(descriptors)
        choose: dict[str, Callable[[], int | None]] = {
            "file": lambda: next(left),
            "null": lambda: null,
            "inherit": lambda: None,
        }
        after_fork.take_standard_files([null, choose[order["stdout"]](), choose[order["stderr"]]()])
        os.close(null)
        heartbeat, stack, state, node_state = (
            # A copy: `serve` closes those that came with the order.
            fcntl.fcntl(next(left), fcntl.F_DUPFD_CLOEXEC, 3) if order.get(name) == "file" else None
            for name in ("heartbeat", "stack", "state", "node_state")
        )
        ties = bootstrap.Ties(
            parent=order["parent"],
            deadline=self._deadline,
            heartbeat=heartbeat,
            stack=stack,
            state=state,
            node_state=node_state,
        )
        self._agent.close()
        os.chdir(order["directory"])
        after_fork.set_environment(order["environment"], self._preloaded.environment)
        target = bootstrap.Target(kind=f"--{order['kind']}", name=order["target"], arguments=tuple(order["arguments"]))
        options = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv)]
        bootstrap.set_command_line(target)
        set_process_image(sys.orig_argv, order["environment"])
        after_fork.renew_interpreter_state()
        self._signals.restore()
        if must_import:
            for descriptor in (ties.deadline, ties.heartbeat, ties.stack, ties.state, ties.node_state):
                if descriptor is not None:
                    os.set_inheritable(descriptor, True)
            return lambda: become_spawned(options, bootstrap.format_arguments(ties, target))
        return lambda: bootstrap.run(target, self._ending, ties)

    def _set_up_store(self, order: dict[str, Any], descriptors: list[int]) -> Work:
        """Set up a fork as the store host, which goes on ignoring the signals that the server ignores."""
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        after_fork.take_standard_files([null, None, None])
        os.close(null)
        self._agent.close()
        if self._deadline is not None:
            os.close(self._deadline)
        link = socket.socket(fileno=os.dup(descriptors[0]))
        command = [
            *sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1],
            store_host.__name__,
            "--parent",
            str(order["parent"]),
        ]
        set_process_image(command, os.environ)
        return lambda: store_host.host(link)

    def _send(self, message: dict[str, Any]) -> bool:
        try:
            send_frame(self._agent, message)
        except OSError:
            return False  # an agent that is gone is noticed at the next receive
        return True
