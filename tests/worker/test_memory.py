"""`memory.save` and `memory.load` in workers of every kind, with the agent's side of the memory."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="there is no torch")

import torch

from hpc_elastic import memory, state_memory
from hpc_elastic.agent.keeper.transfer import Offer, parse_offer
from hpc_elastic.agent.workers.rank_states import RankStates, StateFiles, StateNotHereError
from hpc_elastic.codec import to_json
from hpc_elastic.membership.messages import Assign
from hpc_elastic.rundir.kept_records import parse_kept_record
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.rundir.state_records import HeldState, KeptRecord, StateVersion
from hpc_elastic.state_memory import LIMIT, VARIABLE, header_check, map_control, read_slots, slot_header, slot_offset
from hpc_elastic.worker.rank_state import INSIDE
from hpc_elastic.worker.state_encoding import decode_state
from tests.tiers import variants
from tests.worker.conftest import LAUNCH, Outcome, Runner

PART = "2+2/4 2/4 default"
LOAD = "from hpc_elastic import memory\nprint(memory.load())"
WAIT = """
import threading
for thread in threading.enumerate():
    if thread.name == "hpc-elastic-checksum": thread.join()
"""


def save(step: int) -> str:
    state = f"{{'rank': os.environ['LOCAL_RANK'], 'w': [{step}, 2.5]}}"
    return f"import os\nfrom hpc_elastic import memory\nmemory.save({step}, {state})\n"


def assign(attempt: int, state: StateVersion | None = None) -> Assign:
    return Assign(
        attempt=attempt,
        group_rank=1,
        group_world_size=2,
        first_rank=2,
        workers=2,
        world_size=4,
        role="default",
        first_role_rank=2,
        role_world_size=4,
        master=Endpoint(address="127.0.0.1", port=1),
        serves_store=False,
        is_failure_ignored=False,
        world_digest="",
        head="node0",
        state=state,
    )


class Node:
    """The agent's side of two ranks; each worker that runs here is one of them."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.said: list[str] = []
        self.states = RankStates(self.said.append)
        self.files: list[StateFiles] = []

    def begin(self, attempt: int, state: StateVersion | None = None) -> None:
        self.files = self.states.begin(assign(attempt, state))

    def command(
        self, local_rank: int, kind: str, target: str, *arguments: str, python: Sequence[str] = (sys.executable,)
    ) -> list[str]:
        files = self.files[local_rank]
        options = ["--parent", "0", "--state", str(files.own), "--node-state", str(files.node), kind, target, "--"]
        return [*python, str(LAUNCH), "hpc_elastic.worker.bootstrap", *options, *arguments]

    def start(self, local_rank: int, command: list[str], **environment: str) -> subprocess.Popen[str]:
        files = self.files[local_rank]
        return subprocess.Popen(
            command,
            cwd=self.runner.directory,
            env={**self.runner.environment, "LOCAL_RANK": str(local_rank), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[files.own, files.node],
        )

    def run(self, local_rank: int, source: str, python: Sequence[str] = (sys.executable,)) -> Outcome:
        script = str(self.runner.write("script.py", source))
        return outcome_of(self.start(local_rank, self.command(local_rank, "--script", script, python=python)))

    def run_both(self, source: str) -> list[str]:
        return [self.run(local_rank, source).stdout for local_rank in (0, 1)]


def outcome_of(process: subprocess.Popen[str]) -> Outcome:
    stdout, stderr = process.communicate(timeout=60)
    return Outcome(process.returncode, stdout, stderr)


def held(*steps: tuple[int, int], part: str = PART) -> tuple[HeldState, ...]:
    return tuple(HeldState(attempt=attempt, step=step, part=part) for attempt, step in steps)


@pytest.fixture
def node(runner: Runner) -> Iterator[Node]:
    made = Node(runner)
    made.begin(1)
    yield made
    made.states.close()


@pytest.mark.long
def test_a_state_outlives_its_worker_and_each_rank_gets_its_own(node: Node) -> None:
    source = save(1) + save(2) + save(3) + "import signal\nos.kill(os.getpid(), signal.SIGKILL)"
    assert [node.run(rank, source).exit_code for rank in (0, 1)] == [-signal.SIGKILL] * 2
    assert node.states.verify() == held((1, 3), (1, 2))
    node.begin(2, StateVersion(attempt=1, step=2))
    assert node.run_both(LOAD) == [f"({{'rank': '{rank}', 'w': [2, 2.5]}}, 2)\n" for rank in (0, 1)]
    assert node.states.verify() == held((1, 2))


def test_where_no_rank_saves_nothing_is_said_of_memory(node: Node) -> None:
    assert not node.states.has_some
    assert node.states.verify() == ()
    assert node.said == []


@pytest.mark.long
def test_only_what_all_ranks_of_the_node_hold_is_reported(node: Node) -> None:
    node.run(0, save(1) + save(2))
    assert node.states.verify() == (HeldState(attempt=1, step=2, part=PART, is_partial=True),)
    assert node.said == ["there is no step in memory that all ranks of this node hold"]
    node.run(1, save(1))
    assert node.states.verify() == held((1, 1))


@pytest.mark.long
def test_nothing_is_loaded_and_nothing_is_kept_if_the_attempt_begins_without_a_state(node: Node) -> None:
    node.run_both(save(1))
    node.begin(2)
    assert node.run_both(LOAD) == ["(None, None)\n"] * 2
    assert node.states.verify() == ()


@pytest.mark.long
def test_an_attempt_cannot_begin_with_a_state_that_is_not_here(node: Node) -> None:
    node.run_both(save(1))
    with pytest.raises(StateNotHereError, match="the state of step 9 that the attempt goes on with is not here"):
        node.begin(2, StateVersion(attempt=1, step=9))


@pytest.mark.long
def test_a_later_attempt_may_save_an_earlier_step(node: Node) -> None:
    node.run_both(save(9))
    node.begin(2, StateVersion(attempt=1, step=9))
    node.run_both(save(4))
    assert node.states.verify() == held((2, 4), (1, 9))


@pytest.mark.long
def test_a_replicated_state_is_kept_once_and_loaded_by_every_rank(node: Node) -> None:
    node.run_both("from hpc_elastic import memory\nmemory.save(7, 'same', replicated=True)")
    assert node.states.verify() == held((1, 7), part="* default")
    assert read_slots(map_control(node.files[1].own)) == []
    node.begin(2, StateVersion(attempt=1, step=7))
    assert node.run_both(LOAD) == ["('same', 7)\n"] * 2


@pytest.mark.long
def test_a_state_that_all_ranks_share_is_not_loaded_by_another_role(node: Node) -> None:
    node.run_both("from hpc_elastic import memory\nmemory.save(7, 'of the trainer', replicated=True)")
    order = replace(assign(2, StateVersion(attempt=1, step=7)), role="reader")
    assert node.states.lacks(order) == order.state
    with pytest.raises(StateNotHereError, match="step 7 that the attempt goes on with is not here"):
        node.states.begin(order)
    node.files = node.states.begin(replace(assign(3), role="reader"))
    node.run_both("from hpc_elastic import memory\nmemory.save(7, 'of the reader', replicated=True)")
    assert node.states.verify() == held((3, 7), part="* reader")


@pytest.mark.long
@pytest.mark.long
@pytest.mark.parametrize("replicated", [False, True])
def test_a_state_that_an_attempt_has_overwritten_is_not_loaded_in_the_place_of_the_chosen_one(
    replicated: bool, node: Node
) -> None:
    """Else a rank that comes late goes on at another step than the others."""
    node.run_both(f"from hpc_elastic import memory\nmemory.save(1, 'old', replicated={replicated})\n" + WAIT)
    node.begin(2, StateVersion(attempt=1, step=1))
    loads = "try: print(memory.load())\nexcept memory.StateError as error: print(error)\n"
    saves = [f"memory.save({step}, 'new', replicated={replicated})\n" + loads for step in (2, 3)]
    lines = node.run(0, "from hpc_elastic import memory\n" + loads + "".join(saves)).stdout.splitlines()
    refused = "memory.load: the state was overwritten; call it before this attempt's second save"
    assert lines == ["('old', 1)", "('old', 1)", refused]
    assert node.run(1, "from hpc_elastic import memory\n" + loads).stdout.splitlines() == [
        refused if replicated else "('old', 1)"
    ]


@pytest.mark.long
def test_a_step_that_is_saved_already_is_not_saved_again_and_an_earlier_one_is_refused(node: Node) -> None:
    source = """
from hpc_elastic import memory
memory.save(5, 'first')
memory.save(5, 'second')
try:
    memory.save(4, 'third')
except ValueError as error:
    print(error)
"""
    assert node.run_both(source)[0] == "memory.save: found step 4, expected one after 5, the latest\n"
    node.begin(2, StateVersion(attempt=1, step=5))
    assert node.run_both(LOAD) == ["('first', 5)\n"] * 2


@pytest.mark.parametrize("step", [1.5, True, None, "7"])
def test_a_step_that_is_no_whole_number_is_refused(step: Any) -> None:
    with pytest.raises(TypeError, match=r"memory\.save: found step .*, expected a whole number"):
        memory.save(step, {})


@pytest.mark.parametrize("step", [-1, 2**62])
def test_a_step_that_no_copy_and_no_file_can_name_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match=r"expected one from 0 to 2\*\*62 - 1"):
        memory.save(step, {})


