"""Training whose state is in memory, on this machine: ranks are killed, and no step that all had saved is repeated."""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="there is no torch")


from tests.integration import memory_trainer
from tests.integration.conftest import Door, Run
from tests.integration.savers import STEP_MS, begun, finish, saved_in, wait_until_saved
from tests.integration.savers import train as train_until_told

pytestmark = pytest.mark.local

KILLS = 8


def train(door: Door, name: str, *arguments: str, max_restarts: int = 50) -> Run:
    result = door.folder / name
    listed = ", ".join(json.dumps(argument) for argument in (str(result), *arguments))
    door.write(
        "job.yaml",
        f"""
name: {name}
site: local
nodes: 2
workers_per_node: 1
time: 10m
entrypoint: {{script: {memory_trainer.__file__}, args: [{listed}]}}
restart: {{max_restarts: {max_restarts}}}
""",
    )
    return door.submit("job.yaml")


def begins(run: Run) -> dict[int, set[int]]:
    """At which step the ranks of each attempt began."""
    found: dict[int, set[int]] = {}
    for path in run.path.glob("attempts/*/ranks/*/stdout.log"):
        for line in path.read_text().splitlines():
            begun = json.loads(line)
            found.setdefault(begun["attempt"], set()).add(begun["first"])
    return dict(sorted(found.items()))


def chosen(run: Run) -> list[str]:
    lines = [line for path in run.path.glob("nodes/*/events.jsonl") for line in path.read_text().splitlines()]
    events = [event for event in map(json.loads, lines) if event["name"] == "state.chosen"]
    return [event["message"] for event in sorted(events, key=lambda event: event["attempt"])]


def test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one(door: Door) -> None:
    undisturbed = train(door, "undisturbed", "0")
    assert undisturbed.wait_until_over()["state"] == "SUCCEEDED", undisturbed.story()
    assert chosen(undisturbed) == []
    killed = train(door, "killed", str(KILLS))
    result = killed.wait_until_over()
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", KILLS + 1), killed.story()
    firsts = begins(killed)
    assert all(len(steps) == 1 for steps in firsts.values()), "two steps in one attempt"
    done = [next(iter(firsts[attempt])) for attempt in range(1, KILLS + 2)]
    for before, after in itertools.pairwise(done):
        last = before + memory_trainer.SAVES_BETWEEN_KILLS - 1  # that the rank which died had saved
        assert after in (last - 1, last), done
    assert _weights(door, "killed") == _weights(door, "undisturbed")
    assert len(chosen(killed)) == KILLS
    killed.assert_nothing_left()


def test_all_ranks_load_from_disk_if_the_same_failure_comes_after_a_load_from_memory(door: Door) -> None:
    run = train(door, "stuck", "0", "--fails-at", "5", max_restarts=2)
    assert run.wait_until_over()["state"] == "FAILED"
    assert begins(run) == {1: {0}, 2: {4}, 3: {0}}
    assert chosen(run) == [
        "attempt 2: all ranks can go on at step 4, which is in memory",
        "attempt 3: all ranks load from disk: the same failure came again after step 4 was loaded from memory",
    ]


def _weights(door: Door, name: str) -> str:
    return Path(door.folder / name).read_text()


@pytest.mark.variant(of="test_another_run_goes_on_from_a_state_that_is_saved_while_the_first_goes_on")
def test_another_run_goes_on_where_a_cancelled_one_was(door: Door) -> None:
    run, folder = train_until_told(door, nodes="2", workers=1, site="local")
    wait_until_saved(run, folder, 1, 2)
    door.run("cancel", str(run.path))
    result = run.wait_until_over()
    assert result["state"] == "CANCELLED", run.story()
    run.assert_nothing_left()
    step = min(saved_in(folder, rank, 1) for rank in (0, 1))
    folder.rename(door.folder / "before")
    again, folder = train_until_told(
        door, nodes="2", workers=1, site="local", more=f"state: {{load_from: {run.path.relative_to(door.folder)}}}"
    )
    wait_until_saved(again, folder, 1, 2)
    (first,) = set(begun(folder, 1).values())
    assert step <= first <= step + 1, again.story()
    assert chosen(again) == [f"attempt 1: all ranks can go on at step {first}, which another run has kept"]
    os.kill(again.worker_pid(1), signal.SIGKILL)
    wait_until_saved(again, folder, 2, 2)
    assert min(begun(folder, 2).values()) >= min(saved_in(folder, rank, 1) for rank in (0, 1))
    finish(again, folder, 2)
    assert again.wait_until_over()["state"] == "SUCCEEDED", again.story()
    assert Path(run.layout.memory).is_dir(), "what another run has left is not ours to remove"
    again.assert_nothing_left()


def test_another_run_goes_on_from_a_state_that_is_saved_while_the_first_goes_on(door: Door) -> None:
    run, folder = train_until_told(door, nodes="2", workers=1, site="local")
    wait_until_saved(run, folder, 1, 2)
    before = min(saved_in(folder, rank, 1) for rank in range(2))
    answer = json.loads(door.run("save", str(run.path), "--json").stdout)
    after = max(saved_in(folder, rank, 1) for rank in range(2))
    (step,) = answer["steps"]
    assert before <= step <= after
    wait_until_saved(run, folder, 1, 2, more=after + 3)  # it goes on, in the same attempt
    second = json.loads(door.run("save", str(run.path), "--json").stdout)
    assert second["steps"][0] > step
    assert not Path(answer["folder"]).exists(), "the older one has to go when the newer one is complete"
    ranks = [f"{rank:05d}.{kind}" for rank in range(2) for kind in ("json", "state")]
    assert sorted(os.listdir(second["folder"])) == [*ranks, "manifest.json"]
    more = f"state: {{load_from: {run.path.relative_to(door.folder)}}}"
    again, other = train_until_told(door, nodes="2", workers=1, site="local", name="again", more=more)
    wait_until_saved(again, other, 1, 2)
    assert set(begun(other, 1).values()) == {second["steps"][0]}, again.story()
    assert not run.is_over(), run.story()
    end = max(saved_in(each, rank, 1) for each in (folder, other) for rank in range(2)) + 3000 // STEP_MS  # as `finish`
    for each in (folder, other):
        (each / "end.new").write_text(str(end))
        (each / "end.new").rename(each / "end")
    for training in (run, again):
        assert training.wait_until_over()["state"] == "SUCCEEDED", training.story()
        assert training.attempts() == [1]
    weights = [[(each / f"weights.{rank}").read_text() for rank in range(2)] for each in (folder, other)]
    assert weights[0] == weights[1]
    assert Path(second["folder"]).is_dir(), "what a person had written is not the run's to remove"
    ended = door.run("save", str(run.path), exit_code=5).stderr
    assert f"is over (SUCCEEDED), and has no rank that holds a state: step {second['steps'][0]} is in" in ended


def test_a_run_that_left_no_state_is_refused_before_anything_is_made(door: Door) -> None:
    (door.folder / "other").mkdir()
    door.write("job.yaml", "site: local\nentrypoint: {command: /bin/true}\nstate: {load_from: other}\n")
    refused = door.run("submit", "job.yaml", exit_code=3)
    message = f"{door.folder}/other has no training state: there is nothing in its folder memory"
    assert refused.stderr.splitlines()[0] == f"hpc-elastic: error: job.yaml:3: state.load_from: {message}", (
        refused.stderr
    )
    assert not list(door.folder.glob("hpc-elastic-runs/*"))
