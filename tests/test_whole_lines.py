"""Lines of several processes in one file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hpc_elastic.whole_lines import write_line


class WithoutBuffer:
    """A stream of which each write reaches the file by itself."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def write(self, text: str) -> None:
        self.calls.append(text)

    def flush(self) -> None:
        self.calls.append("flush")


def test_a_line_and_its_newline_are_one_write() -> None:
    stream = WithoutBuffer()
    write_line(stream, "a line")  # type: ignore[arg-type]
    assert stream.calls == ["a line\n", "flush"]


def test_a_line_is_in_the_file_before_the_process_ends(tmp_path: Path) -> None:
    code = (
        "import os, sys; from hpc_elastic.whole_lines import write_line; write_line(sys.stdout, 'there'); os._exit(0)"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout == "there\n"