def test_the_largest_step_can_be_copied_and_kept() -> None:
    offer = Offer(part=PART, attempt=1, step=memory.LARGEST_STEP, lengths=(1,))
    assert parse_offer(offer.to_message()) == offer
    record = KeptRecord(attempt=1, step=memory.LARGEST_STEP, place="0/1", length=1, crc=1)
    assert parse_kept_record(to_json(record)) == record


@pytest.mark.long
def test_a_step_of_another_librarys_whole_numbers_is_taken(node: Node) -> None:
    source = "import torch\nfrom hpc_elastic import memory\nmemory.save(torch.tensor(7), 'seventh')\n" + WAIT
    node.run_both(source)
    assert node.states.verify() == held((1, 7))


@pytest.mark.long
def test_a_state_that_is_too_large_is_not_kept_and_one_line_says_so(node: Node) -> None:
    map_control(node.files[0].own)[LIMIT] = 5 << 20
    source = "from hpc_elastic import memory\nfor step in range(3): memory.save(step, bytes(3 << 20))\nprint('goes on')"
    outcome = node.run(0, source)
    assert (outcome.exit_code, outcome.stdout, outcome.stderr.count("\n")) == (0, "goes on\n", 1)
    assert outcome.stderr.startswith(
        "hpc-elastic: memory.save: two copies of a state of 3.0 MiB need 8.0 MiB, and this rank's part of the 40 % of"
    )
    assert "that states may take is 5.0 MiB; training goes on without" in outcome.stderr


