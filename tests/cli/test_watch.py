"""`hpc-elastic watch` on a terminal and into a pipe, on run directories with records in them."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from tests.cli.conftest import FakeSlurm
from tests.observe.report.build_run import Fault, build_run

HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"


def test_into_a_pipe_it_prints_a_line_for_each_change(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_run(workplace / "run", nodes=4, faults=[Fault(1, "bad data")])
    assert main(["watch", "run"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "SUCCEEDED; attempt 2; 32 workers on 4 nodes; every rank exited 0" in line


def test_status_has_the_step_and_its_rate_while_the_run_goes_on(
    workplace: Path, fake_slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = build_run(workplace / "run", nodes=4, faults=[Fault(1, "bad data")])
    Path(layout.result).unlink()
    fake_slurm.say("RUNNING")
    assert main(["status", "run"]) == 0
    text = capsys.readouterr().out
    assert "\nstep           427, one in " in text
    assert "\nslowest        rank 8 on node001: 40 steps behind" in text
    assert main(["status", "--json", "run"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 427
    assert found["slow_ranks"][0]["rank"] == 8


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def start(folder: Path, theirs: int, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "hpc_elastic", *(words or ("watch", "run"))]
    environ = {**os.environ, "TERM": "xterm"}
    environ.pop("COLUMNS", None)
    return subprocess.Popen(command, cwd=folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs)


def read_until(ours: int, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        assert select.select([ours], [], [], 60)[0], seen
        seen += os.read(ours, 65536)
    return seen


@pytest.mark.long
@pytest.mark.parametrize(
    ("press", "code"), [(b"q", 0), (signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)], ids=["q", "ctrl-c", "term"]
)
def test_who_leaves_has_the_terminal_as_before(
    workplace: Path, fake_slurm: FakeSlurm, terminal: tuple[int, int], press: bytes | signal.Signals, code: int
) -> None:
    layout = build_run(workplace / "run", nodes=4, faults=[Fault(1, "bad data")])
    Path(layout.result).unlink()
    fake_slurm.say("RUNNING")
    ours, theirs = terminal
    before = termios.tcgetattr(theirs)
    process = start(workplace, theirs)
    try:
        seen = read_until(ours, b"q leaves")
        assert b"40 steps behind" in seen
        if isinstance(press, bytes):
            os.write(ours, press)
        else:
            process.send_signal(press)
        read_until(ours, b"\x1b[?1049l")
        assert process.wait(30) == code
    finally:
        process.kill()
        process.wait()
    assert termios.tcgetattr(theirs)[3] == before[3]


@pytest.mark.long
def test_a_term_while_submit_follows_shows_the_cursor_again(
    workplace: Path, fake_slurm: FakeSlurm, terminal: tuple[int, int]
) -> None:
    fake_slurm.say("PENDING")
    ours, theirs = terminal
    process = start(workplace, theirs, "submit", "job.yaml", "--follow", "--site", "generic-slurm")
    try:
        read_until(ours, HIDE_CURSOR)
        process.send_signal(signal.SIGTERM)
        read_until(ours, SHOW_CURSOR)
        assert process.wait(30) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()


def test_a_term_as_the_terminal_is_just_being_set_gives_it_back(terminal: tuple[int, int]) -> None:
    """The drawing has hidden the cursor, and is not entered yet: nothing of its own shows the cursor again."""
    script = (
        "import signal, sys\nfrom hpc_elastic.cli.terminal import given_back\n"
        "with given_back(sys.stdout):\n    signal.raise_signal(signal.SIGTERM)\nprint('not here')\n"
    )
    ours, theirs = terminal
    process = subprocess.Popen([sys.executable, "-c", script], stdout=theirs)
    assert process.wait(60) == -signal.SIGTERM
    assert read_until(ours, SHOW_CURSOR) == SHOW_CURSOR
