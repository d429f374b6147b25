"""Signals and submitit's worker program: what is saved, what Slurm is asked, how the process ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from submitit.core.utils import DelayedSubmission
from submitit.helpers import Checkpointable

from hpc_elastic.integrations.submitit.executor import WORKER
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import utc_text
from tests.integration.submitit_plugin import write_metadata
from tests.slurm_sandbox.cluster import wait_until

pytestmark = pytest.mark.local  # it starts processes, a second each

STEP_S = 0.02
PIPE_BYTES = 15 * 4096  # in a pipe that takes no more, at least: its last page may not be full (pipe(7))
OF_AN_HOUR_S = 3500  # so long ago the allocation began; the time limit is an hour


class Saver(Checkpointable):
    """Waits for ever; its checkpoint counts, and waits for a file if it is given one."""

    def __init__(self, folder: Path, *, is_slow: bool = False) -> None:
        self.folder = folder
        self.is_slow = is_slow
        self.saved = 0

    def __call__(self, forked: bool = False) -> None:
        if forked and os.fork() == 0:
            (self.folder / "child").write_text(str(os.getpid()))
        else:
            (self.folder / "ready").write_text(str(os.getpid()))
        work_for_ever()

    def checkpoint(self, *args: Any, **kwargs: Any) -> DelayedSubmission:
        (self.folder / "saving").touch()
        while self.is_slow and not (self.folder / "go").exists():
            time.sleep(0.02)
        self.saved += 1
        return super().checkpoint(*args, **kwargs)


class Importer(Saver):
    """Imports a module that takes its time, as torch does; its checkpoint needs that module."""

    def __call__(self) -> None:  # type: ignore[override]
        sys.path.insert(0, str(self.folder))
        import slow_module  # type: ignore[import-not-found]  # noqa: F401

        work_for_ever()

    def checkpoint(self, *args: Any, **kwargs: Any) -> DelayedSubmission:
        import slow_module

        self.saved += slow_module.ONE
        return Checkpointable.checkpoint(self, *args, **kwargs)


class Printer(Saver):
    """Prints, and waits amid that until the other side reads; its checkpoint prints, too."""

    def __call__(self) -> None:  # type: ignore[override]
        (self.folder / "ready").touch()
        print("line\n" * 50_000)
        work_for_ever()

    def checkpoint(self, *args: Any, **kwargs: Any) -> DelayedSubmission:
        print("saving")
        self.saved += 1
        return Checkpointable.checkpoint(self, *args, **kwargs)


class Stubborn(Saver):
    """Its first checkpoint fails, and it goes on all the same."""

    def __call__(self) -> None:  # type: ignore[override]
        (self.folder / "ready").touch()
        try:
            work_for_ever()
        except LookupError:
            (self.folder / "failed").touch()
            work_for_ever()

    def checkpoint(self, *args: Any, **kwargs: Any) -> DelayedSubmission:
        if not (self.folder / "failed").exists():
            raise LookupError
        self.saved += 1
        return Checkpointable.checkpoint(self, *args, **kwargs)


def wait_without_checkpoint(folder: Path) -> None:
    (folder / "ready").touch()
    work_for_ever()


def work_for_ever() -> None:
    """Works in short steps: after a signal just before `signal.pause()` the next one alone would call its handler."""
    while True:
        time.sleep(STEP_S)


def unread(reader: int) -> int:
    """How many bytes wait in a pipe."""
    return int(struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, bytes(4)))[0])


class Worker:
    """submitit's worker program in a made-up run, with programs of Slurm that are made up too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.layout = RunLayout(folder / "run")
        self.pickle = folder / "function.pkl"
        self.variables = {
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": str(write_metadata(folder / "metadata").parent),  # so submitit does not know us
            "SUBMITIT_EXECUTOR": "hpcelastic",
            "SUBMITIT_HPCELASTIC_PICKLE": str(self.pickle),
            "HPC_ELASTIC_RUN_DIR": self.layout.root,
            "HPC_ELASTIC_ATTEMPT": "1",
            "SLURM_JOB_ID": "17",
            **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "0"),
            **dict.fromkeys(("WORLD_SIZE", "GROUP_WORLD_SIZE"), "1"),
        }
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "bin").mkdir()
        Path(self.layout.allocations).mkdir(parents=True)
        claim = {"job_id": "17", "restart_count": 0, "time": utc_text(time.time() - OF_AN_HOUR_S)}
        Path(self.layout.allocation(1)).write_text(json.dumps(claim))
        self.fake("scontrol", f'echo "$@" >>{folder}/scontrol')
        self.slurm_says_restarts(0)

    def fake(self, program: str, script: str) -> None:
        path = self.folder / "bin" / program
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)

    def slurm_says_restarts(self, count: int) -> None:
        self.fake("squeue", f"echo '17|17|RUNNING|{count}|0|node1|None|'")

    def start(self, delayed: DelayedSubmission, *, output: int | None = None, **variables: str) -> None:
        """Starts it, and waits until the function runs; `output` is a descriptor in place of its file."""
        delayed.set_timeout(60, 3)
        delayed.dump(self.pickle)
        command = [sys.executable, "-m", WORKER, str(self.folder)]
        with open(self.folder / "output", "wb") as file:
            environment = {**os.environ, **self.variables, **variables}
            written = file.fileno() if output is None else output
            self._process = subprocess.Popen(
                command, cwd=Path(__file__).parents[2], env=environment, stdout=written, stderr=subprocess.STDOUT
            )
        wait_until((self.folder / "ready").exists, "the function runs", otherwise=self.output)

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def send(self, *numbers: signal.Signals) -> None:
        assert self._process is not None
        for number in numbers:
            self._process.send_signal(number)

    def wait(self) -> int:
        """How it ended, as subprocess says it."""
        assert self._process is not None
        return self._process.wait(timeout=30)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if (self.folder / "child").exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int((self.folder / "child").read_text()), signal.SIGKILL)

    def saved(self) -> int:
        """How many checkpoints the pickle has."""
        with open(self.pickle, "rb") as file:
            return int(pickle.load(file).function.saved)

    def requeued(self) -> str:
        path = self.folder / "scontrol"
        return path.read_text() if path.exists() else ""

    def wait_for_requeue(self, words: str = "requeue 17\n") -> None:
        wait_until(
            lambda: self.requeued() == words, "Slurm is asked", otherwise=lambda: self.requeued() + self.output()
        )

    def wait_for_line(self, text: str) -> None:
        wait_until(lambda: text in self.output(), f"it says {text!r}", otherwise=self.output)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SUBMITIT_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "work").mkdir()
    made = Worker(tmp_path / "work")
    yield made
    made.end()


