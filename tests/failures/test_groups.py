"""Groups of exceptions, as asyncio's and anyio's task groups raise them: the first one in the group is the failure."""

from __future__ import annotations

import pytest

from hpc_elastic.failures.classes import FailureClass
from hpc_elastic.failures.classify import classify
from hpc_elastic.failures.evidence import FailureEvidence
from hpc_elastic.failures.traceback_text import parse_traceback

# As Python 3.11 prints it.
TASKS = """\
  + Exception Group Traceback (most recent call last):
  |   File "/home/ada/job.py", line 16, in <module>
  |     asyncio.run(main())
  |   File "/usr/lib/python3.11/asyncio/runners.py", line 190, in run
  |     return runner.run(main)
  |   File "/home/ada/job.py", line 11, in main
  |     async with asyncio.TaskGroup() as group:
  |   File "/usr/lib/python3.11/asyncio/taskgroups.py", line 145, in __aexit__
  |     raise me from None
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/ada/job.py", line 7, in fetch
    |     raise ConnectionError("no answer of the store of data")
    | ConnectionError: no answer of the store of data
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/home/ada/job.py", line 9, in count
    |     return 1 / 0
    | ZeroDivisionError: division by zero
    +------------------------------------
"""
HEAD = 'Traceback (most recent call last):\n  File "/home/ada/job.py", line 4, in attempt\n    raise group\n'
NESTED = """\
  + Exception Group Traceback (most recent call last):
  |   File "/home/ada/job.py", line 4, in <module>
  |     raise ExceptionGroup("outer", [inner, KeyError("late")])
  | ExceptionGroup: outer (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Exception Group Traceback (most recent call last):
    |   File "/home/ada/job.py", line 2, in load
    |     raise ExceptionGroup("inner", [OSError(28, "No space left on device", "/scratch/x.pt")])
    | ExceptionGroup: inner (1 sub-exception)
    +-+---------------- 1 ----------------
      | Traceback (most recent call last):
      |   File "/home/ada/save.py", line 31, in save
      |     file.write(part)
      | OSError: [Errno 28] No space left on device: '/scratch/x.pt'
      +------------------------------------
    +---------------- 2 ----------------
    | KeyError: 'late'
    +------------------------------------
"""


def evidence_of(text: str, message: str, kind: str = "ExceptionGroup") -> FailureEvidence:
    return FailureEvidence(
        exit_code=1,
        written_by="bootstrap",
        traceback=text,
        message=message,
        exception_type=kind,
        directory="/home/ada",
    )


def test_the_first_exception_of_a_group_is_the_failure() -> None:
    found = classify(evidence_of(TASKS, "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)"))
    assert found.message == (
        "ConnectionError: no answer of the store of data "
        "(in ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions))"
    )
    assert (found.failure_class, found.frame) == (FailureClass.EXCEPTION, "job.py:7 in fetch")


def test_a_group_in_a_group_is_looked_into() -> None:
    found = classify(evidence_of(NESTED, "ExceptionGroup: outer (2 sub-exceptions)"))
    assert found.failure_class is FailureClass.DISK_FULL
    assert found.frame == "save.py:31 in save"


def test_a_group_at_the_end_of_an_output_is_read_as_one_of_an_error_file() -> None:
    found = classify(FailureEvidence(exit_code=1, stderr_tail=f"step 1\nstep 2\n{TASKS}", directory="/home/ada"))
    assert found.message.startswith("ConnectionError: no answer of the store of data (in ")
    assert found.frame == "job.py:7 in fetch"


@pytest.mark.parametrize("text", [TASKS, NESTED], ids=["tasks", "nested"])
def test_a_group_whose_end_is_cut_off_is_read_as_far_as_it_goes(text: str) -> None:
    lines = text.splitlines()
    for count in range(len(lines)):
        chain = parse_traceback("\n".join(lines[:count]))
        assert len([each for each in chain if not each.is_group]) <= 1
    for count in range(len(lines)):
        parse_traceback("\n".join(lines[count:]))


@pytest.mark.parametrize("head", [HEAD, ""], ids=["with_frames", "without"])
def test_equal_groups_that_show_no_exception_in_them_have_an_answer(head: str) -> None:
    group = f"{head}ExceptionGroup: all fetches failed (2 sub-exceptions)\n"
    between = "\nDuring handling of the above exception, another exception occurred:\n\n"
    found = classify(FailureEvidence(exit_code=1, stderr_tail=between + between.join([group] * 3)))
    assert found.message == "ExceptionGroup: all fetches failed (2 sub-exceptions)"


def test_what_was_raised_after_a_group_follows_it() -> None:
    after = (
        f"{TASKS}\nDuring handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "/home/ada/job.py", line 20, in <module>\n'
        '    raise RuntimeError("gave up")\nRuntimeError: gave up\n'
    )
    assert [each.short_type for each in parse_traceback(after)] == ["ConnectionError", "ExceptionGroup", "RuntimeError"]
    found = classify(evidence_of(after, "RuntimeError: gave up", "RuntimeError"))
    assert found.message == "RuntimeError: gave up (from ConnectionError: no answer of the store of data)"


def test_lines_like_those_of_a_group_are_text_elsewhere() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/home/ada/job.py", line 2, in <module>\n'
        "    raise ValueError(TABLE)\n"
        "ValueError: bad table\n---------------- 1 ----------------\n------------------------------------\n"
    )
    assert parse_traceback(text)[-1].text.startswith("bad table\n----")
