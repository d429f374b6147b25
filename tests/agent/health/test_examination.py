"""The health checks of a node as one: each has its own time, and one that hangs holds up nothing."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.agent.health.examination import Check, Examination, examination_of
from hpc_elastic.agent.health.gpus import find_amd_problem
from hpc_elastic.agent.system.child_programs import ChildPrograms, NoAnswerError
from hpc_elastic.plan.health import HEALTH_CHECKS
from hpc_elastic.plan.launch_plan import LaunchPlan, ResourcesPlan
from hpc_elastic.processes import find_process
from hpc_elastic.scheduler.allocation import Allocation
from tests.plans import make_run_plan


def examine(**checks: Check) -> str | None:
    """Examine by checks that have a minute each, and one called `hangs`, which has 0.3 s."""

    async def main() -> str | None:
        limits = {**dict.fromkeys(checks, 60.0), "hangs": 0.3}
        return await Examination(checks, limits, ChildPrograms()).examine()

    return asyncio.run(main())


def test_nothing_is_found_on_a_healthy_node() -> None:
    assert examine(one=lambda _: None, two=lambda _: None) is None


def test_all_problems_are_told_each_with_its_check() -> None:
    assert (
        examine(one=lambda _: "it is full", two=lambda _: None, three=lambda _: "gone")
        == "one: it is full; three: gone"
    )


def test_a_check_that_hangs_holds_up_neither_the_others_nor_the_end() -> None:
    release = threading.Event()

    def hang(_: float) -> str | None:
        release.wait()
        return None

    try:
        assert examine(hangs=hang, two=lambda _: "it is full") == "hangs: no answer within 0.3 s; two: it is full"
    finally:
        release.set()


@pytest.mark.long
def test_a_check_that_hangs_is_not_asked_again_until_it_has_answered() -> None:
    release, asked = threading.Event(), []

    def hang(_: float) -> str | None:
        asked.append(1)
        release.wait()
        return None

    async def main() -> None:
        examination = Examination({"one": hang}, {"one": 1.0}, ChildPrograms())
        assert await examination.examine() == await examination.examine() == "one: no answer within 1 s"
        assert len(asked) == 1
        release.set()
        examination._running["one"].join()
        assert await examination.examine() is None

    asyncio.run(main())


def test_a_check_that_is_wrong_itself_finds_nothing_and_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    def fail(_: float) -> str | None:
        raise ValueError("no such file")

    assert examine(one=fail) is None
    assert "a health check failed: ValueError('no such file')" in capfd.readouterr().err


def test_a_program_that_does_not_end_is_killed_and_not_waited_for() -> None:
    programs, began = ChildPrograms(), time.monotonic()
    with pytest.raises(NoAnswerError):
        programs.run(["sleep", "600"], 0.1)
    assert time.monotonic() - began < 60
    (pid,) = programs.pids() or [0]
    while pid and (process := find_process(pid)) is not None and process.is_alive:
        time.sleep(0.01)


def a_plan(**changes: object) -> LaunchPlan:
    return replace(make_run_plan("/run"), **changes)  # type: ignore[arg-type]


PLACE = Allocation(job_id="1", restart_count=0, array_task=None, node_id=0, nodes=("node0",), is_local=False)


def find(plan: LaunchPlan, environ: dict[str, str], *checks: str, limit_s: float | None = None) -> str | None:
    async def main() -> str | None:
        limited = replace(plan, health={name: limit_s or HEALTH_CHECKS[name] for name in checks})
        return await examination_of(limited, PLACE, environ).examine()

    return asyncio.run(main())


def test_the_run_directory_and_scratch_are_written_and_left_empty(tmp_path: Path) -> None:
    plan = a_plan(run_dir=str(tmp_path))
    assert find(plan, {"TMPDIR": str(tmp_path)}, "run_directory", "scratch") is None
    assert list(tmp_path.iterdir()) == []


def test_scratch_is_where_the_site_says(tmp_path: Path) -> None:
    plan = a_plan(run_dir=str(tmp_path), scratch=f"{tmp_path}/${{SLURM_JOB_ID}}")
    problem = find(plan, {"TMPDIR": str(tmp_path), "SLURM_JOB_ID": "17"}, "scratch")
    assert problem == f"scratch: {tmp_path}/17 cannot be written: No such file or directory"


def test_scratch_that_a_variable_names_is_told_with_the_variable(tmp_path: Path) -> None:
    problem = find(a_plan(run_dir=str(tmp_path)), {"TMPDIR": f"{tmp_path}/gone"}, "scratch")
    assert problem == f"scratch: TMPDIR: {tmp_path}/gone cannot be written: No such file or directory"


def test_a_variable_in_scratch_that_is_not_set_is_a_problem(tmp_path: Path) -> None:
    problem = find(a_plan(run_dir=str(tmp_path), scratch="/local/${NO_SUCH_VARIABLE}"), {}, "scratch")
    assert problem is not None
    assert problem.startswith("scratch: ${NO_SUCH_VARIABLE} is not set")


def fake_tool(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Puts an `nvidia-smi` on PATH, which gets its arguments as one line in $1."""
    tool = folder / "nvidia-smi"
    tool.write_text(f'#!/bin/bash\ncase "$1" in\n{script}\n*) exit 2 ;;\nesac\n')
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


