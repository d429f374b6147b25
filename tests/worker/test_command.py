"""A command entrypoint becomes the program; what a shell user expects if there is none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.worker.conftest import Runner


@pytest.mark.long
def test_command_gets_its_arguments_unchanged(runner: Runner) -> None:
    arguments = ["--", "-n", "a b", "", "$HOME", "*", "ä\n"]
    outcome = runner.run_worker("--command", "printf", "<%s>", *arguments)
    assert outcome.stdout == "".join(f"<{argument}>" for argument in arguments)
    assert (outcome.exit_code, outcome.stderr) == (0, "")


def test_command_keeps_process_id_and_exit_code(runner: Runner) -> None:
    outcome = runner.run_worker("--command", "sh", "-c", "exit 42")
    assert outcome.exit_code == 42
    assert not runner.error_file.exists()


@pytest.mark.long
def test_command_sees_signals_as_a_fresh_process(runner: Runner) -> None:
    """Python ignores SIGPIPE in itself; `yes | head` would not end."""
    look = ["sh", "-c", "grep SigIgn /proc/self/status"]
    assert runner.run_worker("--command", *look).stdout == runner.run(look).stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "content", "mode", "exit_code", "text"),
    [
        ("nowhere/program", None, 0, 127, "No such file"),
        ("a_program_on_no_path", None, 0, 127, "command not found on PATH"),
        ("./forbidden", "#!/bin/sh\n", 0o644, 126, "Permission denied"),
        ("./headless", "echo hello\n", 0o755, 126, "nor a script with a #! line"),
        ("./lost", "#!/nowhere/sh\n", 0o755, 127, "names an interpreter that does not exist"),
        ("./file/program", None, 0, 127, "Not a directory"),
    ],
)
def test_command_ends_as_in_a_shell_if_it_cannot_start(
    runner: Runner, name: str, content: str | None, mode: int, exit_code: int, text: str
) -> None:
    runner.write("file", "")
    if content is not None:
        os.chmod(runner.write(name, content), mode)
    outcome = runner.run_worker("--command", name)
    assert outcome.exit_code == exit_code
    assert outcome.stderr.count("\n") == 1
    assert outcome.stderr.startswith(f"hpc-elastic: {name}: ")
    assert text in outcome.stderr
    record = runner.read_error()
    assert (record["class"], record["exit_code"], record["rank"]) == ("start_failed", exit_code, 3)
    assert f"hpc-elastic: {record['message']['message']}\n" == outcome.stderr


@pytest.mark.long
def test_bootstrap_rejects_arguments_that_are_not_an_agents(runner: Runner) -> None:
    outcome = runner.run_worker("--shell", "x")
    assert outcome.exit_code == 1
    names = ("--deadline", "--heartbeat", "--stack", "--state", "--node-state")
    options = " ".join(f"[{name} DESCRIPTOR]" for name in names)
    assert f"--parent PID {options} --script|--module|--command|--function X" in outcome.stderr
