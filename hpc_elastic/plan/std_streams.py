"""Selects worker streams (standard output, standard error) by local rank, in torch's names and spellings.

`Std`, `from_str` and `to_map` are those of torch.distributed.elastic.multiprocessing.api (torch 2.13).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any

_WORDS = {"none": 0, "out": 1, "err": 2, "both": 3}
STD_PATTERN = rf"(?:{'|'.join(_WORDS)}|[0-3])"
MAP_PATTERN = rf"[0-9]{{1,9}}:{STD_PATTERN}(?:,[0-9]{{1,9}}:{STD_PATTERN})*"
_EXPECTED = "expected out, err, both, none, 0 to 3, or local ranks such as 0:3,1:2"


class Std(IntFlag):
    """A selection of a worker's streams: standard output, standard error, both or none."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStreams:
    """The selected streams of every node's workers: the same for all workers, or by local rank.

    torch's type for this is `Std | dict[int, Std]`: with a dict, `others` is NONE.
    """

    others: Std = Std.NONE
    by_local_rank: Mapping[int, Std] = field(default_factory=dict)

    def of(self, local_rank: int) -> Std:
        """Return the selected streams of one worker."""
        return self.by_local_rank.get(local_rank, self.others)

    def to_map(self, local_world_size: int) -> dict[int, Std]:
        """Return the selected streams of each of a node's workers."""
        return {local_rank: self.of(local_rank) for local_rank in range(local_world_size)}

    def __str__(self) -> str:
        """Format the selection as a job file spells it."""
        if not self.by_local_rank:
            return _word(self.others)
        return ",".join(f"{local_rank}:{_word(std)}" for local_rank, std in sorted(self.by_local_rank.items()))

    @classmethod
    def from_str(cls, text: str) -> LocalStreams:
        """Parse `3`, `both`, `0:3,1:2` or `0:both,1:err`.

        torch accepts only single digits as local ranks, and uses the last entry of a local rank that is given twice.

        Raises:
            ValueError: the text is none of these, or has a local rank twice.
        """
        if re.fullmatch(STD_PATTERN, text, re.A):
            return cls(others=_std(text))
        if not re.fullmatch(MAP_PATTERN, text, re.A):
            raise ValueError(f"{_EXPECTED}, found {text!r}")
        pairs = [item.split(":") for item in text.split(",")]
        return cls(by_local_rank=_by_local_rank([(local_rank, word) for local_rank, word in pairs]))

    @classmethod
    def from_value(cls, value: Any) -> LocalStreams:
        """Parse a job file's value: text as for `from_str`, a number, or a map of local ranks to words or numbers.

        Raises:
            ValueError: the value is none of these.
        """
        if isinstance(value, LocalStreams):
            return value
        if isinstance(value, Mapping) and value:
            return cls(by_local_rank=_by_local_rank([(str(key), _text(item)) for key, item in value.items()]))
        return cls.from_str(_text(value))


NO_STREAMS = LocalStreams()
ALL_STREAMS = LocalStreams(others=Std.ALL)


def _by_local_rank(pairs: list[tuple[str, str]]) -> dict[int, Std]:
    found: dict[int, Std] = {}
    for text, word in pairs:
        if not re.fullmatch("[0-9]{1,9}", text, re.A):
            raise ValueError(f"expected a local rank, a number such as 0, found {text!r}")
        if int(text) in found:
            raise ValueError(f"expected each local rank once, found {int(text)} twice")
        if not re.fullmatch(STD_PATTERN, word, re.A):
            raise ValueError(f"expected out, err, both, none or 0 to 3 for local rank {text}, found {word!r}")
        found[int(text)] = _std(word)
    return found


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if type(value) is int and 0 <= value <= 3:
        return str(value)
    found = "an empty map" if value == {} else f"a {type(value).__name__}" if value == [] else repr(value)
    raise ValueError(f"{_EXPECTED}, found {found}")


def _std(word: str) -> Std:
    return Std(_WORDS[word] if word in _WORDS else int(word))


def _word(std: Std) -> str:
    return next(word for word, number in _WORDS.items() if number == std)
