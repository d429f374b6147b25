"""What of an explanation must be the same in every run of a fault."""

from __future__ import annotations

from hpc_elastic.failures.ends import UNKNOWN_USE
from tests.faults.explained import GOLDENS, comparable, differences
from tests.faults.table import FAULTS

FAULT = next(fault for fault in FAULTS if fault.name == "finally_raises")
CAUSE = "cause     rank 1 on local0 failed with exit code 1: ValueError: bad batch 17\n"
INNER = '              File "/project/job.py", line 11, in main\n'
OUTER = '              File "/project/job.py", line 17, in <module>\n                main()\n'
HEAD = "evidence  the end of rank 1's traceback:\n            Traceback (most recent call last):\n"


def test_outer_lines_of_a_traceback_are_not_compared() -> None:
    assert comparable(FAULT, CAUSE + HEAD + OUTER + INNER) == comparable(FAULT, CAUSE + HEAD + INNER)


def test_the_innermost_line_of_a_traceback_is_compared() -> None:
    other = INNER.replace("11", "12")
    assert comparable(FAULT, CAUSE + HEAD + OUTER + INNER) != comparable(FAULT, CAUSE + HEAD + OUTER + other)


def test_a_cause_is_compared() -> None:
    assert comparable(FAULT, CAUSE) != comparable(FAULT, CAUSE.replace("17", "18"))


def test_the_ways_in_which_torch_notices_the_end_of_a_data_loaders_process_are_alike() -> None:
    lost = "DataLoader worker"
    said = (
        f"RuntimeError: {lost} (pid 4711) exited unexpectedly with exit code 1.",
        f"RuntimeError: {lost} (pid(s) 4711) exited unexpectedly",
        f"ConnectionResetError: [Errno 104] Connection reset by peer (a {lost} exited unexpectedly)",
        f"EOFError (a {lost} exited unexpectedly)",
    )
    texts = [f"cause     rank 1 on local0 failed with exit code 1: {each}\n" for each in said]
    assert len({tuple(comparable(FAULT, text)) for text in texts}) == 1
    assert comparable(FAULT, texts[0]) != comparable(FAULT, texts[0].replace("rank 1", "rank 2"))


def test_what_a_test_beside_this_one_kills_for_memory_is_not_compared() -> None:
    killed = "cause     rank 2 on local1 was killed by SIGKILL"
    others = ": the kernel of the node killed\n          1 process for memory meanwhile, none of them in this cgroup"
    assert comparable(FAULT, f"{killed}{others}\n") == comparable(FAULT, f"{killed}\n")


def test_a_kill_for_memory_of_which_the_kernel_names_no_cgroup_may_have_no_figures() -> None:
    (killed,) = (fault for fault in FAULTS if fault.name == "oom_worker")
    golden = (GOLDENS / "oom_worker.txt").read_text(encoding="utf-8")
    unknown = golden.replace("64 of 64 MiB\n          in use", UNKNOWN_USE)
    assert unknown != golden
    assert list(differences(killed, unknown)) == []
    assert len(list(differences(killed, golden.replace("64 of 64 MiB\n          in use", "")))) == 1
    assert len(list(differences(killed, unknown.replace("rank 1", "rank 2")))) == 1


def test_of_a_clipped_line_what_is_left_is_compared() -> None:
    (logged,) = (fault for fault in FAULTS if fault.name == "json_log")
    golden = (GOLDENS / "json_log.txt").read_text(encoding="utf-8")
    clipped = golden.replace('batch 17\\n"}', "bat [...]")
    assert clipped != golden
    assert list(differences(logged, clipped)) == []
    assert len(list(differences(logged, clipped.replace("line 26, in main\\n", "line 27, in main\\n")))) == 1


def test_where_ranks_waited_at_different_lines_each_may_be_the_one_that_is_told() -> None:
    (late,) = (fault for fault in FAULTS if fault.name == "one_step_less")
    golden = (GOLDENS / "one_step_less.txt").read_text(encoding="utf-8")
    of_rank_1 = golden.replace("where     group.py:17 in together; rank 0", "where     job.py:8; rank 1")
    of_rank_1 = of_rank_1.replace('"/project/group.py", line 17, in together', '"/project/job.py", line 8, in <module>')
    assert of_rank_1 != golden
    assert list(differences(late, of_rank_1)) == []
    assert len(list(differences(late, golden.replace("at job.py:8", "at job.py:9")))) == 1
