"""What a partition or a QOS of a cluster allows to one job: the keys of a site file, and what may stand there."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from hpc_elastic.job import values
from hpc_elastic.job.problems import describe
from hpc_elastic.job.spec import Section


def _key(description: str, default: Any = None) -> Any:
    return Field(default=default, description=description)


class Bounds(Section):
    """How many of something: at least `min`, at most `max`; the two alike are exactly so many."""

    min: values.Positive | None = _key("at least so many")
    max: values.Positive | None = _key("at most so many")

    @model_validator(mode="after")
    def _check_order(self) -> Bounds:
        if self.min is None and self.max is None:
            raise ValueError("expected min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"expected min at most max, found {self.min} and {self.max}")
        return self

    def contains(self, number: int) -> bool:
        """Return whether a job may ask for so many; 0 stands for a job that asks for none."""
        return (self.min or 0) <= number and (self.max is None or number <= self.max)

    def __str__(self) -> str:
        """Return the bounds in words: `at most 4`, `exactly 20`."""
        if self.min == self.max:
            return f"exactly {self.max}"
        if self.min is None:
            return f"at most {self.max}"
        return f"at least {self.min}" if self.max is None else f"{self.min} to {self.max}"


def _widen(value: object) -> object:
    """Read one number as the most."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError(f"expected at least 1, found {value}")
        return {"max": value}
    if not isinstance(value, (dict, Bounds)):
        raise ValueError(f"expected a number, which is the most, or a map of min and max, found {describe(value)}")
    return value


_BOUND = {"type": "integer", "minimum": 1}
AtMost = Annotated[
    Bounds,
    BeforeValidator(_widen),
    WithJsonSchema(
        {
            "anyOf": [
                _BOUND,
                {
                    "type": "object",
                    "minProperties": 1,
                    "properties": {"min": _BOUND, "max": _BOUND},
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


class TimeByNodes(Section):
    """The longest time of a job of at most so many nodes."""

    max_nodes: values.Positive = Field(description="a job of at most so many nodes")
    max_time: values.PositiveDuration = Field(description="may ask for at most so much time")


def _ascending(rows: tuple[TimeByNodes, ...]) -> None:
    for row, following in pairwise(rows):
        if following.max_nodes <= row.max_nodes:
            raise ValueError(f"expected rows by growing max_nodes, found {following.max_nodes} after {row.max_nodes}")


class Limits(Section):
    """What one job may ask for in a partition or under a QOS; what is left out is not checked."""

    page: values.Line | None = _key("the page that says so; default: the site's url")
    default_time: values.PositiveDuration | None = _key("what Slurm gives a job that asks for no time")
    max_time: values.PositiveDuration | None = _key("at most so much time")
    max_time_by_nodes: tuple[TimeByNodes, ...] = _key(
        "less time for jobs of fewer nodes: the first row that has room for the job's nodes counts, else max_time", ()
    )
    nodes: AtMost | None = _key("nodes, spares among them: a number is the most, or a map of min and max")
    gpus_per_node: AtMost | None = _key("GPUs of a node: likewise; with a min every job must ask for GPUs")
    cpus_per_node: AtMost | None = _key("CPUs of a node: likewise")
    cpus_per_gpu: AtMost | None = _key("CPUs for each GPU: likewise; {min: 20, max: 20} is exactly 20")
    memory_per_node: values.Memory | None = _key("at most so much memory of a node")

    @model_validator(mode="after")
    def _check_rows(self) -> Limits:
        _ascending(self.max_time_by_nodes)
        return self
