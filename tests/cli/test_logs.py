"""What a rank, an agent or the script wrote: bytes as they are, and what there is if it is not there."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.agent.workers.log_writer import LogWriter
from hpc_elastic.cli.logs_merge import parse_since
from hpc_elastic.cli.main import main
from hpc_elastic.codec import to_json
from hpc_elastic.observe.log_streams import LogSource, LogStream, merge
from hpc_elastic.observe.roster import RankPlace
from hpc_elastic.rundir import store
from hpc_elastic.rundir.node_log import format_head, format_time
from hpc_elastic.rundir.records import LogMark
from tests.another_user import another_user, folder_of_everybody
from tests.cli.conftest import FakeSlurm
from tests.nfs_client import NfsClient
from tests.observe.builders import RunBuilder, refuse_writes
from tests.rundir.test_full_disk import full_disk

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    run = RunBuilder(tmp_path / "run").submit().start_script("hpc_elastic: run directory /x\n").allocate()
    run.open_attempt(1).write_rank(1, 0, "first\n").write_rank(1, 3, "third\n", "killed\n")
    return run.open_attempt(2, restarts=1).write_rank(2, 0, "second\n", "warning\n")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    with folder_of_everybody() as folder:
        yield folder


def logs(run: RunBuilder, *arguments: str) -> int:
    return main(["logs", *arguments, run.layout.root])


def test_rank_zero_of_the_latest_attempt_is_the_default(run: RunBuilder, capfd: pytest.CaptureFixture[str]) -> None:
    assert logs(run) == 0
    assert capfd.readouterr() == ("second\n", "warning\n")


def test_a_role_that_ran_on_has_its_output_in_an_older_attempt(
    run: RunBuilder, capfd: pytest.CaptureFixture[str]
) -> None:
    run.open_attempt(3, restarts=2, roles={"trainer": 2, "reader": 3}).write_rank(3, 3, "read\n").end()
    assert logs(run) == 0
    assert capfd.readouterr().out == "second\n"
    assert logs(run, "--rank", "3") == 0
    assert capfd.readouterr().out == "read\n"
    assert logs(run, "--follow") == 0
    assert capfd.readouterr().out == "second\n"


def test_logs_that_end_for_want_of_quota_say_so(
    run: RunBuilder, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = f"hpc-elastic: your quota is used up on the file system of {run.layout.root}: free some space; what was"
    with monkeypatch.context() as patch:
        refuse_writes(patch, run.layout.root, errno.EDQUOT)
        assert logs(run) == 0
    shown = capfd.readouterr()
    assert (shown.out, said in shown.err) == ("second\n", True)
    run.end()
    refuse_writes(monkeypatch, run.layout.root, errno.EDQUOT)
    assert logs(run) == 0
    assert said not in capfd.readouterr().err


def test_an_attempt_that_could_not_be_opened_for_want_of_space_hides_no_logs(
    run: RunBuilder, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(run.layout.attempt(3)).mkdir()
    full_disk(monkeypatch, run.layout.root)
    assert logs(run) == 0
    said = f"hpc-elastic: no space is left on the file system of {run.layout.root}: free some; what was written"
    shown = capfd.readouterr()
    assert (shown.out, said in shown.err) == ("second\n", True)
    assert logs(run, "--rank", "all") == 0
    assert capfd.readouterr().out == "[node1:0] second\n[node1:0] warning\n"
    run.end()
    assert logs(run) == 0
    assert "no space" not in capfd.readouterr().err


def test_rank_and_attempt_choose(run: RunBuilder, capfd: pytest.CaptureFixture[str]) -> None:
    assert logs(run, "--rank", "3", "--attempt", "1") == 0
    assert capfd.readouterr() == ("third\n", "killed\n")


def test_node_is_its_agent(run: RunBuilder, capfd: pytest.CaptureFixture[str]) -> None:
    Path(run.layout.agent_output("node2")).write_text("agent of node2\n")
    assert logs(run, "--node", "node2") == 0
    assert capfd.readouterr().out == "agent of node2\n"


def test_of_a_node_that_is_not_there_the_first_of_those_that_are_are_named(run: RunBuilder, capsys: Capture) -> None:
    for number in range(300):
        Path(run.layout.agent_output(f"gpu-{number:03d}")).touch()
    assert logs(run, "--node", "gpu-x") == 2
    assert capsys.readouterr().err.endswith("gpu-005, gpu-006, gpu-007 and 292 more\n")


def test_script_is_all_there_is_before_the_first_attempt(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = RunBuilder(tmp_path / "early").submit().start_script("hpc_elastic: setup line failed\n")
    assert logs(run) == 0
    assert capfd.readouterr() == (
        "hpc_elastic: setup line failed\n",
        "no attempt was opened; this is the script's output\n",
    )


def test_bytes_pass_unchanged(run: RunBuilder, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    content = bytes(range(256)) * 20_000
    Path(run.layout.stdout(2, 0)).write_bytes(content)
    assert logs(run) == 0
    assert capfdbinary.readouterr().out == content


@pytest.mark.parametrize("arguments", [[], ["--rank", "all"], ["--tail", "1"], ["--follow"], ["--follow", "--dedupe"]])
@pytest.mark.parametrize("closed", ["stdout.log", "."], ids=["file", "directory"])
def test_a_log_that_this_user_may_not_read_is_an_error_and_no_empty_output(
    open_folder: Path, closed: str, arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    run = RunBuilder(open_folder / "run").submit().allocate().open_attempt(1).write_rank(1, 0, "first\n").end()
    for path in [Path(run.layout.root), *Path(run.layout.root).rglob("*")]:
        path.chmod(0o755)
    Path(run.layout.rank(1, 0), closed).chmod(0)
    with another_user():
        assert logs(run, *arguments) == 5
    error = capfd.readouterr().err
    assert f"cannot read {run.layout.stdout(1, 0)}" in error
    assert "Permission denied" in error
    Path(run.layout.rank(1, 0), closed).chmod(0o755)


def test_marks_that_this_user_may_not_read_are_named_after_all_that_may_be_read(
    open_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = RunBuilder(open_folder / "run").submit().allocate().open_attempt(1).end()
    run.write_rank(1, 0, "first\n").write_rank(1, 2, "second\n")
    marks = [Path(run.layout.log_marks(1, node)) for node in ("node1", "node2")]
    for path in marks:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    for path in [Path(run.layout.root), *Path(run.layout.root).rglob("*")]:
        path.chmod(0o755)
    marks[0].chmod(0)
    with another_user():
        assert logs(run, "--rank", "all") == 5
    said = capfd.readouterr()
    assert sorted(said.out.splitlines()) == ["[node1:0] first", "[node2:2] second"]
    assert f"cannot read {marks[0]}: Permission denied" in " ".join(said.err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attempt", "7"], "there is no attempt 7"),
        (["--rank", "9"], "there is no output of rank 9 in attempt 2: it has output of ranks 0 to 0"),
        (["--node", "node9"], "no agent wrote on a node 'node9'"),
        (["--node", "../../job"], "no agent wrote on a node"),
    ],
)
def test_what_is_not_there_is_named(run: RunBuilder, capsys: Capture, arguments: list[str], message: str) -> None:
    assert logs(run, *arguments) == 2
    assert message in capsys.readouterr().err


def test_node_whose_output_is_named_by_its_machine_is_known_by_its_own_name(run: RunBuilder, capfd: Capture) -> None:
    Path(run.layout.agent_output("cn7")).write_text("told by node7\n")
    Path(run.layout.agent_output("node7")).symlink_to("cn7.out")
    assert logs(run, "--node", "node7") == 0
    assert capfd.readouterr().out == "told by node7\n"
    assert logs(run, "--node", "none") == 2
    told = capfd.readouterr().err
    assert "node7" in told
    assert "cn7" not in told


def test_rank_that_is_not_redirected_is_in_its_agents_log(run: RunBuilder, capsys: Capture) -> None:
    Path(run.layout.rank(2, 5)).mkdir()
    assert logs(run, "--rank", "5") == 2
    assert "rank 5 of attempt 2 has no files: logs.redirects leaves its output to its agent's log" in (
        capsys.readouterr().err
    )


def write_filtered(run: RunBuilder) -> None:
    for attempt, node, text in (
        (1, "node1", "old\n"),
        (2, "node1", "[node1:0] apple\n"),
        (2, "node2", "[node2:2] apple\n"),
    ):
        path = Path(run.layout.filtered_stdout(attempt, node))
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        Path(run.layout.agent_output(node)).write_text("")
    Path(run.layout.filtered_stderr(2, "node2")).write_text("[node2:2] pear\n")


def test_filtered_lines_are_those_of_all_nodes_or_of_one(run: RunBuilder, capfd: pytest.CaptureFixture[str]) -> None:
    write_filtered(run)
    assert logs(run, "--filtered") == 0
    assert capfd.readouterr() == ("[node1:0] apple\n[node2:2] apple\n", "[node2:2] pear\n")
    assert logs(run, "--filtered", "--node", "node1", "--attempt", "1") == 0
    assert capfd.readouterr() == ("old\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attempt", "7"], "there are no filtered lines of attempt 7"),
        (["--node", "node9"], "there are no filtered lines of attempt 2 on node9"),
        (["--follow"], "--filtered goes with --node and --attempt only"),
        (["--rank", "0"], "--filtered goes with --node and --attempt only"),
    ],
)
def test_filtered_lines_that_are_not_there_are_named(
    run: RunBuilder, capsys: Capture, arguments: list[str], message: str
) -> None:
    write_filtered(run)
    assert logs(run, "--filtered", *arguments) == 2
    assert message in capsys.readouterr().err


def test_run_that_has_not_started_has_no_logs(tmp_path: Path, capsys: Capture) -> None:
    assert logs(RunBuilder(tmp_path / "early").submit()) == 2
    assert "the run has not started" in capsys.readouterr().err


def test_rank_of_a_run_without_an_attempt_is_answered_with_that(tmp_path: Path, capsys: Capture) -> None:
    run = RunBuilder(tmp_path / "early").submit().start_script("hpc_elastic: setup line failed\n")
    assert main(["logs", run.layout.root, "--rank", "3"]) == 2
    error = capsys.readouterr().err
    assert "rank 3 has written nothing: no attempt was opened\n  tip: `hpc-elastic logs --script`" in error
    assert main(["logs", run.layout.root, "--attempt", "2"]) == 2
    assert "there is no attempt 2" in capsys.readouterr().err


def test_run_that_ended_before_it_started_is_not_said_to_start_yet(tmp_path: Path, capsys: Capture) -> None:
    run = RunBuilder(tmp_path / "early").submit().end()
    assert logs(run) == 2
    assert "nothing was written: the run ended before it started" in capsys.readouterr().err


@pytest.mark.long
def test_follow_goes_on_to_the_next_attempt_until_the_run_is_over(run: RunBuilder, fake_slurm: FakeSlurm) -> None:
    fake_slurm.say("RUNNING")
    process = subprocess.Popen(
        [sys.executable, "-m", "hpc_elastic", "logs", "--follow", run.layout.root],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "second\n"
    run.write_rank(2, 0, "half")
    run.open_attempt(3, restarts=2).write_rank(3, 0, "later\n")
    assert process.stdout.readline() == "halflater\n"
    run.write_rank(3, 0, "last\n").end()
    output, error = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "last\n")
    assert error == "warning\n--- attempt 3 ---\n"


def test_follow_of_one_attempt_ends_with_it(run: RunBuilder, capfd: pytest.CaptureFixture[str]) -> None:
    run.end()
    assert logs(run, "-f", "--attempt", "1") == 0
    assert capfd.readouterr().out == "first\n"


def test_what_stood_in_a_log_before_it_was_cut_is_printed_first(
    run: RunBuilder, capfd: pytest.CaptureFixture[str]
) -> None:
    Path(run.layout.earlier(run.layout.stdout(2, 0))).write_text("earlier\n")
    assert logs(run) == 0
    assert capfd.readouterr().out == "earlier\nsecond\n"


@pytest.fixture
def four(run: RunBuilder) -> RunBuilder:
    """A run whose third attempt has output of four ranks on two nodes, with the times at which it was written."""
    run.open_attempt(3, restarts=2)
    for second, rank, text in ((1, 0, "loading\n"), (2, 1, "loading\n"), (3, 3, "loading\n"), (4, 0, "step 1\n")):
        run.write_rank(3, rank, text)
        mark(run, 3, second, rank)
    run.write_rank(3, 2, "loading\n", "\x1b[2Jtrouble\rloss=nan\n")
    mark(run, 3, 5, 2)
    return run


def as_node_logs(run: RunBuilder) -> RunBuilder:
    """Give a run's nodes logs with what its ranks have written, each line at the time of the mark that covers it."""
    plan = json.loads(Path(run.layout.plan).read_text())
    plan["logs"]["per"] = "node"
    Path(run.layout.plan).write_text(json.dumps(plan))
    for attempt in store.list_numbers(run.layout.attempts):
        world = store.read_json(run.layout.world(attempt))
        places = [RankPlace(rank=each["rank"], node=each["node"], attempt=attempt) for each in world["ranks"]]
        # read as files of ranks, whatever the plan says by now
        streams = [
            LogStream(
                LogSource(index=2 * place.rank + is_stderr, rank=place.rank, node=place.node, is_stderr=is_stderr),
                (run.layout.stderr if is_stderr else run.layout.stdout)(attempt, place.rank),
                marks_of(run, attempt, place, is_stderr=is_stderr),
            )
            for place in places
            for is_stderr in (False, True)
        ]
        for batch in merge(streams):
            source = batch.source
            Path(run.layout.node_log(attempt, source.node)).parent.mkdir(exist_ok=True)
            with open(run.layout.node_log(attempt, source.node), "ab") as log:
                head = format_head(format_time(batch.time_ns), source.rank, is_stderr=source.is_stderr)
                log.write(b"".join(head + line + b"\n" for line in batch.lines))
        for path in Path(run.layout.ranks(attempt)).glob("*/std*.log"):
            path.unlink()
    return run