@pytest.mark.long
def test_a_state_may_grow_and_shrink(node: Node) -> None:
    node.run_both("from hpc_elastic import memory\nfor step in range(1, 8): memory.save(step, bytes((step % 4) << 20))")
    assert node.states.verify() == held((1, 7), (1, 6))
    node.begin(2, StateVersion(attempt=1, step=7))
    assert node.run_both("from hpc_elastic import memory\nprint(memory.load()[0] == bytes(3 << 20))") == ["True\n"] * 2


@pytest.mark.long
@pytest.mark.parametrize("offset", [12, 3 << 19])
def test_a_damaged_state_is_forgotten_and_one_line_says_so(offset: int, node: Node) -> None:
    node.run_both("from hpc_elastic import memory\nfor step in (1, 2): memory.save(step, bytes(2 << 20))\n" + WAIT)
    newest = read_slots(map_control(node.files[1].own))[0]
    byte = os.pread(node.files[1].own, 1, slot_offset(newest.slot) + offset)
    os.pwrite(node.files[1].own, bytes([byte[0] ^ 1]), slot_offset(newest.slot) + offset)
    assert node.states.verify() == held((1, 1))
    assert node.said == ["rank 3: its state of step 2 in memory is damaged, and is not used"]


@pytest.mark.long
def test_the_older_state_is_read_only_if_the_newest_is_damaged(node: Node) -> None:
    node.run_both("from hpc_elastic import memory\nfor step in (1, 2): memory.save(step, bytes(2 << 20))\n" + WAIT)
    newest, older = read_slots(map_control(node.files[1].own))
    os.pwrite(node.files[1].own, b"X", slot_offset(older.slot) + 3000)
    assert node.states.verify() == held((1, 2), (1, 1))
    assert node.said == []
    os.pwrite(node.files[1].own, b"X", slot_offset(newest.slot) + 3000)
    assert all(state.is_partial for state in node.states.verify())
    assert [line.split(" in memory")[0] for line in node.said] == [
        "rank 3: its state of step 2",
        "rank 3: its state of step 1",
        "there is no step",
    ]


