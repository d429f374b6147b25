"""What ended a program is found inside a wrapper's output, and before whatever is printed after it."""

from __future__ import annotations

import json

import pytest

from hpc_elastic.failures.classes import FailureClass
from hpc_elastic.failures.classify import Classified, classify, find_exit_inside
from hpc_elastic.failures.evidence import FailureEvidence
from hpc_elastic.failures.output_end import clean_output, find_reason, last_line

LOST = "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:2000"


def trace(last: str = "ValueError: bad batch 17", *, line: int = 11, rank: int | None = None) -> str:
    """A traceback as Python prints it, or as torch's excepthook does in the process of a rank."""
    lines = [
        "Traceback (most recent call last):",
        '  File "/home/user/project/job.py", line 16, in <module>',
        "    work()",
        f'  File "/home/user/project/job.py", line {line}, in work',
        "    step()",
        last,
    ]
    return "".join(f"{f'[rank{rank}]: ' if rank is not None else ''}{each}\n" for each in lines)


def of_command(stderr_tail: str, code: int = 1) -> Classified:
    """Classify the end of a worker that is no Python of ours: only its code and output are known."""
    return classify(FailureEvidence(exit_code=code, stderr_tail=stderr_tail, directory="/home/user/project"))


def of_script(last: str, stderr_tail: str, *, code: int = 1, before: str = "", name: str = "exit_code") -> Classified:
    """Classify the end of a Python script of ours by its own last exception, and those that it handled before."""
    stack = 'Traceback (most recent call last):\n  File "/home/user/project/launch.py", line 9, in <module>\n    go()\n'
    during = "\nDuring handling of the above exception, another exception occurred:\n\n" if before else ""
    return classify(
        FailureEvidence(
            exit_code=code,
            written_by="bootstrap",
            failure_class=name,
            message=last.removeprefix("SystemExit: ") if name == "exit_code" else last,
            traceback=f"{before}{during}{stack}{last}\n",
            stderr_tail=stderr_tail,
            directory="/home/user/project",
        )
    )


def lines(count: int) -> str:
    return "".join(f"cleanup: step {number}\n" for number in range(count))


def test_an_exception_that_ended_a_process_of_the_group_counts_however_much_follows() -> None:
    found = of_command(trace(rank=2) + lines(40))
    assert (found.failure_class, found.message) == (FailureClass.EXCEPTION, "ValueError: bad batch 17")
    assert found.frame == "job.py:11 in work"


def test_an_exception_that_ended_a_process_of_the_group_counts_whatever_code_its_wrapper_gives() -> None:
    assert of_command(trace(rank=2) + "job failed\n", code=3).message == "ValueError: bad batch 17"
    assert of_command(trace() + "job failed\n", code=3).message == "job failed"


def test_some_lines_of_a_shell_after_a_traceback_do_not_hide_it() -> None:
    assert of_command(trace() + lines(6)).message.startswith("ValueError: bad batch 17")
    assert of_command(trace() + lines(30)).message == "cleanup: step 29"


PASSED_OVER = {
    "destructor": "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f0c>\n"
    + trace("AttributeError: 'NoneType' object has no attribute 'join'"),
    "atexit": "Exception ignored in atexit callback: <function close at 0x7f0c>\n" + trace("KeyError: 'writer'"),
    "python 3.14": "Exception ignored while calling deallocator <function A.__del__ at 0x7f0c>:\n" + trace("A: b"),
    "chained": "Exception ignored in: <generator object rows at 0x7f0c>\n"
    + trace("KeyError: 1")
    + "\nDuring handling of the above exception, another exception occurred:\n\n"
    + trace("RuntimeError: generator ignored GeneratorExit"),
    "logger": "--- Logging error ---\n"
    + trace("TypeError: not all arguments converted during string formatting")
    + 'Call stack:\n  File "/home/user/project/job.py", line 3, in <module>\n    log.info("done", 3)\n'
    + "Message: 'done'\nArguments: (3,)\n",
}


@pytest.mark.parametrize("name", PASSED_OVER)
def test_an_exception_that_python_passed_over_did_not_end_the_program(name: str) -> None:
    passed_over = PASSED_OVER[name]
    assert of_command(trace() + passed_over * 2).message == "ValueError: bad batch 17"
    assert of_script("SystemExit: 1", trace() + passed_over).message == "ValueError: bad batch 17"
    alone = of_command("no data left\n" + passed_over)
    assert (alone.failure_class, alone.message) == (FailureClass.EXIT_CODE, "no data left")


