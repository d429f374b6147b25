"""Mutated error files and messages of workers, and what must hold of the failure that an agent makes of every one.

    python -m tests.agent.workers.fuzz --count 100000

plays so many of them (`make fuzz` does); `make test` plays fewer. A seed is one file: the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from hpc_elastic.agent.workers.error_files import settle_error_file
from hpc_elastic.agent.workers.failures import record_failure
from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.last_word import Word, WordKind
from hpc_elastic.rundir.error_file import MESSAGE_LIMIT, FailedWorker, build_error
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import FailureRecord

PID = 77
_TEXTS = (
    *(
        "",
        "\n",
        " \n\n",
        "RuntimeError: ",
        "RuntimeError: \n\nno grad\nmore",
        "\ud800",
        "\udcff\udc80",
        "\0",
        "\x1b[2J",
    ),
    *(
        "\x07\x9b31m",
        "\u202e",
        "\ufeff",
        "\u2028",
        "a" * 20_000,
        "ä\n" * 9_000,
        "NaN",
        "1e999",
        "-1",
        "null",
        "{}",
        "[[",
    ),
)
_NUMBERS = (
    "0",
    "-1",
    "1" + "0" * 30,
    "9" * 5000,
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "0.5",
    "true",
    "1700000000000000000",
)
_FIELDS = ("class", "exit_code", "signal", "rank", "pid", "attempt", "time_ns", "stderr_tail", "node", "raised_by", "x")
_WORKER = FailedWorker(rank=5, local_rank=1, pid=PID, node="node2", attempt=2)

Fail = Callable[[RunLayout, WorkerOrder, int, "Word | None"], FailureRecord]


def fail(layout: RunLayout, order: WorkerOrder, exitcode: int, failing: Word | None) -> FailureRecord:
    """Make the failure of a worker as its agent does."""
    settle_error_file(layout, order, pid=PID, exitcode=exitcode, failing=failing)
    return record_failure(layout, order, node="node2", role="default", pid=PID, exitcode=exitcode, timestamp=1.0)


def build_content(dice: random.Random) -> bytes:
    """Build the content of an error file: ours or torch's, with some of it replaced, and then some of its bytes."""
    record: Any = build_error(_WORKER, failure_class="exception", message="E: x", time_ns=10**18, exit_code=1)
    if dice.random() < 0.5:
        record = {"message": record["message"]}
    for _ in range(dice.choice((0, 1, 1, 2, 4))):
        _replace(record, dice)
    text = json.dumps(record, ensure_ascii=dice.random() < 0.5)
    while "@number@" in text:
        text = text.replace('"@number@"', dice.choice(_NUMBERS), 1).replace("@number@", "0", 1)
    content = text.encode("utf-8", dice.choice(("surrogatepass", "backslashreplace")))
    for _ in range(dice.choice((0, 0, 0, 1, 3))):
        content = _damage(content, dice)
    return content


def _replace(record: Any, dice: random.Random) -> None:
    place = dice.choice((record, record["message"]) if isinstance(record["message"], dict) else (record,))
    extra = place.get("extraInfo")
    if isinstance(extra, dict) and dice.random() < 0.4:
        place = extra
    names = ("message", "extraInfo") if "extraInfo" in place else ("py_callstack", "timestamp")
    name = dice.choice(_FIELDS if place is record and dice.random() < 0.7 else names)
    place[name] = _value(dice, place.get(name))


def _value(dice: random.Random, old: Any) -> Any:
    depth = dice.choice((1, 9, 200))
    nested: Any = "deep"
    for _ in range(depth):
        nested = [nested] if dice.random() < 0.5 else {"message": nested}
    return dice.choice((dice.choice(_TEXTS), dice.choice(_TEXTS), "@number@", "@number@", None, [], {}, nested, old))


def _damage(content: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(content) + 1)
    piece = dice.choice(
        (b"", b"\0", b"\xff", b"[" * 3000, b'{"message":' * 3000, b'"', b"}", b"\\ud800", b"\xed\xa0\x80")
    )
    return dice.choice((content[:at], content[:at] + piece + content[at:], content[:at] + piece + content[at + 1 :]))


def play(seed: int, folder: str, *, fail: Fail = fail) -> None:
    """Play one file.

    Raises:
        AssertionError: a rule is broken; any other exception would have ended the agent.
    """
    dice = random.Random(f"error file {seed}")
    layout = RunLayout(folder)
    kind: Any = dice.choice(("script", "command"))
    order = WorkerOrder(
        rank=5, local_rank=1, attempt=2, kind=kind, target="x", arguments=(), environment={}, directory="/"
    )
    path = layout.error(2, 5)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(build_content(dice))
    with open(layout.stderr(2, 5), "wb") as file:
        file.write(dice.choice(_TEXTS).encode("utf-8", "surrogatepass"))
    exitcode = dice.choice((1, 3, -9, -11))
    failing = None
    if dice.random() < 0.3:
        failing = Word(pid=PID, attempt=2, kind=WordKind.CLOSING, exit_code=1, record=build_content(dice))
    check(fail(layout, order, exitcode, failing), path)


def check(failure: FailureRecord, path: str) -> None:
    """Check what must hold of a failure and of the error file that its agent leaves."""
    text = json.dumps(asdict(failure), ensure_ascii=False, allow_nan=False)
    text.encode()  # all that the failure goes through, connections and records, is UTF-8
    assert len(failure.message) <= MESSAGE_LIMIT + 100
    assert not failure.message or failure.message.lstrip()[:1], repr(failure.message)[:100]
    first = failure.message.split("\n")[0].rstrip()
    assert not failure.message.strip() or first, repr(failure.message)[:100]
    assert 0 <= failure.timestamp < 2**33, failure.timestamp
    with open(path, "rb") as file:
        data = json.loads(file.read().decode())
    assert data["pid"] == PID
    assert isinstance(data.get("time_ns"), int)
    assert isinstance(data["stderr_tail"], str)
    json.dumps(data, allow_nan=False)


def main(arguments: list[str]) -> int:
    """Play seeds; return 1 at the first that breaks a rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100_000)
    options = parser.parse_args(arguments)
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # every write is synced
    folder = tempfile.mkdtemp(dir=memory)
    try:
        for seed in range(options.first, options.first + options.count):
            try:
                play(seed, folder)
            except BaseException:
                print(f"error file {seed} breaks a rule", file=sys.stderr)
                raise
    finally:
        shutil.rmtree(folder)
    print(f"{options.count} error files: every failure was told")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
