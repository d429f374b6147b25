"""`heartbeat` writes into the slot of its rank, in workers of every kind, and nowhere else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import timeit
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hpc_elastic.agent.workers.heartbeats import HeartbeatFiles, Heartbeats
from hpc_elastic.failures.stall import HeartbeatState
from hpc_elastic.heartbeat_memory import VARIABLE
from tests.worker.conftest import LAUNCH, Outcome, Runner

PACKAGE = LAUNCH.parent
RANKS = (2, 3)  # the runner's worker is rank 3, local rank 1


class Node:
    """The agent's side: the heartbeats of two workers, of which one is run."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.heartbeats = Heartbeats()
        self.files = self.heartbeats.begin(RANKS)[1]

    def run(
        self, kind: str, target: str, *arguments: str, python: Sequence[str] = (sys.executable,), **environment: str
    ) -> Outcome:
        """Run a worker that inherits the descriptors, as a spawned one does."""
        memory, stack = self.files.memory, self.files.stack
        options = ["--parent", "0", "--heartbeat", str(memory), "--stack", str(stack)]
        command = [*python, str(LAUNCH), "hpc_elastic.worker.bootstrap", *options, kind, target, "--", *arguments]
        done = subprocess.run(
            command,
            cwd=self.runner.directory,
            env={**self.runner.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            pass_fds=[memory, stack],
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def run_script(self, source: str, **more: Sequence[str]) -> Outcome:
        return self.run("--script", str(self.runner.write("script.py", source)), **more)  # type: ignore[arg-type]

    def state(self) -> HeartbeatState:
        states = self.heartbeats.read()
        assert tuple(states) == RANKS
        assert states[RANKS[0]] == HeartbeatState(step=None, age_s=None, count=0)  # the neighbour's slot
        return states[RANKS[1]]

    def stack(self) -> str:
        return os.pread(self.files.stack, 1 << 16, 0).decode()


@pytest.fixture
def node(runner: Runner) -> Iterator[Node]:
    made = Node(runner)
    yield made
    made.heartbeats.close()


def test_heartbeats_of_a_script_are_read_by_the_agent(node: Node) -> None:
    outcome = node.run_script(
        "from hpc_elastic.worker import heartbeat\nheartbeat()\nfor step in range(7): heartbeat(step)"
    )
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    state = node.state()
    assert (state.count, state.step) == (8, 6)
    assert state.age_s is not None
    assert 0 <= state.age_s < 60


@pytest.mark.long
def test_a_worker_without_a_heartbeat_has_no_age(node: Node) -> None:
    assert node.run_script("pass").exit_code == 0
    assert node.state() == HeartbeatState(step=None, age_s=None, count=0)


@pytest.mark.long
def test_a_script_imports_heartbeat_where_nothing_of_ours_is_installed(node: Node) -> None:
    """Also if it has cleared `sys.modules` of this package; -S leaves out the editable installation of the tests."""
    source = """
import sys
for name in [name for name in sys.modules if name.startswith("hpc_elastic")]:
    del sys.modules[name]
assert type(sys.meta_path[-1]).__name__ == "OwnFinder"
from hpc_elastic.worker import heartbeat
import hpc_elastic
print(hpc_elastic.__file__, any("hpc_elastic" in path for path in sys.path))
"""
    outcome = node.run_script(source, python=(sys.executable, "-I", "-S"))
    assert (outcome.stdout, outcome.stderr) == (f"{PACKAGE / '__init__.py'} False\n", "")


def test_the_finder_knows_no_other_name(node: Node) -> None:
    source = "import sys; print([sys.meta_path[-1].find_spec(name) for name in ('torch', 'hpc_elastic_x', 'worker')])"
    assert node.run_script(source).stdout == "[None, None, None]\n"


@pytest.mark.long
def test_heartbeats_of_threads_count_for_their_rank(node: Node) -> None:
    source = """
import threading
from hpc_elastic.worker import heartbeat
threads = [threading.Thread(target=heartbeat, args=(step,)) for step in (5, 5, 5)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    assert node.run_script(source).stderr == ""
    state = node.state()
    assert state.step == 5
    assert 1 <= state.count <= 3  # two threads at the same moment may count as one


def test_heartbeats_of_forked_children_do_not_count(node: Node) -> None:
    """A data loader of a rank that has stopped must not keep it alive."""
    source = """
import os
from hpc_elastic.worker import heartbeat
heartbeat(1)
pid = os.fork()
if not pid:
    from hpc_elastic.worker import heartbeat as again
    for step in range(100): heartbeat(step), again(step)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    assert node.run_script(source).stderr == ""
    assert (node.state().step, node.state().count) == (1, 1)


@pytest.mark.long
def test_programs_that_a_worker_starts_do_not_beat_for_it(node: Node) -> None:
    child = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
    child += "from hpc_elastic.worker import heartbeat; heartbeat(9)"
    source = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True, close_fds=False)"
    assert node.run_script(source).stderr == ""
    assert node.state().count == 0


def _own_python(source: str) -> tuple[str, ...]:
    path = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
    return ("--command", sys.executable, "-c", path + source)


@pytest.mark.long
def test_a_command_that_has_the_package_beats_for_its_rank(node: Node) -> None:
    source = f"from hpc_elastic.worker import heartbeat; heartbeat(4)\nimport os; print({VARIABLE!r} in os.environ)"
    kind, program, *arguments = _own_python(source)
    outcome = node.run(kind, program, *arguments)
    assert (outcome.stdout, outcome.stderr) == ("False\n", "")
    assert (node.state().step, node.state().count) == (4, 1)


@pytest.mark.long
def test_of_a_commands_programs_the_first_that_beats_is_the_rank(node: Node) -> None:
    child = _own_python("from hpc_elastic.worker import heartbeat; heartbeat(9)")[1:]
    source = (
        f"import subprocess\nfrom hpc_elastic.worker import heartbeat\nheartbeat(1)\nsubprocess.run({list(child)!r})"
    )
    kind, program, *arguments = _own_python(source)
    assert node.run(kind, program, *arguments).stderr == ""
    assert (node.state().step, node.state().count) == (1, 1)


@pytest.mark.parametrize("value", ["", "0:0:0", "x", "99999:0:99999", "1:2", "0:0:0:0", "-1:0:1"])
def test_a_variable_that_names_no_memory_of_ours_is_ignored(value: str) -> None:
    source = "from hpc_elastic.worker import heartbeat; heartbeat(3); heartbeat()"
    environment = {**os.environ, VARIABLE: value, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_heartbeat_is_imported_without_torch_and_little_else(tmp_path: Path) -> None:
    source = "import sys; before = set(sys.modules); from hpc_elastic.worker import heartbeat\n"
    source += "print('torch' in sys.modules, len(set(sys.modules) - before) < 20)"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False True\n", done.stderr


@pytest.mark.long
def test_heartbeat_rejects_a_step_that_is_no_whole_number(node: Node) -> None:
    outcome = node.run_script("from hpc_elastic.worker import heartbeat; heartbeat(0.5)")
    assert "TypeError: heartbeat: found step 0.5, expected a whole number" in outcome.stderr


def test_a_heartbeat_costs_less_than_2_microseconds() -> None:
    from hpc_elastic.worker import heartbeat_writer

    heartbeats = Heartbeats()
    files: HeartbeatFiles = heartbeats.begin([0])[0]
    heartbeat_writer.begin(files.memory, 0)
    try:
        fastest = min(timeit.repeat(lambda: heartbeat_writer.heartbeat(7), number=2000, repeat=50)) / 2000
        assert heartbeats.read()[0].count == 100_000
    finally:
        heartbeat_writer._forget()
        heartbeats.close()
    assert fastest < 2e-6


STACK = re.compile(r'File ".*script\.py", line \d+ in wait_here')


@pytest.mark.long
@pytest.mark.parametrize(
    "waits",
    [
        "import threading; threading.Lock().acquire(); lock = threading.Lock(); lock.acquire(); lock.acquire()",
        "import ctypes; ctypes.PyDLL(None).pause()",  # with the GIL
        "import ctypes; ctypes.CDLL(None).pause()",
    ],
)
def test_a_worker_writes_its_stacks_at_the_signal(node: Node, waits: str) -> None:
    source = f"""
import os, signal, sys
def wait_here():
    if os.fork() == 0:
        os.kill(os.getppid(), signal.SIGURG)
        import time
        while not os.fstat({{stack}}).st_size: time.sleep(0.001)
        time.sleep(0.05)
        os.kill(os.getppid(), signal.SIGKILL)
        os._exit(0)
    {waits}
wait_here()
""".replace("{stack}", "max(int(name) for name in os.listdir('/proc/self/fd'))")
    outcome = node.run_script(source)
    assert outcome.exit_code in (-9, 0), outcome.stderr  # C's pause ends at the signal
    assert STACK.search(node.stack()), (node.stack(), outcome.stderr)


def test_the_signal_harms_no_program_that_a_worker_becomes(node: Node) -> None:
    source = """
import os, sys
program = "import os, signal; os.kill(os.getpid(), signal.SIGURG); print('lives')"
os.execv(sys.executable, [sys.executable, "-c", program])
"""
    assert node.run_script(source).stdout == "lives\n"
