"""The marks about how long each log was at which time."""

from __future__ import annotations

from pathlib import Path

from hpc_elastic.agent.workers.log_destinations import LogDestinations
from hpc_elastic.agent.workers.log_marks import LogMarks, follow_logs
from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.plan.launch_plan import LogsPlan
from hpc_elastic.plan.std_streams import Std
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from tests.slurm_sandbox.sandbox import wait_until


def an_order(redirected: Std) -> WorkerOrder:
    return WorkerOrder(
        rank=4,
        local_rank=0,
        attempt=2,
        kind="command",
        target="x",
        arguments=(),
        environment={},
        directory="/",
        destinations=LogDestinations(redirected=redirected),
    )


def test_a_mark_names_the_files_that_have_changed(tmp_path: Path) -> None:
    path, log = tmp_path / "nodes" / "n.marks.jsonl", tmp_path / "log"
    marks = LogMarks(pause_s=0.01)
    marks.follow(str(path), {"0.stdout": str(log), "1.stdout": str(tmp_path / "never")})
    ends = []
    for content in (b"one\n", b"one\ntwo\n", b""):
        log.write_bytes(content)
        ends.append({"0.stdout": len(content)})
        wait_until(lambda: len(list(store.read_lines(str(path)))) == len(ends), "a mark")
    log.write_bytes(b"last")
    marks.close()
    found = list(store.read_lines(str(path)))
    assert [mark["ends"] for mark in found][:3] == ends
    assert found[-1]["ends"] == {"0.stdout": 4}
    assert [mark["time_ns"] for mark in found] == sorted(mark["time_ns"] for mark in found)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_disk_that_takes_no_marks_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "log").write_text("x\n")
    marks = LogMarks(pause_s=0.01)
    marks.follow(str(tmp_path / "file" / "marks"), {"0.stdout": str(tmp_path / "log")})
    marks.close()


def test_each_attempt_has_marks_of_its_own_and_the_last_one_is_written_when_it_stops(tmp_path: Path) -> None:
    marks = LogMarks(pause_s=3600)
    marks.stop()  # of an attempt whose workers never started
    for attempt in (1, 2, 3):
        log, path = tmp_path / f"log{attempt}", tmp_path / f"{attempt}.marks"
        marks.follow(str(path), {"0.stdout": str(log)})
        log.write_bytes(b"x" * attempt)
        if attempt != 2:  # it is followed by the next one without a stop
            marks.stop()
    marks.close()
    found = [[mark["ends"] for mark in store.read_lines(str(tmp_path / f"{attempt}.marks"))] for attempt in (1, 2, 3)]
    assert found == [[{"0.stdout": attempt}] for attempt in (1, 2, 3)]
    marks.close()


def test_only_redirected_streams_have_marks(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    Path(layout.rank(2, 4)).mkdir(parents=True)
    for path in (layout.stdout(2, 4), layout.stderr(2, 4)):
        Path(path).write_text("x\n")
    marks = LogMarks()
    follow_logs(marks, LogsPlan(per="rank"), layout, [an_order(Std.NONE)], node="n")
    marks.close()
    assert not Path(layout.log_marks(2, "n")).exists()
    follow_logs(marks, LogsPlan(per="rank"), layout, [an_order(Std.ERR)], node="n")
    marks.close()
    assert [mark["ends"] for mark in store.read_lines(layout.log_marks(2, "n"))] == [{"4.stderr": 2}]
