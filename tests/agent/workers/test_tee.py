"""The repetition of ranks' output in the agent's log."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_elastic.agent.workers.log_destinations import LogDestinations
from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.agent.workers.tee import LONGEST_LINE, Duplicates, Tee, TeedFile, start_tee
from hpc_elastic.plan.launch_plan import LogsPlan
from hpc_elastic.plan.std_streams import Std
from hpc_elastic.rundir.layout import RunLayout
from tests.slurm_sandbox.sandbox import wait_until

Capture = pytest.CaptureFixture[bytes]


def followed(path: Path, prefix: str = "> ", stream: Std = Std.OUT) -> TeedFile:
    return TeedFile(path=str(path), prefix=prefix, stream=stream)


def teed(capfdbinary: Capture) -> list[bytes]:
    return capfdbinary.readouterr().out.splitlines()


def test_each_line_says_who_wrote_it_and_keeps_its_stream(tmp_path: Path, capfdbinary: Capture) -> None:
    (tmp_path / "out").write_text("one\ntwo\n")
    (tmp_path / "err").write_text("three\n")
    prefix = "[node1:0] "
    Tee([followed(tmp_path / "out", prefix), followed(tmp_path / "err", prefix, Std.ERR)]).close()
    captured = capfdbinary.readouterr()
    assert captured.out == b"[node1:0] one\n[node1:0] two\n"
    assert captured.err == b"[node1:0] three\n"


def test_a_line_that_comes_in_parts_is_one_line(tmp_path: Path, capfdbinary: Capture) -> None:
    path = tmp_path / "out"
    tee = Tee([followed(path)])
    with open(path, "wb", buffering=0) as file:  # a file that appears late
        for part in (b"be", b"gin\nmid", b"dle\nen", b"d"):
            file.write(part)
            os.fsync(file.fileno())
    tee.close()
    assert teed(capfdbinary) == [b"> begin", b"> middle", b"> end"]


@pytest.mark.long
def test_lines_of_two_streams_are_never_mixed_within_a_line(tmp_path: Path) -> None:
    """Both of the agent's streams are one file, and the workers write halves of lines by turns."""
    script = f"""
import sys
from hpc_elastic.agent.workers.tee import Tee, TeedFile
from hpc_elastic.plan.std_streams import Std
tee = Tee([TeedFile(path={str(tmp_path / "out")!r}, prefix="o ", stream=Std.OUT),
           TeedFile(path={str(tmp_path / "err")!r}, prefix="e ", stream=Std.ERR)])
sys.stdin.readline()
tee.close()
"""
    with open(tmp_path / "log", "ab") as log:
        agent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=log, stderr=log)
    with open(tmp_path / "out", "wb", buffering=0) as out, open(tmp_path / "err", "wb", buffering=0) as err:
        for number in range(2000):
            for file in (out, err):
                file.write(b"<%d" % number)
            for file in (out, err):
                file.write(b"%d>\n" % number)
        wait_until(lambda: (tmp_path / "log").stat().st_size > 0, "the tee repeats something while workers write")
    agent.communicate(b"\n", timeout=60)
    lines = (tmp_path / "log").read_text().splitlines()
    assert sorted(lines) == sorted(f"{stream} <{number}{number}>" for number in range(2000) for stream in "oe")


def test_no_line_is_lost_where_a_write_takes_only_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With PYTHONUNBUFFERED the stream is the descriptor itself: a signal may end a write to a pipe early."""

    class Hasty(io.RawIOBase):
        written = b""

        def write(self, data: Any) -> int:
            self.written += bytes(data[:10])
            return min(len(data), 10)

    (tmp_path / "out").write_text("the first line\nthe second line\n")
    stream = Hasty()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=stream))
    Tee([followed(tmp_path / "out")]).close()
    assert stream.written == b"> the first line\n> the second line\n"


def test_a_line_without_an_end_is_cut(tmp_path: Path, capfdbinary: Capture) -> None:
    (tmp_path / "out").write_bytes(b"x" * (5 * LONGEST_LINE))
    Tee([followed(tmp_path / "out", "")]).close()
    lines = teed(capfdbinary)
    assert sum(map(len, lines)) == 5 * LONGEST_LINE
    assert max(map(len, lines)) <= 2 * LONGEST_LINE


def test_bytes_that_are_no_text_pass_unchanged(tmp_path: Path, capfdbinary: Capture) -> None:
    (tmp_path / "out").write_bytes(b"\xff\xfe\r50%\r100%\n")
    Tee([followed(tmp_path / "out")]).close()
    assert capfdbinary.readouterr().out == b"> \xff\xfe\r50%\r100%\n"


def test_a_file_that_never_comes_is_no_trouble(tmp_path: Path, capfdbinary: Capture) -> None:
    Tee([followed(tmp_path / "never")]).close()
    assert teed(capfdbinary) == []


def test_the_last_lines_of_a_worker_that_was_killed_are_repeated(tmp_path: Path, capfdbinary: Capture) -> None:
    source = "import os\nos.write(1, b'one\\ntwo\\nlast words')\nos.kill(os.getpid(), 9)"
    tee = Tee([followed(tmp_path / "out")])
    with open(tmp_path / "out", "ab") as out:
        assert subprocess.run([sys.executable, "-c", source], stdout=out, timeout=60).returncode == -9
    tee.close()
    assert teed(capfdbinary) == [b"> one", b"> two", b"> last words"]


@pytest.mark.long
def test_closing_ends_although_somebody_goes_on_writing(tmp_path: Path) -> None:
    with open(tmp_path / "out", "ab") as out:  # not `yes`, which would fill a disk if the test took long
        writer = subprocess.Popen(["sh", "-c", "while :; do echo yes; done"], stdout=out)
    try:
        script = f"""
