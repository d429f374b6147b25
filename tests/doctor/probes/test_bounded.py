"""What does not answer is left behind after its time."""

from __future__ import annotations

import errno
import sys
import threading
import time

import pytest

from hpc_elastic.doctor.probes.bounded import LateError, answer_within, run_program


def test_a_function_that_hangs_is_left_behind() -> None:
    never = threading.Event()
    with pytest.raises(LateError, match=r"^no answer within 0.05 s$"):
        answer_within(never.wait, 0.05)
    never.set()


def test_a_function_returns_and_raises_as_it_does() -> None:
    assert answer_within(lambda: 3, 5) == 3
    with pytest.raises(ZeroDivisionError):
        answer_within(lambda: 1 // 0, 5)


def test_a_program_that_hangs_is_killed_with_its_children() -> None:
    with pytest.raises(LateError, match=r"within 0\.3 s"):
        run_program(["sh", "-c", "sleep 600 & sleep 600"], 0.3)


def test_a_program_that_ends_after_its_output_is_awaited_without_a_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a library that sets the clock forward a sleep of Python 3.11 fails."""

    def fail(seconds: float) -> None:
        raise OSError(errno.EINVAL, f"a sleep of {seconds} s")

    monkeypatch.setattr(time, "sleep", fail)
    assert run_program(["sh", "-c", "echo done; exec >&-; sleep 0.3; exit 3"], 30) == (3, "done\n")


def test_a_program_is_run_without_a_shell() -> None:
    assert run_program([sys.executable, "-c", "import sys; print(sys.argv[1]); sys.exit(3)", "$HOME"], 30) == (
        3,
        "$HOME\n",
    )
    with pytest.raises(FileNotFoundError):
        run_program(["/no/such/program"], 5)
