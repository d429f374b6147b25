"""`hpc-elastic save` when something goes wrong: the training goes on, the person is told, and nothing is left."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="there is no torch")

from tests.integration import faulty_disk
from tests.integration.conftest import Door, Run
from tests.integration.savers import begun, finish, saved_in, train, wait_until_saved
from tests.integration.test_local_disk_errors import PYTHON
from tests.slurm_sandbox.cluster import wait_until

pytestmark = pytest.mark.local

PART = "*/memory/saved/*/.0000{rank}.*.tmp"  # the file of a rank while it is written


class Disk:
    """The disk of one node, which fails or hangs where the agent writes its part of a save."""

    def __init__(
        self, door: Door, node: str, operation: str = "write", path: str = PART.format(rank=1), **more: object
    ) -> None:
        self._folder = door.folder
        faulty = shutil.copy(faulty_disk.__file__, door.folder / "faulty_disk.py")
        door.write("python", PYTHON.format(python=sys.executable, faulty=faulty)).chmod(0o700)
        root = str(door.folder / "hpc-elastic-runs")
        fault = {"node": node, "operation": operation, "path": path, "root": root, "after": False, **more}
        door.write("fault.json", json.dumps(fault))

    def wait_until_struck(self) -> None:
        wait_until((self._folder / "failed").exists, "the disk is used", within_s=60)

    @property
    def answers(self) -> Path:
        """With this file it works again."""
        return self._folder / "answers"


def hanging(door: Door, node: str = "local1", *, rank: int = 1) -> Disk:
    """A disk that hangs as its node writes the state of this rank."""
    return Disk(door, node, path=PART.format(rank=rank), until=str(door.folder / "answers"))


def left_in(run: Run) -> list[str]:
    saves = Path(run.layout.saves)
    return sorted(str(path.relative_to(saves)) for path in saves.rglob("*"))


def is_complete(folder: str | Path, ranks: int) -> bool:
    names = [f"{rank:05d}.{kind}" for rank in range(ranks) for kind in ("json", "state")]
    return sorted(os.listdir(folder)) == [*names, "manifest.json"]


def wait_until_nothing_is_left(run: Run) -> None:
    wait_until(lambda: not left_in(run), "nothing is left of the save", within_s=10, otherwise=lambda: left_in(run))


def end(run: Run, folder: Path, ranks: int) -> None:
    finish(run, folder, ranks)
    assert run.wait_until_over()["state"] == "SUCCEEDED", run.story()


def answer_of(started: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = started.communicate(timeout=60)
    assert "Traceback" not in stderr, stderr
    return started.returncode, stdout, stderr


USES = "python: ./python"


@pytest.mark.variant(of="test_a_full_disk_is_named_and_the_next_save_is_complete")
def test_a_second_request_is_refused_and_takes_nothing_from_the_first(door: Door) -> None:
    disk = hanging(door)
    run, folder = train(door, nodes="2", workers=1, site="local", more=USES)
    wait_until_saved(run, folder, 1, 2)
    first = door.start("save", str(run.path), "--json")
    disk.wait_until_struck()
    refused = door.run("save", str(run.path), exit_code=5).stderr
    assert "no state of saves is written: another `hpc-elastic save` is under way" in refused
    disk.answers.touch()
    code, stdout, stderr = answer_of(first)
    assert code == 0, stderr + run.story()
    assert is_complete(json.loads(stdout)["folder"], 2)
    end(run, folder, 2)


def test_a_full_disk_is_named_and_the_next_save_is_complete(door: Door) -> None:
    Disk(door, "local1", errno=errno.ENOSPC)
    run, folder = train(door, nodes="2", workers=1, site="local", more=USES)
    wait_until_saved(run, folder, 1, 2)
    refused = door.run("save", str(run.path), exit_code=5).stderr
    assert "local1: cannot write" in refused
    assert "No space left on device" in refused
    wait_until_nothing_is_left(run)
    answer = json.loads(door.run("save", str(run.path), "--json").stdout)
    assert is_complete(answer["folder"], 2)
    end(run, folder, 2)
    run.assert_records_valid()


def test_a_hanging_disk_delays_only_the_answer(door: Door) -> None:
    disk = hanging(door)
    run, folder = train(door, nodes="2", workers=1, site="local", more=USES)
    wait_until_saved(run, folder, 1, 2)
    began = time.monotonic()
    refused = door.run("save", str(run.path), "--timeout", "3", exit_code=5).stderr
    assert time.monotonic() - began < 40  # of the 10 minutes that it would else wait
    assert "local1 had not written its part in time" in refused
    os.kill(run.worker_pid(0), signal.SIGKILL)
    wait_until_saved(run, folder, 2, 2)
    disk.answers.touch()
    wait_until_nothing_is_left(run)
    answer = json.loads(door.run("save", str(run.path), "--json").stdout)
    assert is_complete(answer["folder"], 2)
    end(run, folder, 2)
    run.assert_records_valid()


@pytest.mark.variant(of="test_a_hanging_disk_delays_only_the_answer")
def test_a_run_ends_while_the_disk_still_hangs(door: Door) -> None:
    hanging(door)
    run, folder = train(door, nodes="2", workers=1, site="local", more=USES)
    wait_until_saved(run, folder, 1, 2)
    door.run("save", str(run.path), "--timeout", "2", exit_code=5)
    end(run, folder, 2)
    run.assert_nothing_left()
    assert left_in(run) == []


@pytest.mark.variant(of="test_a_hanging_disk_delays_only_the_answer")
def test_a_killed_rank_gives_the_save_up_and_the_next_attempt_goes_on(door: Door) -> None:
    disk = hanging(door)
    run, folder = train(door, nodes="2", workers=1, site="local", more=USES)
    wait_until_saved(run, folder, 1, 2)
    asked = door.start("save", str(run.path))
    disk.wait_until_struck()
    os.kill(run.worker_pid(0), signal.SIGKILL)
    code, _, stderr = answer_of(asked)
    assert code == 5
    assert "its workers were stopped or restarted before the state was complete" in stderr
    wait_until_saved(run, folder, 2, 2)
    disk.answers.touch()
    wait_until_nothing_is_left(run)
    end(run, folder, 2)
    run.assert_records_valid()


@pytest.mark.variant(of="test_a_hanging_disk_delays_only_the_answer")
def test_a_lost_head_gives_the_save_up_and_the_person_is_told(door: Door) -> None:
    disk = hanging(door)
    run, folder = train(door, nodes="{min: 2, max: 3}", workers=1, site="local", more=USES + "\nelastic: {lease: 3s}")
    wait_until_saved(run, folder, 1, 3)
    asked = door.start("save", str(run.path), "--timeout", "60")
    disk.wait_until_struck()
    began = time.monotonic()
    os.kill(run.agent_pid("local0"), signal.SIGKILL)
    code, _, stderr = answer_of(asked)
    assert code == 5
    assert "attempt 1 has ended, and the head that was asked does not answer" in stderr
    assert time.monotonic() - began < 40
    wait_until_saved(run, folder, 2, 2)
    disk.answers.touch()
    wait_until_nothing_is_left(run)
    again = json.loads(door.run("save", str(run.path), "--json").stdout)
    assert is_complete(again["folder"], 2)
    end(run, folder, 2)
    run.assert_records_valid(killed=("local0",))


@pytest.mark.variant(of="test_a_hanging_disk_delays_only_the_answer")
def test_what_a_node_wrote_after_the_save_was_given_up_is_removed(door: Door) -> None:
    disk = hanging(door, rank=3)  # the other rank of the node is done at once
    run, folder = train(door, nodes="2", workers=2, site="local", more=USES)
    wait_until_saved(run, folder, 1, 4)
    refused = door.run("save", str(run.path), "--timeout", "3", exit_code=5).stderr
    assert "local1 had not written its part in time" in refused
    disk.answers.touch()
    wait_until_nothing_is_left(run)
    end(run, folder, 4)
    run.assert_records_valid()


@pytest.mark.variant(of="test_a_hanging_disk_delays_only_the_answer")
def test_a_head_whose_node_is_drained_answers(door: Door) -> None:
    run, folder = train(door, nodes="{min: 2, max: 3}", workers=1, site="local")
    wait_until_saved(run, folder, 1, 3)
    door.run("drain", "--node", "local0", str(run.path))
    wait_until_saved(run, folder, 2, 2)
    answer = json.loads(door.run("save", str(run.path), "--json", "--timeout", "30").stdout)
    assert is_complete(answer["folder"], 2)
    end(run, folder, 2)


@pytest.mark.variant(of="test_a_hanging_disk_delays_only_the_answer")
def test_a_request_just_as_the_run_ends_is_answered(door: Door) -> None:
    run, folder = train(door, nodes="2", workers=1, site="local")
    wait_until_saved(run, folder, 1, 2)
    finish(run, folder, 2)
    asked = [door.start("save", str(run.path)) for _ in range(6)]
    for each in asked:
        code, stdout, stderr = answer_of(each)
        assert (code, bool(stdout), bool(stderr)) in [(0, True, False), (5, False, True)], stderr
    run.wait_until_over()
    run.assert_records_valid()
    assert len({name.split("/")[0] for name in left_in(run)}) <= 1


@pytest.mark.variant(of="test_another_run_goes_on_from_a_state_that_is_saved_while_the_first_goes_on")
def test_a_save_with_copies_on_other_nodes_begins_another_run(door: Door) -> None:
    run, folder = train(door, nodes="2", workers=1, site="local", more="state: {replicas: 1}")
    wait_until_saved(run, folder, 1, 2)
    answer = json.loads(door.run("save", str(run.path), "--json").stdout)
    assert is_complete(answer["folder"], 2)
    wait_until_saved(run, folder, 1, 2, more=answer["steps"][0] + 10)
    more = f"state: {{replicas: 1, load_from: {run.path.relative_to(door.folder)}}}"
    again, other = train(door, nodes="2", workers=1, site="local", name="again", more=more)
    wait_until_saved(again, other, 1, 2)
    assert set(begun(other, 1).values()) == {answer["steps"][0]}
    last = max(saved_in(each, rank, 1) for each in (folder, other) for rank in range(2)) + 100
    for each in (folder, other):
        (each / "end.new").write_text(str(last))
        (each / "end.new").rename(each / "end")
    for training in (run, again):
        assert training.wait_until_over()["state"] == "SUCCEEDED", training.story()
    weights = [[(each / f"weights.{rank}").read_text() for rank in range(2)] for each in (folder, other)]
    assert weights[0] == weights[1]


@pytest.mark.variant(of="test_another_run_goes_on_from_a_state_that_is_saved_while_the_first_goes_on")
@pytest.mark.parametrize("options", [(), ("--replicated",)], ids=["each-rank", "replicated"])
def test_another_world_size_begins_only_with_a_state_that_is_the_same_on_all_ranks(
    door: Door, options: tuple[str, ...]
) -> None:
    run, folder = train(door, *options, nodes="2", workers=1, site="local")
    wait_until_saved(run, folder, 1, 2)
    answer = json.loads(door.run("save", str(run.path), "--json").stdout)
    end(run, folder, 2)
    more = f"state: {{load_from: {run.path.relative_to(door.folder)}}}"
    again, other = train(door, *options, nodes="3", workers=1, site="local", name="again", more=more)
    wait_until_saved(again, other, 1, 3)
    assert set(begun(other, 1).values()) == {answer["steps"][0] if options else 0}, again.story()
    if not options:
        assert "is that of other ranks" in again.story()
    end(again, other, 3)


@pytest.mark.variant(of="test_a_full_disk_is_named_and_the_next_save_is_complete")
def test_the_answer_comes_when_a_disk_that_is_full_for_everything_has_room_again(door: Door) -> None:
    path, until = PART.format(rank=0), str(door.folder / "answers")
    disk = Disk(door, "local0", path=path, errno=errno.ENOSPC, until=until, spreads=True)
    run, folder = train(door, nodes="2", workers=1, site="local", more=USES)
    wait_until_saved(run, folder, 1, 2)
    asked = door.start("save", str(run.path))
    wait_until(lambda: "; trying again for up to 60 s" in run.story(), "the answer is refused", otherwise=run.story)
    disk.answers.touch()
    code, _, stderr = answer_of(asked)
    assert code == 5
    assert "No space left on device" in stderr
    wait_until_nothing_is_left(run)
    end(run, folder, 2)


ROLES = """
name: saves
site: local
time: 10m
start: spawn
state: {{load_from: {load_from}}}
roles:
  - name: actor
    nodes: 2
    workers_per_node: 1
    restart: {restart}
    entrypoint: {{script: role.py, args: [actor, {folder}]}}
  - name: learner
    nodes: 1
    workers_per_node: 2
    restart: {restart}
    entrypoint: {{script: role.py, args: [learner, {folder}]}}
