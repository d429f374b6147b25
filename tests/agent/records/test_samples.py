"""The samples of a node: their lines, their file, and who has to wait for them."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

from hpc_elastic.agent.node.gpu_usage import GpuTool
from hpc_elastic.agent.records.samples import (
    GPU_TURN,
    LARGEST_FILE,
    MOST_QUEUED,
    RankProgress,
    SampleFile,
    Sampler,
)
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.codec import to_json
from hpc_elastic.rundir.records import GpuSample, RankSample, Sample
from tests.record_schemas import assert_valid


@dataclass
class Heard:
    step: int | None
    age_s: float | None


class FakeTool(GpuTool):
    """A vendor's tool that counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__(pytest.fail)
        self.asked = 0

    def ask(self) -> tuple[GpuSample, ...]:
        self.asked += 1
        return (GpuSample(index=0, busy_percent=1.0, memory_used=1, memory_total=2),)


async def a_sampler(
    path: Path,
    thread: BackgroundThread,
    *,
    progress: Mapping[int, RankProgress] | None = None,
    tool: GpuTool | None = None,
) -> Sampler:
    return Sampler(
        SampleFile(str(path)),
        run="r",
        node="node1",
        disk=thread,
        workers=lambda: (3, (os.getpid(),)),
        gpus=tool or FakeTool(),
        progress=lambda: progress or {},
        every_s=0.01,
    )


def take(count: int, **options: Mapping[int, RankProgress] | GpuTool) -> list[Sample]:
    async def main() -> list[Sample]:
        thread = BackgroundThread("test", asyncio.get_running_loop())
        sampler = await a_sampler(Path("unused"), thread, **options)  # type: ignore[arg-type]
        samples = [sampler.take(at=float(10 * number), time_ns=number) for number in range(count)]
        await thread.close(5)
        return samples

    return asyncio.run(main())


def test_a_sample_has_the_steps_of_the_ranks() -> None:
    (sample,) = take(1, progress={1: Heard(None, None), 0: Heard(12, 0.26)})
    assert sample.ranks == (RankSample(rank=0, step=12, age_s=0.3), RankSample(rank=1, step=None, age_s=None))
    assert sample.attempt == 3
    assert sample.workers_memory


def test_rates_come_with_the_second_sample() -> None:
    first, second = take(2)
    assert first.cpu_percent is None
    assert second.workers_cpu_percent is not None


def test_a_sample_is_what_its_schema_says() -> None:
    for sample in take(2, progress={0: Heard(1, 0.0)}):
        assert_valid(json.loads(json.dumps(to_json(sample))), "nodes/NODE/samples.jsonl")


def test_gpus_are_asked_once_a_minute() -> None:
    tool = FakeTool()
    samples = take(2 * GPU_TURN, tool=tool)
    assert tool.asked == 2
    assert [bool(sample.gpus) for sample in samples] == [True, *[False] * (GPU_TURN - 1)] * 2


def test_samples_come_to_the_file_until_the_sampler_stops(tmp_path: Path) -> None:
    path = tmp_path / "nodes" / "node1" / "samples.jsonl"
    came = threading.Event()

    class Watched(SampleFile):
        def append(self, sample: Sample) -> None:
            super().append(sample)
            came.set()

    async def main() -> None:
        thread = BackgroundThread("test", asyncio.get_running_loop())
        sampler = await a_sampler(path, thread)
        sampler._file = Watched(str(path))
        sampler.start()
        assert await asyncio.to_thread(came.wait, 30)
        sampler.stop()
        await thread.close(5)

    asyncio.run(main())
    assert {json.loads(line)["node"] for line in path.read_text().splitlines()} == {"node1"}


def test_samples_are_dropped_while_the_file_system_is_behind_and_events_are_not() -> None:
    async def main() -> list[str]:
        thread, go, done = BackgroundThread("test", asyncio.get_running_loop()), threading.Event(), list[str]()
        thread.best_effort(go.wait)
        for _ in range(2 * MOST_QUEUED):
            thread.best_effort(lambda: done.append("sample"), most_queued=MOST_QUEUED)
        thread.best_effort(lambda: done.append("event"))
        go.set()
        await thread.close(5)
        return done

    done = asyncio.run(main())
    assert done[-1] == "event"
    assert done.count("sample") <= MOST_QUEUED


def test_a_file_that_is_too_large_keeps_its_span_and_its_latest_lines(tmp_path: Path) -> None:
    (template,) = take(1)
    path = tmp_path / "samples.jsonl"
    file = SampleFile(str(path), largest=20_000)
    for number in range(1000):
        file.append(at_time(template, time_ns=number))
        assert path.stat().st_size <= 20_000
    kept = [json.loads(line)["time_ns"] for line in path.read_text().splitlines()]
    assert kept == sorted(set(kept))
    assert kept[-1] == 999
    assert kept[0] == 0
    gaps = [later - earlier for earlier, later in pairwise(kept)]
    assert max(gaps) <= 4 * 1000 / len(kept), "some part of the run has no samples"
    assert LARGEST_FILE > 20_000


def test_a_directory_that_cannot_be_written_costs_the_sample_only(tmp_path: Path) -> None:
    (sample,) = take(1)
    (tmp_path / "file").write_text("")
    SampleFile(str(tmp_path / "file" / "samples.jsonl")).append(sample)


def at_time(sample: Sample, *, time_ns: int) -> Sample:
    return replace(sample, time_ns=time_ns)