GPUS = "*retired_pages*) echo '0, GPU-aa11, No'; echo '1, GPU-bb22, {}' ;;"
WITH_GPUS = ResourcesPlan(gpus_per_node=2)


@pytest.mark.parametrize(
    ("script", "environ", "expected"),
    [
        (GPUS.format("No"), {}, None),
        (GPUS.format("[N/A]"), {}, None),
        (GPUS.format("Yes"), {}, "gpus: GPU 1 has memory pages to be retired; it has to be reset"),
        (GPUS.format("Yes"), {"CUDA_VISIBLE_DEVICES": "0"}, None),
        (GPUS.format("Yes"), {"CUDA_VISIBLE_DEVICES": "GPU-aa"}, None),
        (
            GPUS.format("No") + "\n*remapped*) echo 'GPU-bb22, 1, 0'; echo 'GPU-cc33, 1, 0' ;;",
            {},
            "gpus: GPU 1 has memory rows to be remapped; it has to be reset",
        ),
        (
            GPUS.format("No") + "\n*remapped*) echo 'GPU-aa11, No, Yes' ;;",
            {},
            "gpus: GPU 0 has memory rows that could not be remapped; it has to be reset",
        ),
        ("*retired_pages*) exit 9 ;;", {}, "gpus: nvidia-smi failed with exit code 9"),
    ],
)
def test_the_gpus_of_the_step_are_asked_for_memory_that_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, environ: dict[str, str], expected: str | None
) -> None:
    fake_tool(tmp_path, monkeypatch, script)
    assert find(a_plan(resources=WITH_GPUS), environ, "gpus") == expected
    assert find(a_plan(resources=ResourcesPlan()), environ, "gpus") is None


def amd_cards(root: Path, *pages: str) -> str:
    """A /sys with an AMD GPU for each of these contents of its file of bad pages."""
    for number, text in enumerate(pages):
        folder = root / f"class/drm/card{number}/device/ras"
        folder.mkdir(parents=True)
        (folder / "gpu_vram_bad_pages").write_text(text)
    return str(root)


RETIRED_PAGE, PENDING_PAGE, STUCK_PAGE = (f"0x00000001 : 0x00001000 : {flag}\n" for flag in "RPF")


@pytest.mark.parametrize(
    ("pages", "environ", "expected"),
    [
        ((), {}, None),
        (("", RETIRED_PAGE * 3), {}, None),
        (("", RETIRED_PAGE + PENDING_PAGE), {}, "card1 has memory pages to be retired; it has to be reset"),
        ((PENDING_PAGE + STUCK_PAGE, ""), {}, "card0 has memory pages that could not be retired; it has to be reset"),
        (
            (PENDING_PAGE, ""),
            {"ROCR_VISIBLE_DEVICES": "0,1"},
            "card0 has memory pages to be retired; it has to be reset",
        ),
        ((PENDING_PAGE, ""), {"ROCR_VISIBLE_DEVICES": "1"}, None),
        (("rubbish\n\n", ""), {}, None),
    ],
)
def test_amds_pages_are_read_where_the_step_has_all_gpus_of_the_node(
    tmp_path: Path, pages: tuple[str, ...], environ: dict[str, str], expected: str | None
) -> None:
    assert find_amd_problem(environ, sys=amd_cards(tmp_path, *pages)) == expected


@pytest.mark.long
def test_a_driver_that_hangs_is_a_problem_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(tmp_path, monkeypatch, "*) exec sleep 600 ;;")
    assert find(a_plan(resources=WITH_GPUS), {}, "gpus", limit_s=1.0) == "gpus: no answer within 1 s"


def test_ranks_of_an_earlier_run_that_hold_a_gpu_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[..., int]
) -> None:
    rank = start(HPC_ELASTIC_RUN_DIR="/runs/old", HPC_ELASTIC_ATTEMPT="3")
    other = start()
    fake_tool(
        tmp_path,
        monkeypatch,
        GPUS.format("No") + f"\n*compute-apps*) echo 'GPU-bb22, {rank}'; echo 'GPU-aa11, {other}'; echo 'GPU-zz, 1' ;;",
    )
    found = find(a_plan(resources=WITH_GPUS), {}, "leftovers")
    assert found == f"leftovers: process {rank} of /runs/old still holds GPU 1"
    assert find(a_plan(resources=WITH_GPUS), {"CUDA_VISIBLE_DEVICES": "0"}, "leftovers") is None
