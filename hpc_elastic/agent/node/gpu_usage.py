"""Asks the GPU vendor's tool how busy the node's GPUs are, and stops asking a tool that fails."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

from hpc_elastic.rundir.records import GpuSample

ANSWERS_WITHIN_S = 10.0
MOST_FAILURES = 3  # in a row
_DIES_WITHIN_S = 1.0
_MIB = 1024 * 1024
_NVIDIA = ["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits"]
_AMD = ["rocm-smi", "--showuse", "--showmeminfo", "vram", "--json"]


def parse_nvidia(stdout: str) -> tuple[GpuSample, ...]:
    """Return the GPUs of `nvidia-smi --query-gpu`; a value that the tool does not have is a word in brackets.

    Raises:
        ValueError: it is no such output.
    """
    gpus = []
    for line in filter(None, map(str.strip, stdout.splitlines())):
        index, busy, used, total = (word.strip() for word in line.split(","))
        gpus.append(
            GpuSample(
                index=int(index),
                busy_percent=_number(busy),
                memory_used=_bytes(_number(used), _MIB),
                memory_total=_bytes(_number(total), _MIB),
            )
        )
    return tuple(gpus)


def parse_amd(stdout: str) -> tuple[GpuSample, ...]:
    """Return the GPUs of `rocm-smi --json`.

    Raises:
        ValueError: it is no such output.
    """
    cards: Any = json.loads(stdout)
    if not isinstance(cards, dict):
        raise ValueError("expected an object with a key for each card")
    return tuple(
        GpuSample(
            index=int(name.removeprefix("card")),
            busy_percent=_number(str(card.get("GPU use (%)"))),
            memory_used=_bytes(_number(str(card.get("VRAM Total Used Memory (B)")))),
            memory_total=_bytes(_number(str(card.get("VRAM Total Memory (B)")))),
        )
        for name, card in sorted(cards.items())
        if name.startswith("card") and isinstance(card, dict)
    )


class GpuTool:
    """The tool of the vendor whose GPUs the node has; `ask` blocks, so it needs a thread.

    Args:
        within_s: how long an answer may take.
        say: takes the line that says that the tool is not asked any more.
    """

    def __init__(self, say: Callable[[str], None], *, within_s: float = ANSWERS_WITHIN_S) -> None:
        self._say = say
        self._within_s = within_s
        self._failures = 0
        self._child: subprocess.Popen[str] | None = None
        self._command, self._parse = next(
            ((command, parse) for command, parse in ((_NVIDIA, parse_nvidia), (_AMD, parse_amd)) if _is_there(command)),
            ([], parse_nvidia),
        )

    def ask(self) -> tuple[GpuSample, ...]:
        """Return the GPUs; none if there is no tool, or if it fails, does not answer in time or answers nonsense."""
        if not self._command:
            return ()
        try:
            returncode, stdout = self._run()
            if returncode == 0:
                gpus = self._parse(stdout)
                self._failures = 0
                return gpus
            why = f"exit code {returncode}"
        except subprocess.TimeoutExpired:
            why = f"no answer within {self._within_s:g} s"
        except (OSError, ValueError) as error:
            why = str(error) or type(error).__name__
        self._failed(why)
        return ()

    def pids(self) -> list[int]:
        """Return the process id of the tool while it runs: it is no worker, and no stop waits for it."""
        child = self._child
        return [] if child is None else [child.pid]

    def _run(self) -> tuple[int, str]:
        child = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        self._child = child
        try:
            stdout, _ = child.communicate(timeout=self._within_s)
        except subprocess.TimeoutExpired:
            child.kill()
            if child.stdout is not None:
                child.stdout.close()
            try:
                child.wait(_DIES_WITHIN_S)
            except subprocess.TimeoutExpired:  # it hangs in the driver: another one would hang beside it
                self._failures = MOST_FAILURES
                raise
            self._child = None
            raise
        self._child = None
        return child.returncode, stdout

    def _failed(self, why: str) -> None:
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            self._say(f"{self._command[0]} failed ({why}): GPUs are not sampled any more")
            self._command = []


def _is_there(command: list[str]) -> bool:
    return shutil.which(command[0]) is not None


def _number(word: str) -> float | None:
    with contextlib.suppress(ValueError):
        return float(word)
    return None


def _bytes(number: float | None, unit: int = 1) -> int | None:
    return None if number is None else int(number) * unit