def marks_of(run: RunBuilder, attempt: int, place: RankPlace, *, is_stderr: bool) -> list[tuple[int, int]]:
    name = f"{place.rank}.{'stderr' if is_stderr else 'stdout'}"
    return [
        (line["ends"][name], line["time_ns"])
        for line in store.read_lines(run.layout.log_marks(attempt, place.node))
        if line["ends"].get(name)
    ]


def mark(run: RunBuilder, attempt: int, second: int, rank: int) -> None:
    ends = {
        f"{rank}.stdout": os.path.getsize(run.layout.stdout(attempt, rank)),
        f"{rank}.stderr": os.path.getsize(run.layout.stderr(attempt, rank)),
    }
    path = run.layout.log_marks(attempt, f"node{rank // 2 + 1}")
    store.append_line(path, to_json(LogMark(time_ns=second * 1_000_000_000, ends=ends)))


MERGED = """\
[node1:0] loading
[node1:1] loading
[node2:3] loading
[node1:0] step 1
[node2:2] loading
[node2:2] loss=nan
"""


def test_all_ranks_are_merged_by_time(four: RunBuilder, capfd: pytest.CaptureFixture[str]) -> None:
    assert logs(four, "--rank", "all") == 0
    assert capfd.readouterr() == (MERGED, "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--rank", "0-1,3"], [0, 1, 2, 3]),
        (["--rank", "all", "--node", "node2"], [2, 4, 5]),
        (["--rank", "all", "--tail", "2"], [4, 5]),
        (["--rank", "all", "--tail", "0"], []),
        (["--grep", "nan|step"], [3, 5]),
        (["--since", "1970-01-01T00:00:04+00:00"], [3, 4, 5]),
        (["--rank", "all", "--stderr"], [5]),
        (["--rank", "all", "--stdout"], [0, 1, 2, 3, 4]),
        (["--grep", "l", "--tail", "1", "--attempt", "3"], [5]),
    ],
)
def test_lines_are_chosen(
    four: RunBuilder, capfd: pytest.CaptureFixture[str], arguments: list[str], expected: list[int]
) -> None:
    assert logs(four, *arguments) == 0
    assert capfd.readouterr().out == "".join(MERGED.splitlines(keepends=True)[number] for number in expected)