def test_a_summary_that_a_library_prints_at_the_exit_does_not_hide_the_exception() -> None:
    summary = "wandb: \n" + "".join(f"wandb:  loss_{number} ▁▃▅\n" for number in range(30))
    assert of_command(trace() + summary).message.startswith("ValueError: bad batch 17\n")
    assert of_script("SystemExit: 1", trace() + summary).frame == "job.py:11 in work"
    assert of_command("no data left\n" + summary, code=3).message == "no data left"
    told = "[hpc-elastic 01:13:52] FAILED (exit code 1): rank 0 on local0 failed with exit code 1: KeyError: 'x'"
    assert of_command(f"{told}\n[hpc-elastic 01:13:52] see: hpc-elastic logs 7\n").message == told
    refused = "wandb: ERROR api_key not configured"
    assert of_command(f"{summary}{refused}\n{summary}", code=3).message == refused


def test_an_error_in_a_box_is_told_without_the_box() -> None:
    box = "╭─ Error ───────────────╮\n│ No such option: --foo │\n╰───────────────────────╯\n"
    assert of_command(f"Usage: job.py [OPTIONS]\n{box}", code=2).message == "No such option: --foo"


def test_a_traceback_of_loguru_is_read() -> None:
    text = (
        "Traceback (most recent call last):\n\n"
        '> File "/home/user/project/job.py", line 16, in <module>\n    work()\n    └ <function work at 0x7f0c>\n\n'
        '  File "/home/user/project/job.py", line 11, in work\n    raise ValueError(f"bad batch {number}")\n'
        "                                    └ 17\n\nValueError: bad batch 17\n"
    )
    found = of_command(f"2026-01-02 | ERROR | __main__:<module>:16 - An error has been caught\n{text}")
    assert (found.message, found.frame) == ("ValueError: bad batch 17", "job.py:11 in work")


def test_the_type_of_an_exception_may_have_any_letters() -> None:
    found = of_command(trace("Überlauf: 17 > 16"))
    assert (found.message, found.frame) == ("Überlauf: 17 > 16", "job.py:11 in work")


def test_a_wrapper_whose_program_lost_a_peer_is_a_victim() -> None:
    assert of_command(trace(LOST, rank=1) + lines(6)).failure_class is FailureClass.PEER_LOST
    assert of_script("SystemExit: 1", trace(LOST, rank=1)).failure_class is FailureClass.PEER_LOST
    own = "RuntimeError: training failed with code 1"
    assert of_script(own, trace(LOST, rank=1) + trace(own), name="exception").failure_class is FailureClass.PEER_LOST


CALLED = "CalledProcessError: Command '['python3', 'job.py']' returned non-zero exit status 1."


def test_a_failed_subprocess_gives_way_to_what_it_printed() -> None:
    found = of_script(CALLED, trace() + trace(f"subprocess.{CALLED}", line=20), name="exception")
    assert (found.message, found.frame, found.detail) == (
        "ValueError: bad batch 17",
        "job.py:11 in work",
        f"then {CALLED}",
    )
    assert of_command(trace() + trace(f"subprocess.{CALLED}", line=20)).message.startswith("ValueError: bad batch 17")


def test_a_failed_subprocess_that_printed_nothing_stands_for_itself() -> None:
    assert of_script(CALLED, trace(f"subprocess.{CALLED}"), name="exception").message == CALLED


def test_a_launchers_own_error_gives_way_to_that_of_a_process_of_the_group_only() -> None:
    own = "RuntimeError: no data"
    assert of_script(own, trace(rank=2) + trace(own), name="exception").message == "ValueError: bad batch 17"
    assert of_script(own, trace() + trace(own), name="exception").message == own
    assert of_script(own, trace(rank=2) + trace(own, rank=2), name="exception").message == own


@pytest.mark.parametrize(
    ("words", "word", "name"),
    [
        ("died with <Signals.SIGKILL: 9>.", "signal", "SIGKILL"),
        ("died with <Signals.SIGSEGV: 11>.", "segmentation_fault", "SIGSEGV"),
        ("returned non-zero exit status 139.", "segmentation_fault", "SIGSEGV"),
    ],
)
def test_a_subprocess_that_a_signal_ended_is_told_by_the_signal(words: str, word: str, name: str) -> None:
    found = of_script(f"CalledProcessError: Command 'python3 job.py' {words}", "", name="exception")
    assert found.failure_class.value == word
    assert found.message.startswith(f"its program was killed by {name}")


