"""`Job` holds the keys of job.yaml, all of them and no other."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.api import job as door
from hpc_elastic.errors import JobError
from hpc_elastic.job.check import key_paths
from hpc_elastic.job.parse import parse_job
from hpc_elastic.job.spec import JobSpec
from hpc_elastic.job.text import job_text


def typed_keys(owner: Any, prefix: str = "") -> Iterator[str]:
    """Every key that the types know, written as `key_paths` does."""
    for name, hint in typing.get_type_hints(owner).items():
        yield prefix + name
        for section, dots in typed_sections(hint):
            yield from typed_keys(section, f"{prefix}{name}{dots}")


def typed_sections(hint: Any, dots: str = ".") -> Iterator[tuple[Any, str]]:
    if typing.is_typeddict(hint):
        yield hint, dots
    for inner in typing.get_args(hint):
        is_list = getattr(typing.get_origin(hint), "__name__", "") == "Sequence"
        yield from typed_sections(inner, "[]." if is_list else dots)


def test_a_job_has_the_keys_of_a_job_file_and_so_have_its_sections() -> None:
    of_a_file = set(key_paths(JobSpec)) - {"entrypoint.function", "roles[].entrypoint.function"}
    assert set(typed_keys(door.Job)) == of_a_file


def test_a_job_gives_the_keys_that_were_given() -> None:
    job = door.Job(name="a", nodes={"min": 1, "max": 2}, restart={"max_restarts": 0}, setup=[])
    assert job.keys() == {"name": "a", "nodes": {"min": 1, "max": 2}, "restart": {"max_restarts": 0}, "setup": []}


KEYS: Mapping[str, Any] = {
    "name": "1e5",
    "entrypoint": {
        "script": Path("train.py"),
        "args": ["--lr", "1e-3", 1, 0.10, True, "a: b", "${HOME}", "no", "0o17"],
    },
    "env": {"A": "yes", "B": 1, "C": None, "D": "1.10"},
    "time": timedelta(hours=2, minutes=30),
    "nodes": 4,
    "signals": {"grace": "45s"},
    "setup": ["module load a", "echo '#'"],
}


def test_the_text_of_a_job_is_read_as_what_was_written() -> None:
    job = parse_job(job_text(KEYS), file="")
    assert job.name == "1e5"
    assert job.entrypoint is not None
    assert job.entrypoint.script == "train.py"
    assert job.entrypoint.args == ("--lr", "1e-3", "1", "0.1", "true", "a: b", "${HOME}", "no", "0o17")
    assert job.env == {"A": "yes", "B": "1", "C": None, "D": "1.10"}
    assert job.time == timedelta(hours=2, minutes=30)
    assert job.setup == ("module load a", "echo '#'")


def test_the_text_of_a_job_rejects_what_no_file_can_hold_all_at_once() -> None:
    with pytest.raises(JobError) as caught:
        job_text({"env": {"A": object()}, "entrypoint": {"args": ["a", b"b"]}, "sbatch": {1: "x"}})
    assert caught.value.problems == (
        "env.A: expected text, a number, True, False, None, a list or a mapping, found a object",
        "entrypoint.args[1]: expected text, a number, True, False, None, a list or a mapping, found a bytes",
        "sbatch: expected text as keys, found 1",
    )


def test_a_negative_duration_is_an_error_of_the_job() -> None:
    with pytest.raises(JobError, match=r"^signals\.grace: expected a duration of at least 0s, found -1 day, 23:59:59$"):
        job_text({"signals": {"grace": timedelta(seconds=-1)}})


def test_every_type_of_a_section_is_used() -> None:
    sections = {value for value in vars(door).values() if typing.is_typeddict(value)}
    used = {section for owner in (door.Job, *sections) for section in _direct(owner)}
    assert sections == used
    assert dataclasses.is_dataclass(door.Job)


def _direct(owner: Any) -> Iterator[Any]:
    for hint in typing.get_type_hints(owner).values():
        yield from (section for section, _ in typed_sections(hint))