@pytest.mark.long
def test_an_old_checksum_is_not_taken_for_that_of_a_new_state(node: Node) -> None:
    """The agent has cleared the slot meanwhile, and the new state has the number that the old one had."""
    node.run_both(save(1) + WAIT)
    node.begin(2)
    no_thread = "import threading\nthreading.Thread.start = lambda self: None\n"
    node.run_both(no_thread + save(2))
    assert node.states.verify() == held((2, 2))


@pytest.mark.long
@pytest.mark.parametrize(
    "kills", [4, *variants(8, of="test_a_worker_that_is_killed_at_any_moment_leaves_complete_states_only")]
)
def test_a_worker_that_is_killed_at_any_moment_leaves_complete_states_only(node: Node, kills: int) -> None:
    """A state says of itself which step it is, in every part of it."""
    source = """
import torch
from hpc_elastic import memory
step = 0
print("begins", flush=True)
while True:
    step += 1
    memory.save(step, [torch.full((300_000,), step) for _ in range(4)])
    if step == 1:
        print("has saved", flush=True)
"""
    script, dice = str(node.runner.write("script.py", source)), random.Random(7)
    for attempt in range(1, kills + 1):
        node.begin(attempt)
        process = node.start(0, node.command(0, "--script", script))
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        if attempt % 2 == 0:  # else it may be killed in its first save
            assert process.stdout.readline() == "has saved\n"
        threading.Event().wait(dice.uniform(0.01, 0.07))  # any moment will do
        process.kill()
        process.communicate()
        for state in read_slots(map_control(node.files[0].own)):
            data = bytearray(os.pread(node.files[0].own, state.length, slot_offset(state.slot)))
            loaded: list[torch.Tensor] = decode_state(memoryview(data))
            assert {int(value) for tensor in loaded for value in (tensor.min(), tensor.max())} == {state.step}
    assert read_slots(map_control(node.files[0].own))


@pytest.mark.long
def test_a_process_that_a_rank_forks_neither_saves_nor_loads(node: Node) -> None:
    source = """
import os
from hpc_elastic import memory
memory.save(1, "the rank's")
if os.fork() == 0:
    memory.save(2, "the child's")
    print(memory.load(), flush=True)
    os._exit(0)
os.wait()
"""
    assert node.run_both(source) == ["(None, None)\n"] * 2
    assert node.states.verify() == held((1, 1))


@pytest.mark.long
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_that_multiprocessing_starts_neither_saves_nor_loads(method: str, node: Node) -> None:
    """As a data loader with `multiprocessing_context="spawn"` starts its workers."""
    source = f"""
import multiprocessing
from hpc_elastic import memory

def ask():
    memory.save(2, "the child's")
    print(memory.load(), flush=True)

if __name__ == "__main__":
    memory.save(1, "the rank's")
    child = multiprocessing.get_context("{method}").Process(target=ask)
    child.start()
    child.join()
"""
    outcome = node.run(0, source)
    assert (outcome.stdout, outcome.stderr) == ("(None, None)\n", "")
    assert [state.step for state in read_slots(map_control(node.files[0].own))] == [1]


@pytest.mark.long
def test_a_program_that_a_rank_starts_inherits_nothing_of_it(node: Node) -> None:
    look = node.runner.write(
        "look.py",
        "import os\nfd = '/proc/self/fd/'\nprint([n for n in os.listdir(fd) if 'memfd' in os.path.realpath(fd + n)])",
    )
    source = f"import subprocess, sys\nsubprocess.run([sys.executable, {str(look)!r}], close_fds=False)"
    assert node.run(0, source).stdout == "[]\n"


@pytest.mark.long
def test_a_script_imports_memory_where_nothing_of_ours_is_installed(node: Node) -> None:
    outcome = node.run(0, LOAD, python=(sys.executable, "-I", "-S"))
    assert (outcome.stdout, outcome.stderr) == ("(None, None)\n", "")