def test_a_negative_code_that_a_script_passes_on_is_the_signal_of_its_subprocess() -> None:
    assert of_script("SystemExit: -9", "", code=247).message == "its program was killed by SIGKILL"
    assert of_command("", code=247).message == "its program was killed by SIGKILL"
    assert of_script("SystemExit: -1", "", code=255).message == "exit code 255"


def test_an_exit_in_the_handler_of_an_exception_is_that_exception() -> None:
    found = of_script("SystemExit: 1", trace() + lines(8), before=trace())
    assert (found.failure_class, found.message) == (FailureClass.EXCEPTION, "ValueError: bad batch 17")
    assert of_script("SystemExit: 5", "", code=5, before=trace()).message == "ValueError: bad batch 17"


def test_an_exit_of_a_library_that_handled_its_own_error_is_told_by_what_it_printed() -> None:
    said = "train.py: error: argument --lr: invalid float value: 'x'"
    inside = (
        'Traceback (most recent call last):\n  File "/opt/python/lib/python3.11/argparse.py", line 19, in parse_args\n'
        "    it()\nargparse.ArgumentError: argument --lr: invalid float value: 'x'\n"
    )
    found = of_script("SystemExit: 2", f"usage: train.py\n{said}\n", code=2, before=inside)
    assert (found.failure_class, found.message) == (FailureClass.EXIT_CODE, said)


def test_a_text_given_to_exit_is_the_cause_though_a_handled_exception_was_printed() -> None:
    found = of_script("SystemExit: no data left", trace() + "using the default\nno data left\n")
    assert (found.failure_class, found.message) == (FailureClass.EXIT_CODE, "no data left")


def test_a_text_given_to_exit_after_the_loss_of_a_peer_is_a_victims() -> None:
    tail = trace(LOST) + "training failed\n"
    assert of_script("SystemExit: training failed", tail).failure_class is FailureClass.PEER_LOST


def test_an_error_that_a_script_states_before_its_exit_goes_before_a_printed_traceback() -> None:
    assert of_script("SystemExit: 1", trace() + "ERROR: no data left\n").message == "ERROR: no data left"


def test_a_dump_of_stacks_after_a_time_is_told_with_the_users_line() -> None:
    tail = (
        "Timeout (0:00:01)!\nThread 0x00007f2b (most recent call first):\n"
        '  File "/opt/python/lib/python3.11/threading.py", line 629 in wait\n'
        '  File "/home/user/project/job.py", line 7 in <module>\n'
        '  File "/opt/x/hpc_elastic/launch.py", line 58 in <module>\n'
    )
    found = of_command(tail)
    assert found.message == "faulthandler.dump_traceback_later ended it, after a timeout of 0:00:01"
    assert (found.failure_class, found.frame) == (FailureClass.EXIT_CODE, "job.py:7")


def test_a_warning_and_a_progress_bar_are_not_why_a_program_ended() -> None:
    warning = "/opt/torch/x.py:368: UserWarning: Failed to initialize NumPy\n  cpu = convert(device)\n"
    assert last_line(f"no data left\n{warning}\r 50%|##   | 5/10 [00:01<00:01, 4.97it/s]\n") == "no data left"
    assert of_command(warning, code=6).message == "exit code 6"


def test_a_traceback_behind_a_progress_bar_is_found() -> None:
    bar = "\r  0%|          | 0/10 [00:00<?, ?it/s]"
    assert of_command(bar + trace() + bar + "\n" + lines(3)).message.startswith("ValueError: bad batch 17")
    assert of_command(bar + trace(rank=2)).frame == "job.py:11 in work"


@pytest.mark.parametrize("rank", ["", "[rank2]: "])
def test_a_box_around_a_traceback_is_read_like_pythons(rank: str) -> None:
    box = (
        "\x1b[31m╭──────── \x1b[0m\x1b[1;31mTraceback (most recent call last)\x1b[0m ────────╮",
        "│ /home/user/project/job.py:16 in <module>      │",
        "│ ❱ 16 work()                                   │",
        "│ ╭───────── locals ─────────╮                  │",
        "│ │ RANK = 2                 │                  │",
        "│ ╰──────────────────────────╯                  │",
        "│ /home/user/project/job.py:11 in work          │",
        '│ ❱ 11 │   │   raise ValueError("bad batch 17") │',
        "╰───────────────────────────────────────────────╯",
        "ValueError: bad batch 17",
    )
    found = of_command("".join(f"{rank}{line}\n" for line in box) + "job failed\n")
    assert (found.message.partition("\n")[0], found.frame) == ("ValueError: bad batch 17", "job.py:11 in work")


