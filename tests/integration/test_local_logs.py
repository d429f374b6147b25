"""The output of real runs on this machine: its times, and the lines that the agents add."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Door
from tests.tiers import variants

pytestmark = pytest.mark.local

SCRIPT = """
import os, time
rank = int(os.environ["RANK"])
print("loading", flush=True)
time.sleep(1.5 * rank)  # what is tested is the order of times that are more than a second apart
print("rank", rank, "is ready", flush=True)
raise SystemExit(rank == 3)
"""


@pytest.mark.variant(of="test_all_ranks_are_merged_by_time")
def test_ranks_of_two_nodes_are_merged_by_the_time_of_their_lines(door: Door) -> None:
    door.write("train.py", SCRIPT)
    door.write(
        "job.yaml",
        "name: t\nsite: local\nnodes: 2\nworkers_per_node: 2\nlog_level: debug\nrestart: {max_restarts: 0}\n"
        "entrypoint: {script: train.py}\n",
    )
    run = door.submit("job.yaml")
    run.wait_until_over()
    merged = door.run("logs", "--rank", "all", str(run.path)).stdout.splitlines()
    ready = [line for line in merged if "ready" in line]
    assert ready == [f"[local{rank // 2}:{rank}] rank {rank} is ready" for rank in range(4)], run.story()
    once = door.run("logs", "--dedupe", "--stdout", str(run.path)).stdout.splitlines()
    assert once == ["[ranks 0-3] loading", *ready]
    assert door.run("logs", "--failed", str(run.path)).stdout == "loading\nrank 3 is ready\n"
    for number in range(2):
        said = Path(run.layout.agent_output(f"local{number}")).read_text()
        assert f"group_rank={number} group_world_size=2 local_ranks=0-1" in said
    run.assert_records_valid()


FALLS_SILENT = """
import os, signal
print("step", 1, "of rank", os.environ["RANK"])
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
signal.pause()
"""


@pytest.mark.parametrize(
    "start", ["fork", *variants("spawn", of="test_what_a_rank_printed_is_there_if_a_signal_ends_it")]
)
def test_what_a_rank_printed_is_there_if_a_signal_ends_it(door: Door, start: str) -> None:
    door.write("train.py", FALLS_SILENT)
    door.write(
        "job.yaml",
        f"name: t\nsite: local\nworkers_per_node: 2\nstart: {start}\nrestart: {{max_restarts: 0}}\n"
        "entrypoint: {script: train.py}\n",
    )
    run = door.submit("job.yaml")
    run.wait_until_over()
    printed = {rank: Path(run.layout.stdout(1, rank)).read_text() for rank in (0, 1)}
    assert printed == {rank: f"step 1 of rank {rank}\n" for rank in (0, 1)}, run.story()


TALKS = """
import os, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["HPC_ELASTIC_ATTEMPT"])
for step in range(200):
    print("step", step, "of", rank)
print("a line that all print", flush=True)
sys.stderr.write("warning of rank %d, no end" % rank)
sys.stderr.flush()
sys.stdout.buffer.write(bytes(range(128)) * 500 + b"\\rprogress\\n")
sys.stdout.flush()
time.sleep(1.5 * rank)  # marks of logs come each second
print("rank", rank, "is ready", flush=True)
if attempt == 1 and rank == 3:
    os.write(2, b"\\nlast words\\n")
    os._exit(7)
if attempt == 1:
    time.sleep(600)
"""


@pytest.mark.variant(of="test_all_ranks_are_merged_by_time")
def test_logs_prints_the_same_of_ranks_with_files_and_of_nodes_with_files(door: Door) -> None:
    door.write("train.py", TALKS)
    said: dict[str, list[tuple[tuple[str, ...], str, str]]] = {}
    for per in ("rank", "node"):
        door.write(
            f"{per}.yaml",
            "name: t\nsite: local\nnodes: 2\nworkers_per_node: 2\nrestart: {max_restarts: 1}\n"
            f"logs: {{per: {per}}}\nentrypoint: {{script: train.py}}\n",
        )
        run = door.submit(f"{per}.yaml")
        run.wait_until_over()
        words = [
            *[("--rank", str(rank), "--attempt", str(number)) for rank in range(4) for number in (1, 2)],
            *[("--rank", "0-3", "--stdout", "--grep", text) for text in ("ready", "of 2$")],
            ("--rank", "all", "--attempt", "1", "--grep", "ready|last"),
            ("--dedupe", "--stdout", "--grep", "all print|ready"),
            ("--rank", "2", "--tail", "3", "--stdout"),
            ("--failed", "--tail", "2", "--stderr"),
            ("--follow", "--rank", "1"),
            ("--rank", "9"),
            ("--attempt", "7"),
        ]
        said[per] = []
        for each in words:
            printed = door.run("logs", *each, str(run.path), exit_code=None)
            said[per].append((each, printed.stdout, printed.stderr.replace(str(run.path), "RUN")))
        error = (run.path / "attempts/0001/ranks/00003/error.json").read_text()
        assert "last words" in error, run.story()
        assert "last words" in door.run("explain", "--attempt", "1", str(run.path), exit_code=None).stdout
        run.assert_records_valid()
        if per == "node":
            found = sorted(path.name for path in run.path.glob("attempts/0001/ranks/*"))
            assert found == ["00003"], "only ranks that failed have a folder"
            logs = sorted(path.name for path in run.path.glob("attempts/*/nodes/*.log"))
            assert logs == ["local0.log", "local0.log", "local1.log", "local1.log"]
    assert said["node"] == said["rank"]
