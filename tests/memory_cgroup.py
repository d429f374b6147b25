"""A memory cgroup of version 1 for tests that fill one; it is gone when the test ends."""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm_sandbox.cluster import wait_until

V1 = Path("/sys/fs/cgroup/memory")
MIB = 1 << 20
ENTERS = 'echo $$ > "$0" && exec "$@"'  # of `sh -c`, whose first argument is the file `cgroup.procs`


class MemoryCgroup:
    """A memory cgroup and what the kernel says of it.

    Args:
        path: its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def limit_to(self, size: int) -> None:
        """Let its processes have so many bytes."""
        (self.path / "memory.limit_in_bytes").write_text(str(size))

    def entering(self, *command: str) -> list[str]:
        """The command that runs another one in the cgroup."""
        return ["/bin/sh", "-c", ENTERS, str(self.path / "cgroup.procs"), *command]

    @property
    def used(self) -> int:
        """How many bytes its processes have."""
        return int((self.path / "memory.usage_in_bytes").read_text())

    @property
    def kills(self) -> int:
        """How many of its processes the out-of-memory killer has ended."""
        found = re.search(r"^oom_kill (\d+)$", (self.path / "memory.oom_control").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])


@contextlib.contextmanager
def memory_cgroup() -> Iterator[MemoryCgroup]:
    """Make a memory cgroup without a limit, or skip the test where there can be none."""
    path = V1 / f"hpc-elastic-{uuid.uuid4().hex[:8]}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup of version 1 can be made here: {error}")
    try:
        yield MemoryCgroup(path)
    finally:
        wait_until(lambda: _is_removed(path), f"{path} is empty", otherwise=lambda: (path / "cgroup.procs").read_text())


def _is_removed(path: Path) -> bool:
    with contextlib.suppress(OSError):
        os.rmdir(path)
    return not path.exists()
