"""What the node says around a worker's end is asked where the end gives a reason to."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.agent.system.memory import MemoryWatch
from hpc_elastic.agent.workers.circumstances import Circumstances, named_folders
from tests.agent.system.test_memory import Node

TRACEBACK = """Traceback (most recent call last):
  File "/home/ada/job.py", line 5, in <module>
    torch.save({"weights": weights}, "data/last.pt")
  File "/opt/python/lib/python3.11/site-packages/torch/serialization.py", line 834, in __exit__
    self.file_like.write_end_of_file()
RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598
"""


@pytest.mark.parametrize(
    ("text", "folders"),
    [
        (TRACEBACK, ("/home/ada", "/home/ada/data")),
        ("open('/scratch/ada/x.npy', 'wb')", ("/home/ada", "/scratch/ada")),
        ("open('../other/x'); open('../other/y')", ("/home/ada", "/home/other")),
        ("get('https://host/data')", ("/home/ada",)),
        ("print('a', \"b\", 'it')", ("/home/ada",)),
        ("''\"\"/", ("/home/ada",)),
    ],
)
def test_the_folders_of_files_that_a_programs_last_words_name_are_asked(text: str, folders: tuple[str, ...]) -> None:
    assert named_folders(text, "/home/ada") == folders


def test_no_more_than_the_last_folders_that_a_text_names_are_asked() -> None:
    text = "\n".join(f"open('/disk{number}/x')" for number in range(100))
    assert named_folders(text, "/home/ada") == ("/home/ada", *(f"/disk{number}" for number in range(92, 100)))


def test_a_relative_name_says_nothing_without_a_directory() -> None:
    assert named_folders(TRACEBACK, "") == ()


def test_a_process_of_the_agent_that_was_killed_for_memory_is_told_so(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.has_version_1()
    circumstances = Circumstances(str(tmp_path), MemoryWatch(str(tmp_path)), str(tmp_path))
    circumstances.mark()
    assert circumstances.explain_kill(4711) == "killed by SIGKILL"
    node.write("proc/vmstat", "oom_kill 6\n")
    assert circumstances.explain_kill(4711).startswith("killed by SIGKILL (the kernel of the node killed 1 process for")
    node.kills_1(1)
    assert circumstances.explain_kill(4711) == "killed by the out-of-memory killer: 251 of 256 MiB"