def test_the_signal_saves_requeues_and_waits_for_slurms_term(worker: Worker) -> None:
    worker.start(DelayedSubmission(Saver(worker.folder)))
    worker.send(signal.SIGUSR2)
    worker.wait_for_line("Waiting for Slurm to stop this job.")
    worker.send(signal.SIGUSR2, signal.SIGUSR2)
    worker.send(signal.SIGTERM)
    assert worker.wait() == -signal.SIGTERM, worker.output()
    assert worker.requeued() == "requeue 17\n"
    assert worker.saved() == 1
    assert not os.path.exists(worker.layout.submitit_result(1, 0))


def test_a_task_of_an_array_is_requeued_by_the_arrays_number_and_its_own(worker: Worker) -> None:
    worker.start(DelayedSubmission(Saver(worker.folder)), SLURM_ARRAY_JOB_ID="17", SLURM_ARRAY_TASK_ID="3")
    worker.send(signal.SIGUSR2)
    worker.wait_for_requeue("requeue 17_3\n")


def test_a_requeue_that_is_refused_ends_the_run_and_says_why(worker: Worker) -> None:
    worker.fake("scontrol", "echo 'Requested operation is presently disabled' >&2; exit 1")
    worker.start(DelayedSubmission(Saver(worker.folder)))
    worker.send(signal.SIGUSR2)
    requests = Path(worker.layout.requests)
    wait_until(lambda: requests.exists() and requests.read_text().endswith("\n"), "it asks for a stop")
    request = json.loads(requests.read_text())
    assert request["kind"] == "stop"
    assert request["reason"].startswith("Job not requeued because: scontrol could not requeue job 17: ")
    assert "presently disabled" in request["reason"]
    assert worker.saved() == 1
    worker.send(signal.SIGTERM)
    assert worker.wait() == -signal.SIGTERM


def test_a_term_saves_if_slurm_will_start_the_job_again(worker: Worker) -> None:
    worker.start(DelayedSubmission(Saver(worker.folder)))
    worker.slurm_says_restarts(1)
    worker.send(signal.SIGTERM)
    assert worker.wait() == -signal.SIGTERM, worker.output()
    assert (worker.saved(), worker.requeued()) == (1, "")