def test_a_line_of_several_ranks_is_shown_once(four: RunBuilder, capfd: pytest.CaptureFixture[str]) -> None:
    assert logs(four, "--dedupe") == 0
    assert capfd.readouterr().out == "[ranks 0-3] loading\n[node1:0] step 1\n[node2:2] loss=nan\n"


SAME_OF_BOTH = [
    (),
    ("--rank", "1"),
    ("--rank", "3", "--attempt", "1"),
    ("--rank", "2", "--stdout"),
    ("--attempt", "1"),
    ("--rank", "all"),
    ("--rank", "0-1,3"),
    ("--rank", "all", "--node", "node2"),
    ("--rank", "all", "--tail", "2"),
    ("--grep", "nan|step"),
    ("--since", "1970-01-01T00:00:04+00:00"),
    ("--rank", "all", "--stderr"),
    ("--dedupe",),
    ("--failed",),
    ("--rank", "7"),
    ("--attempt", "9"),
    ("--rank", "all", "--follow"),
    ("--follow",),
    ("--rank", "2", "--follow"),
    ("--dedupe", "--follow"),
]


@pytest.mark.parametrize("arguments", SAME_OF_BOTH)
def test_logs_of_nodes_and_of_ranks_are_shown_alike(
    four: RunBuilder, arguments: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    Path(four.layout.error(1, 3)).write_text("{}")
    four.end()
    said = []
    for run in (four, as_node_logs(four)):
        code = logs(run, *arguments)
        said.append((code, *capfd.readouterr()))
    assert said[0] == said[1]
    assert any(said[0][1:])


@pytest.mark.long
def test_follow_of_a_nodes_log_goes_on_over_a_cut(run: RunBuilder, fake_slurm: FakeSlurm) -> None:
    fake_slurm.say("RUNNING")
    path = as_node_logs(run).layout.node_log(2, "node1")
    writer = LogWriter(path, run.layout.earlier(path), 4096)
    process = subprocess.Popen(
        [sys.executable, "-m", "hpc_elastic", "logs", "--follow", "--rank", "0", run.layout.root],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "second\n"
    lines = [f"line {number}\n" for number in range(600)]
    for begin in range(0, 600, 20):  # each part is read before the next one is written
        for line in lines[begin : begin + 20]:
            writer.append(format_head(format_time(time.time_ns()), 0, is_stderr=False) + line.encode())
        assert [process.stdout.readline() for _ in range(20)] == lines[begin : begin + 20]
    run.end()
    output, error = process.communicate(timeout=60)
    assert (process.returncode, output, error) == (0, "", "warning\n")
    assert os.path.exists(run.layout.earlier(path))


def test_a_choice_of_one_ranks_lines_keeps_their_bytes_and_streams(
    four: RunBuilder, capfd: pytest.CaptureFixture[str]
) -> None:
    assert logs(four, "--rank", "2", "--tail", "5") == 0
    assert capfd.readouterr() == ("loading\n", "\x1b[2Jtrouble\rloss=nan\n")


def test_what_controls_a_terminal_is_escaped_in_a_merge(run: RunBuilder, capfd: pytest.CaptureFixture[str]) -> None:
    run.write_rank(2, 1, "\x1b[2Jgone\x00\tand \x1b[31mred\n")
    assert logs(run, "--rank", "all", "--grep", "gone") == 0
    assert capfd.readouterr().out == "[node1:1] \\x1b[2Jgone\\x00\tand \x1b[31mred\x1b[0m\n"


def test_failed_ranks_are_those_of_the_latest_attempt_that_has_some(
    run: RunBuilder, capfd: pytest.CaptureFixture[str]
) -> None:
    assert logs(run, "--failed") == 0
    assert capfd.readouterr() == ("", "no rank has failed\n")
    Path(run.layout.error(1, 3)).write_text("{}")
    assert logs(run, "--failed") == 0
    assert capfd.readouterr() == ("third\n", "rank 3 failed in attempt 1\nkilled\n")
    assert logs(run, "--failed", "--attempt", "2") == 0
    assert capfd.readouterr() == ("", "no rank failed in attempt 2\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grep", "("], "--grep: '(' is no regular expression"),
        (["--since", "yesterday"], "--since: 'yesterday' is no duration and no time"),
        (["--since", "99:99"], "--since: '99:99' is no duration and no time"),
        (["--rank", "3-x"], "--rank: '3-x' is no rank and no range of ranks"),
        (["--rank", "9-3"], "--rank: the range '9-3' runs backwards"),
        (["--rank", ","], "--rank: ',' names no rank"),
        (["--rank", "0,7"], "there is no rank 7 in attempt 2: it has ranks 0-3"),
        (["--rank", "all", "--node", "node9"], "none of these ranks was on 'node9'"),
        (["--rank", "all", "--attempt", "9"], "there is no attempt 9"),
        (["--tail", "-1"], "--tail is -1, expected a number of lines"),
        (["--failed", "--rank", "1"], "--failed and --rank exclude each other"),
        (["--script", "--grep", "x"], "--script prints one file as it is"),
    ],
)
def test_a_wrong_choice_is_one_clear_message(
    run: RunBuilder, capsys: Capture, arguments: list[str], message: str
) -> None:
    assert logs(run, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.long
def test_follow_of_all_ranks_goes_on_over_attempts(run: RunBuilder, fake_slurm: FakeSlurm) -> None:
    fake_slurm.say("RUNNING")
    process = subprocess.Popen(
        [sys.executable, "-m", "hpc_elastic", "logs", "--follow", "--rank", "all", run.layout.root],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["[node1:0] second\n", "[node1:0] warning\n"]
    run.write_rank(2, 3, "ha")
    run.write_rank(2, 3, "lf\n")
    assert process.stdout.readline() == "[node2:3] half\n"
    run.open_attempt(3, restarts=2).write_rank(3, 1, "later\n")
    assert process.stdout.readline() == "[node1:1] later\n"
    run.write_rank(3, 0, "last").end()
    output, error = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "[node1:0] last\n")
    assert error == "--- attempt 3 ---\n"


def test_a_file_server_is_asked_once_for_each_rank_that_may_have_failed(
    run: RunBuilder, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(run.layout.error(1, 3)).write_text("{}")
    asked: list[str] = []

    def noting(name: str) -> None:
        real = getattr(os, name)

        def ask(path: Any, *arguments: Any, **options: Any) -> Any:
            asked.append(str(path))
            return real(path, *arguments, **options)

        monkeypatch.setattr(os, name, ask)

    for name in ("stat", "open", "listdir", "scandir"):
        noting(name)
    assert logs(run, "--failed", "--attempt", "1") == 0
    assert capfd.readouterr().out == "third\n"
    others = [os.path.dirname(run.layout.error(1, rank)) for rank in (0, 1, 2)]
    assert [path for path in asked if path.startswith(tuple(others))] == [
        folder for folder in others if os.path.isdir(folder)
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 36_000 - 600), ("14:30", 14.5 * 3600), ("9:05:01", 9 * 3600 + 301), ("1970-01-01T01:00:00Z", 3600)],
)
def test_since_is_a_duration_or_a_time(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert parse_since(text, now=36_000) == int(seconds * 1e9)


def test_logs_and_failed_ranks_are_found_that_an_nfs_client_had_looked_for_too_early(
    tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = NfsClient(str(tmp_path), monkeypatch)
    with client.written_elsewhere():
        run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).write_rank(1, 1, "first\n")
    assert logs(run) == 2
    assert logs(run, "--failed") == 0
    assert "no rank has failed" in capfd.readouterr().err
    with client.written_elsewhere():
        run.write_rank(1, 0, "zeroth\n")
        Path(run.layout.error(1, 1)).write_text(json.dumps({"message": "killed"}))
    assert logs(run) == 0
    assert capfd.readouterr().out == "zeroth\n"
    assert logs(run, "--failed") == 0
    assert "first" in capfd.readouterr().out