def test_output_without_any_of_this_is_left_as_it_is() -> None:
    text = trace() + "a [x] Traceback (most recent call last):\n│ a table │\n"
    assert clean_output(text) == text


def test_a_wrapper_that_was_stopped_has_failed_if_its_program_had() -> None:
    assert find_exit_inside(trace(rank=2) + lines(3)) == 1
    assert find_exit_inside("./p.sh: line 2:  4711 Segmentation fault      (core dumped) python3 job.py\nbye\n") == 139


def test_a_wrapper_that_was_stopped_has_not_failed_by_itself_otherwise() -> None:
    assert find_exit_inside(trace() + lines(1)) is None  # a handler may have printed it
    assert find_exit_inside(trace(LOST, rank=1)) is None
    assert find_exit_inside("./p.sh: line 2:  4711 Terminated              python3 job.py\n") is None
    lost = "[W1123 ProcessGroupNCCL.cpp:1] Connection closed by remote peer\n"
    assert find_exit_inside(f"{lost}./p.sh: line 2:  4711 Aborted                 python3 job.py\n") is None
    assert find_exit_inside(f"./p.sh: line 2:  4711 Killed                  python3 check.py\n{lines(20)}") is None


@pytest.mark.parametrize("code", [1, 2, 70])
def test_a_handler_that_prints_the_loss_of_a_peer_and_gives_up_is_a_victim_whatever_its_code(code: int) -> None:
    assert of_command(trace(LOST), code).failure_class is FailureClass.PEER_LOST
    assert of_command(trace(), code).failure_class is (FailureClass.EXCEPTION if code == 1 else FailureClass.EXIT_CODE)
    assert of_command(f"{trace(LOST)}no data left\n", 2).message == "no data left"


@pytest.mark.parametrize("code", [1, 2])
def test_a_last_line_with_gloos_loss_of_a_peer_makes_a_victim(code: int) -> None:
    logged = f"2026-01-02 03:04:05 | CRITICAL | it crashed: {LOST.removeprefix('RuntimeError: ')}\n"
    found = of_command(logged, code)
    assert (found.failure_class, found.message) == (
        FailureClass.PEER_LOST,
        "RuntimeError: gloo: Connection closed by peer [127.0.0.1]:2000",
    )
    assert of_script(f"SystemExit: {code}", logged, code=code).failure_class is FailureClass.PEER_LOST
    assert of_command(f"{logged}no data left\n", code).message == "no data left"
    assert of_command("it crashed: Connection closed by peer\n", code).failure_class is FailureClass.EXIT_CODE


def test_a_traceback_in_a_line_of_json_is_read() -> None:
    found = of_command(json.dumps({"event": "uncaught", "exception": trace()}) + "\n")
    assert (found.message, found.frame) == ("ValueError: bad batch 17", "job.py:11 in work")
    assert of_command(json.dumps({"exception": trace(LOST)}) + "\n").failure_class is FailureClass.PEER_LOST


@pytest.mark.parametrize(
    "line", ['{"exception": "Traceback (most recent call last)', '{"Traceback (most recent call last)": 1}']
)
def test_a_line_that_is_no_record_with_a_traceback_stays_as_it_is(line: str) -> None:
    assert clean_output(line) == line


def test_a_chain_that_ends_with_the_loss_of_a_peer_is_no_victims() -> None:
    chain = f"{trace()}\nDuring handling of the above exception, another exception occurred:\n\n{trace(LOST)}"
    line = json.dumps({"exception": chain})
    assert of_command(chain, 3).failure_class is FailureClass.EXIT_CODE
    assert of_command(f"it crashed: {chain!r}\n", 3).failure_class is FailureClass.EXIT_CODE
    assert of_command(f"{line}\n").message == "ValueError: bad batch 17"
    assert of_command(f"{line}\n", 3).failure_class is FailureClass.EXIT_CODE


def launched(*, exitcode: int, told: str) -> str:
    """What torch's launcher raises, as ChildFailedError.format_msg of torch 2.13 writes it."""
    return (
        f"ChildFailedError: \n{'=' * 60}\ntrain FAILED\n{'-' * 60}\nFailures:\n[1]:\n"
        "  time      : 2026-01-02_03:04:06\n  host      : node1\n  rank      : 0 (local_rank: 0)\n"
        "  exitcode  : 1 (pid: 40)\n  error_file: <N/A>\n"
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n"
        f"{'-' * 60}\nRoot Cause (first observed failure):\n[0]:\n"
        "  time      : 2026-01-02_03:04:05\n  host      : node1\n  rank      : 1 (local_rank: 1)\n"
        f"  exitcode  : {exitcode} (pid: 41)\n  error_file: <N/A>\n  traceback : {told}\n{'=' * 60}"
    )


