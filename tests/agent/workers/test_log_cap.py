"""Logs that must not grow beyond a size: what is kept, what is repeated, and what an error file says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.agent.workers.log_cap import LogCap, cut_log, is_due
from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.agent.workers.tee import Tee, TeedFile, start_tee
from hpc_elastic.plan.launch_plan import LogsPlan
from hpc_elastic.rundir.error_file import read_log_tail
from hpc_elastic.rundir.layout import RunLayout
from tests.slurm_sandbox.sandbox import wait_until

MOST = 64 * 1024


def a_cap(path: Path) -> LogCap:
    return LogCap(path=str(path), earlier=RunLayout.earlier(str(path)), most_bytes=MOST)


def lines_of(count: int) -> list[str]:
    return [f"line {number:06d}" for number in range(count)]


def test_the_end_is_kept_beside_from_a_whole_line_on(tmp_path: Path) -> None:
    log = tmp_path / "stdout.log"
    lines = lines_of(10_000)
    log.write_text("\n".join(lines) + "\n")
    cap = a_cap(log)
    parts: list[tuple[int, bytes]] = []
    assert is_due(cap)
    assert cut_log(cap, lambda offset, chunk: parts.append((offset, chunk)))
    kept = Path(cap.earlier).read_text()
    assert MOST // 2 - 20 < len(kept) <= MOST // 2
    assert kept.splitlines() == lines[-len(kept.splitlines()) :]
    assert log.read_bytes() == b""
    assert not is_due(cap)
    assert sum(len(chunk) for _, chunk in parts) == MOST // 2
    assert os.stat(cap.earlier).st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["stdout.log", "stdout.log.1"]


def test_a_log_stays_whole_if_its_end_cannot_be_copied(tmp_path: Path) -> None:
    log = tmp_path / "stdout.log"
    log.write_bytes(b"x" * MOST)
    cap = LogCap(path=str(log), earlier=str(tmp_path / "nowhere" / "stdout.log.1"), most_bytes=MOST)
    assert not cut_log(cap)
    assert log.stat().st_size == MOST
    assert os.listdir(tmp_path) == ["stdout.log"]


def test_a_log_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    assert not is_due(a_cap(tmp_path / "never"))


@pytest.mark.long
def test_every_line_of_a_log_that_is_cut_is_repeated_once_and_the_file_stays_small(tmp_path: Path) -> None:
    """The worker waits while a cut is due: the moment of the cut itself may lose a line."""
    log = tmp_path / "stdout.log"
    count = 20_000
    script = f"""
import sys
from hpc_elastic.agent.workers.log_cap import LogCap
from hpc_elastic.agent.workers.tee import Tee, TeedFile
cap = LogCap(path={str(log)!r}, earlier={str(log) + ".1"!r}, most_bytes={MOST})
tee = Tee([TeedFile(path=cap.path, prefix="> ")], caps=[cap])
sys.stdin.readline()
tee.close()
"""
    with open(tmp_path / "agent.out", "wb") as out:
        agent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=out)
    largest = 0
    with open(log, "ab", buffering=0) as file:
        for number, line in enumerate(lines_of(count)):
            file.write(line[:4].encode())
            file.write(f"{line[4:]}\n".encode())
            if number % 1000 == 999:
                largest = max(largest, log.stat().st_size)
                wait_until(lambda: not is_due(a_cap(log)), "the log is cut")
    agent.communicate(b"\n", timeout=60)
    assert (tmp_path / "agent.out").read_text().splitlines() == [f"> {line}" for line in lines_of(count)]
    assert largest < MOST
    assert Path(f"{log}.1").stat().st_size <= MOST


def test_a_log_that_is_not_teed_is_cut_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    layout = RunLayout(tmp_path)
    order = WorkerOrder(
        rank=0, local_rank=0, attempt=1, kind="command", target="x", arguments=(), environment={}, directory="/"
    )
    Path(layout.rank(1, 0)).mkdir(parents=True)
    log = Path(layout.stderr(1, 0))
    log.write_text("\n".join(lines_of(10_000)))
    tee = start_tee(LogsPlan(per="rank", max_size_bytes=MOST), layout, [order], node="n")
    assert tee is not None
    wait_until(lambda: log.stat().st_size == 0, "the log is cut")
    tee.close()
    assert Path(layout.earlier(str(log))).read_text().endswith(lines_of(10_000)[-1])
    assert capfd.readouterr() == ("", "")


def test_a_line_that_goes_on_after_a_cut_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "stdout.log"
    log.write_text("x" * MOST + "\nbegin")
    tee = Tee([TeedFile(path=str(log), prefix="")], caps=[a_cap(log)])
    wait_until(lambda: log.stat().st_size == 0, "the log is cut")
    with open(log, "ab") as file:
        file.write(b"ning\n")
    tee.close()
    assert capfd.readouterr().out.splitlines() == ["x" * MOST, "beginning"]


def test_the_tail_of_an_error_file_reaches_over_a_cut(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    log.write_text("last\n")
    Path(RunLayout.earlier(str(log))).write_text("first\nbefore\n")
    assert read_log_tail(str(log)) == "first\nbefore\nlast\n"
    assert read_log_tail(str(log), 13) == "before\nlast\n"
    assert read_log_tail(str(log), 5) == "last\n"
    assert read_log_tail(str(tmp_path / "none")) == ""
