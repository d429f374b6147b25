"""Claims and writes under concurrency, with real processes, and on file systems that refuse."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.errors import FileSystemError, RunDirectoryError
from hpc_elastic.rundir import store

CLAIMANTS = 8
ROUNDS = 25
# Every process waits for the start and then claims one file after the other; it prints what it won.
CLAIMANT = f"""
import sys
from hpc_elastic.rundir.store import claim
name, root = sys.argv[1:]
print("ready", flush=True)
input()
won = [n for n in range({ROUNDS}) if claim(f"{{root}}/{{n:04d}}/claim.json", {{"by": name, "filler": "x" * 5000}})]
print(*won, flush=True)
"""
WRITER = """
import sys
from hpc_elastic.rundir.store import write_json
name, path = sys.argv[1:]
print("ready", flush=True)
input()
for number in range(60):
    write_json(path, {"by": name, "number": number, "filler": "x" * 20_000})
"""


def together(source: str, count: int, target: Path) -> list[str]:
    """Runs processes that begin at the same moment; what each said last."""
    command = [sys.executable, "-c", source]
    processes = [
        subprocess.Popen([*command, f"p{n}", str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for n in range(count)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * count
    return said


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_written_is_what_json_reads(value: object) -> None:
    assert json.loads(store.dump_json(value)) == value


def test_a_record_has_a_line_for_each_field_and_for_each_item_of_a_list() -> None:
    record = {
        "run": "größer",
        "spend": {"restarts": 1},
        "nodes": [{"node": "a", "gpus": [0, 1]}, {"node": "b"}],
        "x": [],
    }
    assert store.dump_json(record).decode() == (
        """\
{
  "run": "größer",
  "spend": {
    "restarts": 1
  },
  "nodes": [
    {"node": "a", "gpus": [0, 1]},
    {"node": "b"}
  ],
  "x": []
}
"""
    )


@pytest.mark.long
def test_of_all_who_claim_one_wins_and_its_record_is_whole(tmp_path: Path) -> None:
    said = together(CLAIMANT, CLAIMANTS, tmp_path)
    winners = {int(number): f"p{n}" for n, text in enumerate(said) for number in text.split()}
    assert sum(len(text.split()) for text in said) == ROUNDS
    assert sorted(winners) == list(range(ROUNDS))
    for number, name in winners.items():
        record = json.loads((tmp_path / f"{number:04d}" / "claim.json").read_text())
        assert record == {"by": name, "filler": "x" * 5000}


@pytest.mark.long
def test_a_reader_never_finds_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    store.write_json(str(path), {"by": "nobody"})
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, "w", str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    writer.stdout.readline()
    writer.stdin.write("\n")
    writer.stdin.flush()
    found = set()
    while writer.poll() is None:
        record = json.loads(path.read_text())
        found.add(record["by"])
    writer.communicate()
    assert found <= {"nobody", "w"}
    assert json.loads(path.read_text())["number"] == 59


def test_nothing_temporary_is_left(tmp_path: Path) -> None:
    store.write_json(str(tmp_path / "a.json"), {})
    store.claim(str(tmp_path / "b.json"), {})
    store.claim(str(tmp_path / "b.json"), {})
    assert sorted(os.listdir(tmp_path)) == ["a.json", "b.json"]


def test_the_winner_of_a_lost_reply_knows_that_it_won(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link_and_lose_the_reply(source: str, target: str) -> None:
        monkeypatch.undo()
        os.link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists", source)  # NFS sent the request again

    monkeypatch.setattr(os, "link", link_and_lose_the_reply)
    assert store.claim(str(tmp_path / "claim.json"), {"by": "me"})
    assert not store.claim(str(tmp_path / "claim.json"), {"by": "me again"})


def test_a_file_system_without_hard_links_has_one_winner_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "claim.json"
    assert store.claim(str(path), {"by": "first"})
    assert not store.claim(str(path), {"by": "second"})
    assert json.loads(path.read_text()) == {"by": "first"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("has_links", [True, False], ids=["links", "no links"])
def test_what_root_writes_belongs_to_the_owner_of_the_folder(
    has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator who looks at a run, or cancels it, writes its result, which its user has to read."""

    def no_links(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    os.chown(tmp_path, 4711, 4712)
    assert store.claim(str(tmp_path / "result.json"), {"by": "root"})
    store.write_bytes(str(tmp_path / "exit_code"), b"10\n")
    store.append_line(str(tmp_path / "requests.jsonl"), {"kind": "stop"})
    found = {(path.stat().st_uid, path.stat().st_gid, path.stat().st_mode & 0o777) for path in tmp_path.iterdir()}
    assert found == {(4711, 4712, 0o600)}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_root_gives_nobody_the_file_that_a_link_leads_to(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    kept, run = tmp_path / "shadow", tmp_path / "run"
    kept.write_text("root's\n")
    run.mkdir()
    os.chown(run, 4711, 4712)
    link(kept, run / "requests.jsonl")
    if link is os.symlink:
        with pytest.raises(RunDirectoryError, match="symbolic links"):
            store.append_line(str(run / "requests.jsonl"), {"kind": "stop"})
        assert kept.read_text() == "root's\n"
    else:
        store.append_line(str(run / "requests.jsonl"), {"kind": "stop"})
    assert kept.stat().st_uid == 0


def test_a_claim_that_could_not_be_written_can_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hard links: half a claim would be nobody's for ever."""
    path = tmp_path / "claim.json"
    write_all, calls = store.write_all, list[int]()

    def no_links(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    def fail_the_second_time(descriptor: int, content: bytes) -> None:
        calls.append(descriptor)
        write_all(descriptor, content[:3])
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_all(descriptor, content[3:])

    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(store, "write_all", fail_the_second_time)
    with pytest.raises(FileSystemError, match="No space left"):
        store.claim(str(path), {"by": "first"})
    assert store.claim(str(path), {"by": "first"})
    assert json.loads(path.read_text()) == {"by": "first"}


def test_a_failed_write_leaves_the_old_file_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    store.write_json(str(path), {"old": True})

    def full(descriptor: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunDirectoryError, match="No space left on device") as caught:
        store.write_json(str(path), {"old": False})
    monkeypatch.undo()
    assert caught.value.tip is not None
    assert json.loads(path.read_text()) == {"old": True}
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_file_that_may_not_be_so_large_is_a_matter_of_the_shell() -> None:
    refused = pytest.raises(FileSystemError, match="cannot write /a: File too large")
    with refused as caught, store.file_system_errors("/a"):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    assert "`ulimit -f`" in str(caught.value.tip)


def test_a_file_that_may_not_be_read_is_a_matter_of_its_owner() -> None:
    refused = pytest.raises(FileSystemError, match="cannot read /a: Permission denied")
    with refused as caught, store.file_system_errors("/a", "read"):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    assert caught.value.tip == "it belongs to another user: ask its owner"


def test_files_are_the_users_alone(tmp_path: Path) -> None:
    store.write_json(str(tmp_path / "a" / "b" / "record.json"), {})
    assert (tmp_path / "a" / "b" / "record.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


def test_a_directory_that_was_there_is_not_made_again(tmp_path: Path) -> None:
    root = tmp_path / "run"
    store.write_json(str(root / "nodes" / "a.json"), {})
    store.never_make(str(root))
    root.rename(tmp_path / "moved")
    for write in (store.write_json, store.claim, store.append_line):
        with pytest.raises(FileSystemError, match=f"{root} is gone: it was moved or removed"):
            write(str(root / "nodes" / "a.json"), {})
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]
    (tmp_path / "moved").rename(root)
    store.write_json(str(root / "attempts" / "0001" / "a.json"), {})


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1,"])
def test_a_torn_file_reads_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    assert store.read_json(str(tmp_path / "x")) is None


def test_a_missing_file_reads_as_none(tmp_path: Path) -> None:
    assert store.read_json(str(tmp_path / "x")) is None
    assert list(store.read_lines(str(tmp_path / "x"))) == []
    assert store.list_numbers(str(tmp_path / "x")) == []


def test_torn_lines_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b'{"a": 1}\n{"b"\n\xff\n\n{"c": 3}\n{"d": ')
    assert list(store.read_lines(str(tmp_path / "x"))) == [{"a": 1}, {"c": 3}]


@pytest.mark.long
def test_appended_lines_of_many_do_not_mix(tmp_path: Path) -> None:
    source = """
import sys
from hpc_elastic.rundir.store import append_line
print("ready", flush=True)
input()
for number in range(50):
    append_line(sys.argv[2], {"by": sys.argv[1], "number": number, "filler": "x" * 3000})
"""
    together(source, 4, tmp_path / "lines")
    lines = list(store.read_lines(str(tmp_path / "lines")))
    assert len(lines) == 200
    for name in ("p0", "p3"):
        assert [line["number"] for line in lines if line["by"] == name] == list(range(50))


def test_records_are_appended_a_line_each(tmp_path: Path) -> None:
    path = str(tmp_path / "folder" / "lines")
    store.append_lines(path, [{"number": 1}, {"text": "a\nb"}])
    store.append_lines(path, [])
    store.append_line(path, {"number": 2})
    assert list(store.read_lines(path)) == [{"number": 1}, {"text": "a\nb"}, {"number": 2}]
    assert Path(path).read_text().count("\n") == 3


NO_ROOM = """
import resource, sys
from hpc_elastic.errors import FileSystemError, RunDirectoryError
from hpc_elastic.rundir.store import append_line

append_line(sys.argv[1], {"number": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (30, 30))
try:
    append_line(sys.argv[1], {"number": 2, "filler": "x" * 100})
except RunDirectoryError as error:
    print(error.message)
append_line(sys.argv[1], {"a": 3})
"""


def test_a_line_that_does_not_fit_leaves_nothing_that_spoils_the_next(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    done = subprocess.run([sys.executable, "-c", NO_ROOM, str(path)], capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert path.read_text() == '{"number": 1}\n{"a": 3}\n'


def test_numbers_are_in_order_and_other_names_are_left_out(tmp_path: Path) -> None:
    for name in ("0010.json", "0002.json", ".0003.json.ab.tmp", "x", "0001", "0000"):
        (tmp_path / name).touch()
    assert store.list_numbers(str(tmp_path)) == [0, 1, 2, 10]
    assert store.list_numbers(str(tmp_path), above=1) == [2, 10]