def test_a_launcher_within_a_script_gives_way_to_the_exception_that_it_quotes() -> None:
    quoted = trace("RuntimeError: no such shard", line=30).replace("\n", "\n  ")
    own = launched(exitcode=1, told=quoted)
    logged = "E1127 07:24:30.720000 6797 torch/distributed/elastic/multiprocessing/api.py:836] failed (exitcode: 1)\n"
    found = of_script(own, logged, name="exception")
    assert (found.message, found.frame) == ("RuntimeError: no such shard", "job.py:30 in work")
    assert found.detail.startswith("then ChildFailedError: train FAILED: its rank 1: exit code 1")
    assert of_command(logged + trace(f"torch.distributed.elastic.{own}")).message == "RuntimeError: no such shard"


@pytest.mark.parametrize(
    ("exitcode", "told", "words"),
    [
        (-9, "Signal 9 (SIGKILL) received by PID 41", "Signal 9 (SIGKILL) received by PID 41"),
        (3, "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html", "exit code 3"),
    ],
)
def test_a_launcher_within_a_script_says_how_its_worker_ended(exitcode: int, told: str, words: str) -> None:
    found = of_script(launched(exitcode=exitcode, told=told), "", name="exception")
    assert found.message == f"ChildFailedError: train FAILED: its rank 1: {words}"


@pytest.mark.parametrize(
    "own",
    [
        "ProcessExitedException: process 0 terminated with exit code 1",
        "BrokenProcessPool: A process in the process pool was terminated abruptly.",
        "RuntimeError: DataLoader worker (pid(s) 9404) exited unexpectedly",
    ],
)
def test_a_spawned_process_that_left_without_a_word_gives_way_to_what_it_printed(own: str) -> None:
    unguarded = (
        "RuntimeError: \n        An attempt has been made to start a new process before the\n"
        "        current process has finished its bootstrapping phase.\n\n"
        "        This probably means that you are not using fork to start your\n        child processes\n"
    )
    found = of_script(own, trace(unguarded), name="exception")
    assert found.message.startswith("RuntimeError: An attempt has been made to start a new process")
    assert found.detail == f"then {own}"
    assert of_script(own, "", name="exception").message == own


def test_a_spawned_process_that_a_signal_ended_gives_way_to_no_exception_before_that() -> None:
    own = "ProcessExitedException: process 0 terminated with signal SIGKILL"
    assert of_script(own, trace(), name="exception").message == own


def test_an_error_with_colours_is_told_without_them_and_is_no_other_than_the_printed_one() -> None:
    own = "UnpicklingError: it failed; \x1b[1mdo those steps only if you trust it\x1b[0m. \n\t(1) this"
    found = of_script(own, trace(f"_pickle.{own}", line=20, rank=2), name="exception")
    assert (found.message, found.detail) == (
        "UnpicklingError: it failed; do those steps only if you trust it. \n\t(1) this",
        "",
    )


LMOD = """Lmod has detected the following error: The following module(s) are unknown: "cuda/99"

Please check the spelling or version number. Also try "module spider ..."
It is also possible your cache file is out-of-date; it may help to try:
  $ module --ignore_cache load "cuda/99"
"""
NO_CODECS = """  sys.path = [
    '/nonexistent/lib/python3.11',
  ]
Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding
Python runtime state: core initialized
ModuleNotFoundError: No module named 'encodings'

Current thread 0x00007fdaa2c7db80 (most recent call first):
  <no Python frame>
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (LMOD, 'Lmod has detected the following error: The following module(s) are unknown: "cuda/99"'),
        (f"{LMOD}{'the work begins{0}' * 20}it broke{{0}}".format("\n"), "it broke"),
        (
            NO_CODECS,
            "Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding",
        ),
        ("config error: lr must be > 0\nINFO: closed\n", "config error: lr must be > 0"),
        ("10:00 ERROR no data\n10:01 INFO bye\n", "10:00 ERROR no data"),
        ("step 1\n10:01 INFO gave up\n", "10:01 INFO gave up"),
        ("error: 0.31\nloss is nan\n", "loss is nan"),
        ("", ""),
    ],
)
def test_the_reason_of_an_exit_is_the_last_line_but_for_hints_and_farewells(text: str, line: str) -> None:
    assert find_reason(text) == line
