from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpc_elastic.api.code_snapshot import (
    describe_left_out,
    find_problem,
    list_tracked,
    make_snapshot,
    parse_index,
)
from hpc_elastic.errors import JobError, RunDirectoryError
from hpc_elastic.plan.launch_plan import SnapshotPlan
from hpc_elastic.plan.roles import EntrypointPlan
from tests.plans import make_plan


def git(folder: Path, *arguments: str) -> None:
    own = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", "-C", folder, *own, *arguments], check=True, capture_output=True)


def write_checkout(folder: Path) -> Path:
    """A checkout with a folder `work` in it, whose files are in every state that git knows."""
    work = folder / "code"
    (work / "pack age").mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "above.py").write_text("above\n")
    (work / "train.py").write_text("committed\n")
    (work / "gone.py").write_text("gone\n")
    (work / "pack age" / "ä\n.py").write_text("odd\n")
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "run.sh").chmod(0o755)
    (work / "link.py").symlink_to("train.py")
    (work / ".gitignore").write_text("*.pt\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    (work / "train.py").write_text("changed since\n")
    (work / "gone.py").unlink()
    (work / "new.py").write_text("untracked\n")
    (work / "weights.pt").write_text("ignored\n")
    return work


def test_a_snapshot_has_the_tracked_files_of_workdir_as_they_are_now(tmp_path: Path) -> None:
    work, copy = write_checkout(tmp_path / "checkout"), tmp_path / "run" / "snapshot"
    make_snapshot(SnapshotPlan(source=str(work), directory=str(copy)))
    assert {str(path.relative_to(copy)) for path in copy.rglob("*") if not path.is_dir() or path.is_symlink()} == {
        *("train.py", "run.sh", "link.py", ".gitignore", "pack age/ä\n.py")
    }
    assert (copy / "train.py").read_text() == "changed since\n"
    assert os.readlink(copy / "link.py") == "train.py"
    assert os.access(copy / "run.sh", os.X_OK)


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a submodule, which no test changes."""
    folder = tmp_path_factory.mktemp("nested")
    work = write_checkout(folder / "checkout")
    git(work, "submodule", "add", "-q", str(write_checkout(folder / "other").parent), "third party")
    return work


def test_what_is_left_out_is_named(nested: Path, tmp_path: Path) -> None:
    work = nested
    assert describe_left_out(str(work)) == [
        "the snapshot has no files of submodules: third party",
        "git tracks what is not there, and not in the snapshot: gone.py",
        "the snapshot has no files that git does not track: new.py",
    ]
    make_snapshot(SnapshotPlan(source=str(work), directory=str(tmp_path / "copy")))
    assert not (tmp_path / "copy" / "third party").exists()


def test_a_file_in_conflict_is_one_file() -> None:
    index = "\0".join(("100644 1a 1\ta.py", "100644 2b 2\ta.py", "160000 3c 0\tsub", ""))
    assert parse_index(index) == (("a.py",), ("sub",))


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("train.py", None),
        ("./train.py", None),
        ("new.py", "git does not track the script new.py of {work}, so it would be missing; `git add` it"),
        (
            "{work}/train.py",
            "the script is named by its absolute path, which is no part of the snapshot; write train.py",
        ),
        ("/opt/elsewhere.py", None),
        ("third party/a.py", "the script third party/a.py is in a submodule of {work}, which is not copied"),
    ],
)
def test_a_script_that_the_snapshot_would_lack_is_refused(target: str, said: str | None, nested: Path) -> None:
    work = nested
    plan = make_plan(entrypoint=EntrypointPlan(kind="script", target=target.format(work=work), args=()))
    found = find_problem(plan, SnapshotPlan(source=str(work), directory="/x"))
    assert found == (said and said.format(work=work))


LINKED = "the script {} is a link, or below one, that leads out of {{work}}, of which the snapshot is"


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout whose working directory has links, which no test changes; `alias` leads to its folder."""
    folder = tmp_path_factory.mktemp("linked")
    work = write_checkout(folder / "checkout")
    (work / "above.py").symlink_to("../above.py")
    (work / "out").symlink_to("..")
    (work / "inside").symlink_to("pack age")
    (work / "pack age" / "train.py").touch()
    git(work, "add", "-A")
    git(work, "rm", "-q", "--cached", "new.py")
    (work / "untracked link").symlink_to("pack age")
    (work / "to new.py").symlink_to("new.py")
    git(work, "add", "to new.py")
    (work / "gone.py").unlink(missing_ok=True)
    (work / "run.sh").unlink()
    (folder / "alias").symlink_to("checkout")
    return work


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("above.py", LINKED.format("above.py")),
        ("out/above.py", LINKED.format("out/above.py")),
        ("inside/train.py", None),
        ("to new.py", "git does not track new.py of {work}, to which the script to new.py leads; `git add` it"),
        (
            "untracked link/train.py",
            "git does not track the script untracked link/train.py of {work}, so it would be missing; `git add` it",
        ),
        (
            "../above.py",
            "the script ../above.py is not below {work}, of which the snapshot is; let workdir be one above both",
        ),
        ("run.sh", "the script run.sh, which git tracks, is not there in {work}, so it would be missing"),
        (
            "{work}/../../alias/code/train.py",
            "the script is named by its absolute path, which is no part of the snapshot; write train.py",
        ),
    ],
)
def test_links_are_followed_to_find_a_script_that_the_snapshot_would_lack(
    target: str, said: str | None, linked: Path
) -> None:
    target = os.path.normpath(target.format(work=linked))
    plan = make_plan(entrypoint=EntrypointPlan(kind="script", target=target, args=()))
    found = find_problem(plan, SnapshotPlan(source=str(linked), directory="/x"))
    assert found == (said and said.format(work=linked))


