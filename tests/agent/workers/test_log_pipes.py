"""The output of ranks through pipes: whole lines, in order, none lost, and a flood that holds up nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hpc_elastic.agent.workers.log_destinations import LogDestinations
from hpc_elastic.agent.workers.log_pipes import LONGEST_LINE, LogPipes, start_pipes
from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.plan.launch_plan import LogsPlan
from hpc_elastic.plan.std_streams import NO_STREAMS, Std
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.node_log import parse_time, parse_writer, rank_bytes
from tests.slurm_sandbox.sandbox import wait_until

NODE = LogsPlan(per="node")


def an_order(rank: int, *, teed: Std = Std.NONE, redirected: Std = Std.ALL) -> WorkerOrder:
    return WorkerOrder(
        rank=rank,
        local_rank=rank,
        attempt=1,
        kind="script",
        target="x",
        arguments=(),
        environment={},
        directory="/",
        destinations=LogDestinations(redirected=redirected, teed=teed),
    )


class Ranks:
    """Ranks that write into the pipes of a node."""

    def __init__(self, root: Path, logs: LogsPlan, orders: list[WorkerOrder]) -> None:
        self.layout = RunLayout(root)
        self.said: list[str] = []
        pipes = start_pipes(logs, self.layout, orders, node="n", say=self.said.append)
        assert pipes is not None
        self.pipes: LogPipes = pipes
        self.outputs = [pipes.output(order) for order in orders]
        self.files = [{stream: output.open(stream) for stream in (Std.OUT, Std.ERR)} for output in self.outputs]

    def write(self, rank: int, content: bytes, stream: Std = Std.OUT) -> None:
        view = memoryview(content)
        while view:
            view = view[os.write(self.files[rank][stream], view) :]

    def close(self) -> None:
        for files in self.files:
            for descriptor in files.values():
                os.close(descriptor)
        self.files = []
        self.pipes.close()

    def lines(self) -> list[bytes]:
        return Path(self.layout.node_log(1, "n")).read_bytes().split(b"\n")[:-1]

    def read(self, rank: int, stream: Std = Std.OUT) -> bytes:
        return b"".join(rank_bytes(self.lines(), rank, is_stderr=stream is Std.ERR))


@contextmanager
def ranks(root: Path, logs: LogsPlan = NODE, count: int = 2, teed: Std = Std.NONE) -> Iterator[Ranks]:
    made = Ranks(root, logs, [an_order(rank, teed=teed) for rank in range(count)])
    try:
        yield made
    finally:
        made.close()


def test_each_line_of_a_nodes_log_has_time_rank_and_stream(tmp_path: Path) -> None:
    before = time.time_ns()
    with ranks(tmp_path) as node:
        node.write(0, b"first\n\nthird\n")
        node.write(1, b"trouble\n", Std.ERR)
    after = time.time_ns()
    heads = [line.split(b" ", 3) for line in node.lines()]
    writers = sorted(str(parse_writer(rank, stream)) for _, rank, stream, _ in heads)
    assert writers == [*["(0, False, False)"] * 3, "(1, True, False)"]
    times = [parse_time(head[0]) for head in heads]
    assert times == sorted(times)
    assert before - 1000 <= times[0] <= times[-1] <= after
    assert node.read(0) == b"first\n\nthird\n"
    assert node.read(1, Std.ERR) == b"trouble\n"


def test_there_are_no_pipes_if_workers_write_to_files_of_their_own(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    assert start_pipes(LogsPlan(per="rank"), layout, [an_order(0)], node="n", say=print) is None
    orders = [an_order(0, redirected=Std.NONE)]
    assert start_pipes(LogsPlan(per="node", redirects=NO_STREAMS), layout, orders, node="n", say=print) is None


def test_every_byte_comes_back_as_it_was_written(tmp_path: Path) -> None:
    contents = [bytes(range(256)) * 3000, b"x" * (3 * LONGEST_LINE) + b"\ny\r\n\n" + "ä€".encode() * 9, b"\n\nno end"]
    with ranks(tmp_path, count=3) as node:
        writers = [threading.Thread(target=node.write, args=item) for item in enumerate(contents)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    assert [node.read(rank) for rank in range(3)] == contents


@pytest.mark.long
def test_an_incomplete_line_is_readable_before_its_end_comes(tmp_path: Path) -> None:
    with ranks(tmp_path) as node:
        node.write(0, b"progress 10 %")
        wait_until(lambda: node.read(0) == b"progress 10 %", "the part is written")
        node.write(0, b" 20 %\ndone\n")
    assert node.read(0) == b"progress 10 % 20 %\ndone\n"


def test_the_end_of_standard_error_is_known_before_the_log_is_written(tmp_path: Path) -> None:
    with ranks(tmp_path) as node:
        node.write(1, b"a warning\n" * 5000 + b"last words", Std.ERR)
        tail = node.outputs[1].stderr_tail()
        assert tail.endswith("a warning\nlast words")
        assert tail.startswith("a warning\n")
        assert node.outputs[0].stderr_tail() == ""


def test_teed_lines_are_repeated_whole(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with ranks(tmp_path, LogsPlan(per="node", duplicate_stdout_filters=("loss",)), teed=Std.ALL) as node:
        node.write(0, b"one\nloss 2\nno end")
        node.write(1, b"bad\n", Std.ERR)
    captured = capfd.readouterr()
    assert captured.out == "[n:0] one\n[n:0] loss 2\n[n:0] no end\n"
    assert captured.err == "[n:1] bad\n"
    assert Path(node.layout.filtered_stdout(1, "n")).read_text() == "[n:0] loss 2\n"


FLOOD = """
import os, sys
number = 0
while number < int(sys.argv[1]):
    lines = "".join(f"line {number + more:09d} {'x' * 80}\\n" for more in range(1000)).encode()
    number += 1000
    while lines:
        lines = lines[os.write(1, lines):]