"""
ROLE = """
import sys, time
from pathlib import Path
from hpc_elastic import memory
role, folder = sys.argv[1], Path(sys.argv[2])
state, step = memory.load()
assert step is None or state == {"role": role, "step": step}
print("begins at", step, flush=True)
done = step or (100 if role == "learner" else 0)
while not (folder / "end").exists():
    time.sleep(0.05)
    done += 1
    if role != "learner" or not (folder / "learner-saves-nothing").exists():
        memory.save(done, {"role": role, "step": done}, replicated=True)
    if done % 100 == 10:
        print("saved", done, flush=True)
"""


def start_roles(door: Door, name: str, *, load_from: str = "null", restart: str = "restart_role") -> Run:
    (door.folder / name).mkdir(exist_ok=True)
    door.write("role.py", ROLE)
    door.write("job.yaml", ROLES.format(folder=door.folder / name, load_from=load_from, restart=restart))
    run = door.submit("job.yaml")
    for rank in range(4):
        run.wait_for_output("saved", rank=rank)
    return run


@pytest.mark.variant(of="test_a_full_disk_is_named_and_the_next_save_is_complete")
def test_roles_that_restart_alone_are_saved_each_at_its_own_step(door: Door) -> None:
    run = start_roles(door, "first")
    answer = json.loads(door.run("save", str(run.path), "--json").stdout)
    names = [f"all-{role}.{kind}" for role in ("actor", "learner") for kind in ("json", "state")]
    assert sorted(os.listdir(answer["folder"])) == sorted([*names, "manifest.json"])
    manifest = json.loads(Path(answer["folder"], "manifest.json").read_text())
    found = {state["roles"][0]: state["step"] for state in manifest["states"]}
    assert sorted(found.values()) == answer["steps"]
    assert found["actor"] < found["learner"]
    again = start_roles(door, "again", load_from=str(run.path.relative_to(door.folder)))
    for rank in range(4):
        assert f"begins at {found['actor' if rank < 2 else 'learner']}\n" in again.stdout(1, rank), again.story()
    for name, training in (("first", run), ("again", again)):
        (door.folder / name / "end").touch()
        assert training.wait_until_over()["state"] == "SUCCEEDED", training.story()


@pytest.mark.variant(of="test_a_full_disk_is_named_and_the_next_save_is_complete")
def test_a_role_that_saves_nothing_is_named_when_the_time_is_over(door: Door) -> None:
    (door.folder / "first").mkdir()
    (door.folder / "first" / "learner-saves-nothing").touch()
    run = start_roles(door, "first", restart="restart_all")
    refused = door.run("save", str(run.path), "--timeout", "3", exit_code=5).stderr
    assert "local2 had no state in memory, and saved none in time" in refused
    (door.folder / "first" / "end").touch()
    assert run.wait_until_over()["state"] == "SUCCEEDED", run.story()
