"""What `nvidia-smi` would print, without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpc_elastic.hardware.accelerators import LIST, LOCATE


def fake_tool(listed: str, located: str = "") -> Callable[[Sequence[str], float], tuple[int, str]]:
    answers = {tuple(LIST): listed, tuple(LOCATE): located}
    return lambda command, _: (0, answers[tuple(command)])


def no_tool(command: Sequence[str], _: float) -> tuple[int, str]:
    raise FileNotFoundError(command[0])