"""


def numbers(content: bytes) -> list[int]:
    assert all(line.endswith(b" " + b"x" * 80) for line in content.splitlines())
    return [int(line.split()[1]) for line in content.splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("per", ["rank", "node"])
def test_a_log_that_is_cut_keeps_its_end_whole_and_without_a_gap(tmp_path: Path, per: str) -> None:
    count, most = 400_000, 1024 * 1024
    logs = LogsPlan(per="node" if per == "node" else "rank", max_size_bytes=most)
    largest = 0
    with ranks(tmp_path, logs, count=1) as node:
        log = node.layout.node_log(1, "n") if per == "node" else node.layout.stdout(1, 0)
        earlier = node.layout.earlier(log)
        writer = subprocess.Popen([sys.executable, "-c", FLOOD, str(count)], stdout=node.files[0][Std.OUT])
        while writer.poll() is None:
            for path in (log, earlier):
                with suppress(FileNotFoundError):  # at the moment of the cut
                    largest = max(largest, os.path.getsize(path))
    assert writer.returncode == 0
    content = Path(earlier).read_bytes() + Path(log).read_bytes()
    if per == "node":
        content = b"".join(rank_bytes(content.split(b"\n")[:-1], 0, is_stderr=False))
    found = numbers(content)
    assert found == list(range(found[0], count))
    assert largest <= most // 2 + 130  # the line that was begun is completed
    assert os.path.getsize(log) + os.path.getsize(earlier) > most // 2 - 200


def test_a_rank_that_floods_does_not_hold_up_the_others(tmp_path: Path) -> None:
    stop = threading.Event()

    def flood(node: Ranks) -> None:
        while not stop.is_set():
            node.write(0, b"x" * 99_999 + b"\n")

    with ranks(tmp_path, LogsPlan(per="node", max_size_bytes=8 * 1024 * 1024)) as node:
        writer = threading.Thread(target=flood, args=(node,))
        writer.start()
        seen = 0
        for number in range(20):
            text = f"step {number}\n".encode()
            node.write(1, text, Std.ERR)
            seen += node.outputs[1].stderr_tail().endswith(text.decode())
        stop.set()
        writer.join()
    assert seen == 20


def test_a_disk_that_refuses_lines_costs_whole_lines_and_says_so(tmp_path: Path) -> None:
    with ranks(tmp_path) as node:
        node.write(0, b"before\n")
        wait_until(lambda: node.read(0) == b"before\n", "the first line is written")
        log = Path(node.layout.node_log(1, "n"))
        kept = node.pipes._node_log
        assert kept is not None
        kept.writer.close()  # as after an error of the file server
        log.rename(tmp_path / "kept")
        log.mkdir()  # what cannot be opened for writing
        node.write(0, b"lost\nlost\n")
        wait_until(lambda: bool(node.said), "the loss is said")
        node.write(1, b"lost\n")
        wait_until(lambda: kept.writer.lost_lines > 2, "the second loss is counted")
        log.rmdir()
        (tmp_path / "kept").rename(log)
        node.write(0, b"after\n")
    assert node.read(0) == b"before\nafter\n"
    [line] = [line for line in node.lines() if b" - " in line]
    assert line.endswith(b" - 3 lines were lost: Is a directory")
    assert node.said == [f"output of workers is lost: {log}: Is a directory; the workers go on"]