def test_links_that_lead_out_are_named_and_each_kind_is_one_line(linked: Path, tmp_path: Path) -> None:
    assert "links lead out of the snapshot, where relative ones find nothing: above.py, out" in describe_left_out(
        str(linked)
    )
    git(tmp_path, "init", "-q")
    (tmp_path / "a\nb").touch()
    assert describe_left_out(str(tmp_path)) == ["the snapshot has no files that git does not track: a\\nb"]


def test_run_directories_are_no_files_that_a_snapshot_lacks(tmp_path: Path) -> None:
    work = write_checkout(tmp_path / "checkout")
    for folder in ("hpc-elastic-runs/digits-1/snapshot", "a package"):
        (work / folder).mkdir(parents=True)
        (work / folder / "a.py").touch()
        (work / folder / "b.py").touch()
    assert describe_left_out(str(work))[-1] == "the snapshot has no files that git does not track: a package/, new.py"


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    problem = find_problem(make_plan(), SnapshotPlan(source=str(tmp_path), directory="/x"))
    assert problem is not None
    assert problem.startswith(
        f"{tmp_path} is no checkout of git, whose tracked files a snapshot copies: not a git repo"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
def test_a_checkout_of_another_user_that_git_does_not_trust_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the folder of a group, where one of them has made the checkout."""
    work = write_checkout(tmp_path / "checkout")
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (work.parent, work.parent / ".git"):
        os.chown(path, 4711, 4711)
    problem = find_problem(make_plan(), SnapshotPlan(source=str(work), directory="/x"))
    assert problem == (
        f"git does not read {work}, which is another user's; if you trust what is in it: "
        f"`git config --global --add safe.directory {work.parent}`"
    )


def test_variables_of_a_hook_name_no_other_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = write_checkout(tmp_path / "checkout")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    assert "train.py" in list_tracked(str(work)).files


def test_no_git_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JobError, match="cannot run git: No such file or directory"):
        list_tracked(str(tmp_path))


def test_a_copy_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    work = write_checkout(tmp_path / "checkout")
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match="file"):
        make_snapshot(SnapshotPlan(source=str(work), directory=str(tmp_path / "file")))
