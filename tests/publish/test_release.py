"""What `make release` refuses, and what it writes beside the archives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from publish.readiness import changelog_section, find_problems, project_version, repository_url
from publish.release import complete_parts, main
from publish.smoke import LOGIN_COMMANDS

REPOSITORY = Path(__file__).parents[2]
URL = "https://github.com/hpc-elastic/hpc_elastic"
READY = {
    "status --porcelain": "",
    "rev-parse HEAD": "abc",
    "tag --list v1.2.3": "",
    "remote -v": f"origin\tgit@github.com:hpc-elastic/hpc_elastic.git (fetch)\nother\t{URL}-fork.git (push)",
}


class Git:
    """Answers of git, by its arguments."""

    def __init__(self, **changed: str) -> None:
        self.answers = {**READY, **{key.replace("_", " "): value for key, value in changed.items()}}

    def __call__(self, *arguments: str) -> str:
        return self.answers[" ".join(arguments)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree that is ready."""
    (tmp_path / "hpc_elastic").mkdir()
    (tmp_path / "hpc_elastic/__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "pyproject.toml").write_text(f'Repository = "{URL}"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [1.2.3] - 2026-01-31\n\n- A line.\n\n## [1.2.2] - 2026-01-01\n"
    )
    return tmp_path


def test_a_tree_that_is_ready_has_no_problems(tree: Path) -> None:
    assert find_problems(tree, Git()) == []


def test_find_problems_rejects_a_tree_that_is_not_clean(tree: Path) -> None:
    git = Git()
    git.answers["status --porcelain"] = " M README.md"
    assert find_problems(tree, git) == ["the tree is not clean:\n M README.md"]


def test_find_problems_rejects_a_tag_of_another_commit(tree: Path) -> None:
    git = Git()
    git.answers |= {"tag --list v1.2.3": "v1.2.3", "rev-list -n 1 v1.2.3": "def"}
    assert find_problems(tree, git) == ["the tag v1.2.3 is there, and is not this commit: take the next version"]
    git.answers["rev-list -n 1 v1.2.3"] = "abc"
    assert find_problems(tree, git) == []


def test_find_problems_rejects_a_repository_that_may_not_be_ours(tree: Path) -> None:
    git = Git()
    git.answers["remote -v"] = "origin\thttps://example.org/fork.git (fetch)"
    (problem,) = find_problems(tree, git)
    assert problem.startswith(f"no remote of this checkout is {URL}")


@pytest.mark.parametrize("version", ["1.2", "1.2.3.dev0", "1.2.3+local", "v1.2.3"])
def test_find_problems_rejects_a_version_that_is_no_release(version: str, tree: Path) -> None:
    (tree / "hpc_elastic/__init__.py").write_text(f'__version__ = "{version}"\n')
    git = Git()
    git.answers[f"tag --list v{version}"] = ""
    assert f"the version {version} is none of a release, such as 0.2.0 or 0.2.0rc1" in find_problems(tree, git)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("## [Unreleased] - 1.2.3\n\n- A line.\n", "has no section `## [1.2.3] - YYYY-MM-DD`"),
        ("## [1.2.3]\n\n- A line.\n", "has no section"),
        ("## [1.2.3] - 2026-01-31\n\n## [1.2.2] - 2026-01-01\n\n- A line.\n", "is empty"),
    ],
)
def test_find_problems_rejects_a_changelog_that_does_not_tell_of_it(text: str, problem: str, tree: Path) -> None:
    (tree / "CHANGELOG.md").write_text(text)
    (found,) = find_problems(tree, Git())
    assert problem in found


def test_the_section_of_the_changelog_ends_at_the_next_one(tree: Path) -> None:
    assert changelog_section((tree / "CHANGELOG.md").read_text(), "1.2.3") == "\n- A line.\n\n"


def test_the_version_and_the_repository_of_this_tree_are_found() -> None:
    assert project_version(REPOSITORY)
    assert repository_url(REPOSITORY) == URL


def test_release_rejects_a_release_that_nobody_has_tried(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--no-smoke"])
    assert "--no-smoke goes with --rehearse" in capsys.readouterr().err


def test_the_list_of_parts_has_the_package_and_not_pip(tmp_path: Path) -> None:
    wheel = tmp_path / "hpc_elastic-1.2.3-py3-none-any.whl"
    wheel.write_bytes(b"")
    listed = {
        "metadata": {"component": {"name": "hpc-elastic"}},
        "components": [{"name": "pip", "bom-ref": "pip==1"}, {"name": "rich", "bom-ref": "rich==13"}],
        "dependencies": [{"ref": "pip==1"}, {"ref": "rich==13"}],
    }
    document = json.loads(complete_parts(json.dumps(listed), "1.2.3", wheel))
    assert document["metadata"]["component"]["version"] == "1.2.3"
    assert document["metadata"]["component"]["hashes"][0]["content"].startswith("e3b0c442")
    assert [part["name"] for part in document["components"]] == ["rich"]
    assert document["dependencies"] == [{"ref": "rich==13"}]


def test_the_commands_of_a_login_node_are_tried_but_for_those_that_need_more() -> None:
    from hpc_elastic.cli.verbs import MODULES

    # Those that need a run in progress, and the report, whose library is an extra.
    left_out = {"run", "stacks", "save", "report", "restart", "drain", "stop"}
    assert {words[0] for words in LOGIN_COMMANDS} - {"--version"} == set(MODULES) - left_out