def test_terms_that_come_one_after_the_other_save_once(worker: Worker) -> None:
    """Slurm sends one to each process and one to each step, within milliseconds; the first asks what they mean."""
    waits = f"until test -e {worker.folder}/go; do sleep 0.02; done"
    worker.fake("squeue", f"echo asked >>{worker.folder}/squeue; {waits}; echo '17|17|RUNNING|1|0|node1|None|'")
    worker.start(DelayedSubmission(Saver(worker.folder)))
    asked = worker.folder / "squeue"
    deadline = time.monotonic() + 30
    while not asked.exists():
        worker.send(signal.SIGTERM)  # as it asks, too: a module that is half imported can be imported by nobody else
        time.sleep(0.0005)
        assert time.monotonic() < deadline, worker.output()
    worker.send(signal.SIGTERM, signal.SIGTERM)
    (worker.folder / "go").touch()
    assert worker.wait() == -signal.SIGTERM, worker.output()
    assert "exception" not in worker.output()
    assert (asked.read_text(), worker.saved()) == ("asked\n", 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_amid_an_import_saves_once_that_is_over(worker: Worker, number: signal.Signals) -> None:
    """What is half imported has no names yet, and the checkpoint would fail for one of them."""
    ready, go = worker.folder / "ready", worker.folder / "go"
    waits = (
        f"import os, time\nfile = open({str(ready)!r}, 'a', buffering=1)\n"
        f"while not os.path.exists({str(go)!r}):\n    time.sleep(0.01)\n    file.write('a turn\\n')\n"
    )
    (worker.folder / "slow_module.py").write_text(f"{waits}ONE = 1\n")
    worker.slurm_says_restarts(1)
    worker.start(DelayedSubmission(Importer(worker.folder)))
    worker.send(number)
    turns = len(ready.read_text().splitlines())
    # A handler is called between two instructions: it has been, two turns after its signal.
    wait_until(lambda: len(ready.read_text().splitlines()) > turns + 2, "the import goes on", otherwise=worker.output)
    go.touch()
    if number == signal.SIGUSR2:
        worker.wait_for_requeue()
        worker.send(signal.SIGTERM)
    assert worker.wait() == -signal.SIGTERM, worker.output()
    assert (worker.saved(), "Error" in worker.output()) == (1, False)


def test_a_signal_amid_a_print_saves_with_a_checkpoint_that_prints(worker: Worker) -> None:
    """With PYTHONUNBUFFERED empty, as some set it for speed; else nothing of Python's waits amid a print."""
    worker.slurm_says_restarts(1)
    reader, writer = os.pipe()
    worker.start(DelayedSubmission(Printer(worker.folder)), output=writer, PYTHONUNBUFFERED="")
    os.close(writer)
    wait_until(lambda: unread(reader) >= PIPE_BYTES, "its print waits for a reader")
    worker.send(signal.SIGTERM)
    with os.fdopen(reader, "rb") as output:
        text = output.read().decode()
    assert worker.wait() == -signal.SIGTERM, text
    assert (worker.saved(), "reentrant" in text) == (1, False)


def test_a_term_after_a_checkpoint_that_failed_saves(worker: Worker) -> None:
    worker.slurm_says_restarts(1)
    worker.start(DelayedSubmission(Stubborn(worker.folder)))
    worker.send(signal.SIGTERM)
    wait_until((worker.folder / "failed").exists, "the checkpoint fails", otherwise=worker.output)
    worker.send(signal.SIGTERM)
    assert worker.wait() == -signal.SIGTERM, worker.output()
    assert worker.saved() == 1


def test_a_term_saves_nothing_if_the_run_stops_or_restarts(worker: Worker) -> None:
    worker.start(DelayedSubmission(Saver(worker.folder)))
    worker.send(signal.SIGTERM)
    assert worker.wait() == -signal.SIGTERM, worker.output()
    assert worker.saved() == 0
    assert not (worker.folder / "saving").exists()


def test_a_term_in_the_middle_of_a_checkpoint_lets_it_be_finished(worker: Worker) -> None:
    worker.start(DelayedSubmission(Saver(worker.folder, is_slow=True)))
    worker.send(signal.SIGUSR2)
    wait_until((worker.folder / "saving").exists, "it saves", otherwise=worker.output)
    worker.send(signal.SIGTERM)
    (worker.folder / "go").touch()
    assert worker.wait() == -signal.SIGTERM, worker.output()
    assert worker.saved() == 1


def test_what_a_killed_rank_left_half_written_hinders_no_checkpoint(worker: Worker) -> None:
    Path(f"{worker.pickle}.save_tmp").write_text("half")
    worker.start(DelayedSubmission(Saver(worker.folder)))
    worker.send(signal.SIGUSR2)
    worker.wait_for_requeue()
    assert worker.saved() == 1


def test_other_ranks_save_nothing_and_die_of_a_term(worker: Worker) -> None:
    worker.start(DelayedSubmission(Saver(worker.folder)), RANK="1")
    worker.slurm_says_restarts(1)
    worker.send(signal.SIGUSR2)
    worker.wait_for_line("since I am a slave")
    worker.send(signal.SIGTERM)
    assert worker.wait() == -signal.SIGTERM
    assert (worker.saved(), worker.requeued()) == (0, "")


def test_a_forked_child_of_the_function_is_no_rank(worker: Worker) -> None:
    worker.start(DelayedSubmission(Saver(worker.folder), forked=True))
    written = worker.folder / "child"
    wait_until(lambda: written.exists() and written.read_text(), "the child runs")
    child = int(written.read_text())
    worker.slurm_says_restarts(1)
    os.kill(child, signal.SIGUSR2)
    os.kill(child, signal.SIGTERM)
    stat = Path(f"/proc/{child}/stat")
    wait_until(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "Z", "the child is dead")
    assert (worker.saved(), worker.requeued()) == (0, "")


def test_a_function_that_cannot_be_saved_asks_for_a_stop_at_the_time_limit(worker: Worker) -> None:
    variables = {"SUBMITIT_HPCELASTIC_SIGNAL_AFTER_S": f"{OF_AN_HOUR_S + 1}"}
    worker.start(DelayedSubmission(wait_without_checkpoint, worker.folder), output=None, **variables)
    requests = Path(worker.layout.requests)
    wait_until(lambda: requests.exists() and requests.read_text().endswith("\n"), "it asks for a stop")
    reason = json.loads(requests.read_text())["reason"]
    assert reason == "Job not requeued because: timed-out and not checkpointable."
