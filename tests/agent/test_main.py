"""What an agent refuses before it begins, and how it ends the job of a batch script that is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from hpc_elastic.agent.main import _end_job, _leaves_to_script, main
from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import Level
from hpc_elastic.plan.launch_plan import dump_plan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.allocation import Allocation
from tests.plans import make_run_plan

# It notes each call and whether TERM would end it, and is refused as often as the file `refusals` has lines.
SCANCEL = """#!/bin/bash
grep SigIgn /proc/self/status >>"$STUBS/calls"
[ "$(wc -l <"$STUBS/calls")" -gt "$(wc -l <"$STUBS/refusals")" ] && exit
echo "scancel: error: Kill job error on job id $1: Unable to contact slurm controller (connect failure)" >&2
exit 1
"""


@pytest.mark.parametrize("secret", [b"", b"s" * 31])
def test_rejects_a_secret_that_could_be_guessed(
    tmp_path: Path, secret: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = RunLayout(str(tmp_path))
    Path(layout.plan).write_text(dump_plan(make_run_plan(tmp_path)))
    Path(layout.secret).write_bytes(secret)
    assert main([str(tmp_path)]) == ExitCode.RUN_DIRECTORY
    told = capsys.readouterr().err
    assert told.splitlines() == [
        (
            f"hpc-elastic agent: error: {layout.secret} holds {len(secret)} bytes, not 32: "
            "it was changed after the submission"
        ),
        "tip: submit the job again",
    ]


@pytest.mark.long
def test_collections_of_garbage_do_not_look_at_what_imports_have_made() -> None:
    """Else a full one is put off until a quarter as many objects are there again, and costs milliseconds."""
    code = (
        "import gc; from hpc_elastic.agent import main; main._set_imports_apart();"
        "print(gc.get_freeze_count() > 10_000, len(gc.get_objects()) < 1000)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"


@pytest.fixture
def term_handler() -> Iterator[None]:
    """Restores what this process does at a TERM."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("term_handler")
@pytest.mark.parametrize(("refusals", "calls", "warnings"), [(0, 1, 0), (2, 3, 1), (9, 4, 2)])
def test_ends_the_job_of_a_lost_script_although_the_controller_is_away(
    refusals: int, calls: int, warnings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else does it: all nodes of the job are paid for until its time limit."""
    (tmp_path / "scancel").write_text(SCANCEL)
    (tmp_path / "scancel").chmod(0o755)
    (tmp_path / "refusals").write_text("no\n" * refusals)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("STUBS", str(tmp_path))
    told: list[tuple[str, Level]] = []

    def say(text: str, level: Level = "info") -> None:
        told.append((text, level))

    _end_job("7", say, pauses_s=(0.0, 0.0, 0.0))
    masks = [int(line.split()[1], 16) for line in (tmp_path / "calls").read_text().splitlines()]
    assert len(masks) == calls
    assert all(mask >> (signal.SIGTERM - 1) & 1 for mask in masks)  # the job's end sends one to this process, too
    assert [level for _, level in told].count("warning") == warnings
    assert ("end it with `scancel 7`" in told[-1][0]) == (refusals > 3)


class Answers:
    """What Slurm says at each look: is the job over (None: it is silent), and has it the script's node."""

    def __init__(self, *looks: tuple[bool | None, bool]) -> None:
        self._looks = list(looks)
        self._has_node = True
        self.count = 0

    def is_over(self, job_id: str) -> bool | None:
        assert job_id == "7"
        is_over, self._has_node = self._looks[self.count]
        self.count += 1
        return is_over

    def dead_nodes(self, job_id: str, nodes: Collection[str]) -> frozenset[str]:
        assert (job_id, list(nodes)) == ("7", ["a"])
        return frozenset() if self._has_node else frozenset(nodes)


WORKS, OVER, WITHOUT_NODE, SILENT = (False, True), (True, True), (False, False), (None, True)


@pytest.mark.parametrize(
    ("looks", "is_left"),
    [
        ([WORKS, WORKS, WORKS, OVER], True),  # the script's `after` block took as long as that
        ([WORKS, WORKS, WORKS, WORKS], False),
        ([WORKS, WITHOUT_NODE], False),
        ([SILENT, SILENT, OVER], True),
    ],
)
def test_leaves_the_end_of_the_job_to_a_script_that_is_there_again_as_long_as_slurm_has_its_node(
    looks: list[tuple[bool | None, bool]], is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    answers = Answers(*looks)
    assert _leaves_to_script(AN_ALLOCATION, answers, lambda _: None, pauses_s=(0.0,) * 4) is is_left
    assert answers.count == len(looks)


def test_leaves_nothing_to_a_script_whose_node_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_LAUNCH_NODE_IPADDR", raising=False)
    assert not _leaves_to_script(AN_ALLOCATION, Answers(), lambda _: None)


AN_ALLOCATION = Allocation(
    job_id="7", restart_count=0, array_task=None, node_id=1, nodes=("a", "b"), is_local=False, time_left=None
)