from hpc_elastic.agent.workers.tee import Tee, TeedFile
Tee([TeedFile(path={str(tmp_path / "out")!r}, prefix="")]).close()
"""
        subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL, check=True, timeout=60)
    finally:
        writer.kill()
        writer.wait()


@pytest.mark.long
def test_memory_does_not_grow_with_a_million_short_lines(tmp_path: Path) -> None:
    script = """
import resource, sys
from hpc_elastic.agent.workers.tee import Duplicates, Tee, TeedFile
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
paths = sys.argv[1:3]
Tee([TeedFile(path=paths[0], prefix="> ")], out=Duplicates(path=paths[0] + ".filtered", filters=("9",))).close()
before = peak()
Tee([TeedFile(path=paths[1], prefix="> ")], out=Duplicates(path=paths[1] + ".filtered", filters=("9",))).close()
print(peak() - before, file=sys.stderr)
"""
    for name, count in (("few", 20_000), ("many", 1_000_000)):
        (tmp_path / name).write_bytes(b"".join(b"line %d\n" % number for number in range(count)))
    paths = [str(tmp_path / name) for name in ("few", "many")]
    done = subprocess.run([sys.executable, "-c", script, *paths], capture_output=True, check=True, timeout=120)
    assert len(done.stdout.splitlines()) == 1_020_000
    assert int(done.stderr) < 2 * 1024  # KiB; the lines themselves have 12 MB


def test_lines_that_match_a_filter_go_to_a_file_as_well(tmp_path: Path, capfdbinary: Capture) -> None:
    (tmp_path / "out").write_text("apple 1\npear 2\nred apple\nno end, orange")
    (tmp_path / "err").write_text("apple of the other stream\n")
    path = tmp_path / "nodes" / "n.filtered_stdout.log"
    Tee(
        [followed(tmp_path / "out", "[0] "), followed(tmp_path / "err", "[0] ", Std.ERR)],
        out=Duplicates(path=str(path), filters=("apple", "orange")),
    ).close()
    assert path.read_text() == "[0] apple 1\n[0] red apple\n[0] no end, orange\n"
    assert len(teed(capfdbinary)) == 4
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_filter_that_matches_nothing_leaves_an_empty_file(tmp_path: Path, capfdbinary: Capture) -> None:
    (tmp_path / "out").write_text("pear\n")
    path = tmp_path / "filtered"
    Tee([followed(tmp_path / "out")], out=Duplicates(path=str(path), filters=("apple",))).close()
    assert path.read_text() == ""


def test_the_tee_goes_on_if_the_file_for_matches_cannot_be_made(tmp_path: Path, capfdbinary: Capture) -> None:
    (tmp_path / "out").write_text("apple\n")
    (tmp_path / "file").write_text("")
    duplicates = Duplicates(path=str(tmp_path / "file" / "x"), filters=("apple",))
    Tee([followed(tmp_path / "out")], out=duplicates).close()
    assert teed(capfdbinary) == [b"> apple"]


def an_order(rank: int, local_rank: int, teed_streams: Std) -> WorkerOrder:
    return WorkerOrder(
        rank=rank,
        local_rank=local_rank,
        attempt=2,
        kind="command",
        target="x",
        arguments=(),
        environment={"ROLE_NAME": "trainer"},
        directory="/",
        destinations=LogDestinations(teed=teed_streams),
    )


def test_only_the_teed_streams_of_a_node_are_followed_with_the_prefix_that_was_asked_for(
    tmp_path: Path, capfdbinary: Capture
) -> None:
    layout = RunLayout(tmp_path)
    for rank in (4, 5):
        Path(layout.rank(2, rank)).mkdir(parents=True)
        Path(layout.stdout(2, rank)).write_text(f"out {rank}\n")
        Path(layout.stderr(2, rank)).write_text(f"err {rank}\n")
    prefix = "${role_name} ${local_rank} ${rank} ${node} ${attempt} $$: "
    logs = LogsPlan(per="rank", prefix=prefix, duplicate_stderr_filters=("err",))
    tee = start_tee(logs, layout, [an_order(4, 0, Std.OUT), an_order(5, 1, Std.ERR)], node="n1")
    assert tee is not None
    tee.close()
    captured = capfdbinary.readouterr()
    assert captured.out == b"trainer 0 4 n1 2 $: out 4\n"
    assert captured.err == b"trainer 1 5 n1 2 $: err 5\n"
    assert Path(layout.filtered_stderr(2, "n1")).read_text() == "trainer 1 5 n1 2 $: err 5\n"
    assert not Path(layout.filtered_stdout(2, "n1")).exists()


def test_there_is_no_tee_if_nothing_is_teed(tmp_path: Path) -> None:
    assert start_tee(LogsPlan(per="rank"), RunLayout(tmp_path), [an_order(4, 0, Std.NONE)], node="n1") is None