@pytest.mark.long
def test_a_program_of_a_command_saves_and_passes_nothing_on(node: Node) -> None:
    source = f"import os\nfrom hpc_elastic import memory\nmemory.save(3, 'x')\nprint({VARIABLE!r} in os.environ)"
    script = str(node.runner.write("own.py", source))
    command = node.command(0, "--command", sys.executable, script)
    outcome = outcome_of(node.start(0, command, PYTHONPATH=str(LAUNCH.parents[1])))
    assert (outcome.exit_code, outcome.stdout) == (0, "False\n"), outcome.stderr
    assert [state.step for state in read_slots(map_control(node.files[0].own))] == [3]


@pytest.mark.long
def test_no_rank_of_a_launcher_inside_a_command_saves_or_loads(node: Node) -> None:
    """Those of a shell's loop inherit one memory: the first would load its state, and the others from disk."""
    node.run(0, save(1) + WAIT)
    inner = node.runner.write("inner.py", LOAD + "\nmemory.save(3, 'x')")
    launcher = f"import os, runpy\nos.environ['WORLD_SIZE'] = '8'\nrunpy.run_path({str(inner)!r})"
    command = node.command(0, "--command", sys.executable, str(node.runner.write("launcher.py", launcher)))
    outcome = outcome_of(node.start(0, command, PYTHONPATH=str(LAUNCH.parents[1]), WORLD_SIZE="2"))
    assert (outcome.exit_code, outcome.stdout) == (0, "(None, None)\n")
    assert outcome.stderr == f"{INSIDE}\n"
    assert [state.step for state in read_slots(map_control(node.files[0].own))] == [1]


@pytest.mark.long
@pytest.mark.parametrize("length", [0, 4096, 1 << 40])
def test_a_rank_cannot_take_away_the_memory_that_its_agent_reads(length: int, node: Node) -> None:
    """To read a mapped page beyond the end of a file ends a process with a SIGBUS."""
    truncate = f"import os\nos.truncate('/proc/self/fd/{node.files[0].own}', {length})"
    node.run_both(save(1) + WAIT)
    assert "PermissionError" in node.run(0, truncate).stderr
    assert node.states.verify() == held((1, 1))


def header_of(node: Node, local_rank: int = 0) -> memoryview:
    """Return the header of the newest slot of a rank, whose numbers a rank could overwrite by mistake."""
    numbers = map_control(node.files[local_rank].own)
    return slot_header(numbers, read_slots(numbers)[0].slot)


def lie(header: memoryview, **numbers: int) -> None:
    for name, number in numbers.items():
        header[getattr(state_memory, name)] = number
    header[state_memory.CHECK] = header_check(header, header[state_memory.SEQUENCE])


@pytest.mark.long
@pytest.mark.parametrize(
    "numbers",
    [
        {"LENGTH": 1 << 39, "ALLOCATED": 1 << 39},
        {"STEP": -1},
        *variants(
            {"LENGTH": 64 << 20, "ALLOCATED": 64 << 20},
            {"ALLOCATED": 1 << 39},
            {"SAVED_IN": -1},
            {"SEQUENCE": 2**63 - 1},
            of="test_numbers_that_a_rank_has_overwritten_cost_its_state_only",
        ),
    ],
)
def test_numbers_that_a_rank_has_overwritten_cost_its_state_only(numbers: dict[str, int], node: Node) -> None:
    node.run_both(save(1) + WAIT)
    header = header_of(node)
    lie(header, **numbers)
    header[state_memory.CRC_OF] = header[state_memory.SEQUENCE]
    assert all(state.is_partial for state in node.states.verify())
    node.begin(2)
    assert [node.run(rank, save(2) + WAIT).exit_code for rank in (0, 1)] == [0, 0]
    assert node.states.verify() == held((2, 2))


@pytest.mark.long
def test_memory_that_a_rank_has_given_back_costs_the_agent_none(node: Node) -> None:
    """To read a page of a mapped file that has none there adds it to the file; nothing else would bound that."""
    node.run_both(save(1) + WAIT)
    lie(header_of(node), LENGTH=64 << 20, ALLOCATED=64 << 20)
    os.truncate(node.files[0].own, slot_offset(1) + (64 << 20))
    node.states.verify()
    assert os.fstat(node.files[0].own).st_blocks * 512 < 32 << 20


def refuse(*_: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_where_no_memory_can_be_made_attempts_begin_without_and_one_line_says_so(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    said: list[str] = []
    monkeypatch.setattr(os, "memfd_create", refuse)
    states = RankStates(said.append)
    assert [states.begin(assign(attempt)) for attempt in (1, 2)] == [[], []]
    assert states.verify() == ()
    monkeypatch.delattr(os, "memfd_create")
    assert states.begin(assign(3)) == []
    assert said == ["no training state can be kept in memory here ([Errno 24] Too many open files)"]
    monkeypatch.undo()
    assert len(states.begin(assign(4))) == 2
    states.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_attempt_cannot_begin_with_a_state_where_no_memory_can_be_made(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(StateNotHereError):
        RankStates(print).begin(assign(2, StateVersion(attempt=1, step=9)))


@pytest.mark.long
def test_a_save_in_the_handler_of_a_signal_that_interrupts_a_save_does_nothing(node: Node) -> None:
    """As in a handler that saves what it can at SIGTERM; to wait for the interrupted save would take for ever."""
    source = """
import os, signal
from collections import UserDict
from hpc_elastic import memory
class Interrupted(UserDict):
    def items(self):
        os.kill(os.getpid(), signal.SIGUSR1)
        return super().items()
signal.signal(signal.SIGUSR1, lambda *_: memory.save(9, "the handler's"))
memory.save(1, Interrupted(w=1))
memory.save(2, {"w": 2})
"""
    assert node.run(0, source + WAIT).exit_code == 0
    assert [state.step for state in read_slots(map_control(node.files[0].own))] == [2, 1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("limit", "found"),
    [
        ("RLIMIT_NOFILE, (3, 3)", "2.0 MiB could not be mapped: [Errno 24] Too many open files"),
        (
            "RLIMIT_FSIZE, (4096, 4096)",
            "2.0 MiB more could not be reserved: File too large; `ulimit -f` has to be unlimited",
        ),
    ],
)
def test_a_state_that_a_limit_refuses_is_not_kept_and_one_line_says_so(limit: str, found: str, node: Node) -> None:
    outcome = node.run(
        0, f"import resource\nfrom hpc_elastic import memory\nresource.setrlimit(resource.{limit})\n{save(1)}{save(2)}"
    )
    assert outcome.exit_code == 0
    assert outcome.stderr == f"hpc-elastic: memory.save: {found}; training goes on without states in memory\n"


@pytest.mark.long
def test_a_line_that_cannot_be_written_costs_the_training_nothing(node: Node) -> None:
    """As on a full disk: `save` never raises for want of room."""
    source = """
import os, resource, sys
from hpc_elastic import memory
sys.stderr = open("/dev/full", "w")
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
memory.save(1, "a state")
sys.stderr = None
memory.save(2, "a state")
os.write(1, b"goes on")
"""
    outcome = node.run(0, source)
    assert (outcome.exit_code, outcome.stdout) == (0, "goes on"), outcome.stderr


@pytest.mark.long
def test_memory_is_reserved_in_pieces_that_end_between_two_signals(node: Node) -> None:
    """Older kernels end a call at any signal, and Python begins it anew."""
    source = """
import os
from hpc_elastic import memory
reserve, pieces = os.posix_fallocate, []
os.posix_fallocate = lambda *place: (pieces.append(place[2]), reserve(*place))
memory.save(1, bytes(40 << 20))
print(max(pieces) <= 2 << 20, sum(pieces) >= 40 << 20)
"""
    assert node.run(0, source).stdout == "True True\n"


def test_fifty_attempts_leave_no_descriptor(node: Node) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for attempt in range(2, 52):
        node.begin(attempt)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_random_generators_go_on_where_they_were() -> None:
    random.seed(3)
    torch.manual_seed(3)
    state = memory.random_state()
    first = (random.random(), torch.rand(2).tolist())
    memory.set_random_state(state)
    assert (random.random(), torch.rand(2).tolist()) == first
