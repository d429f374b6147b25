"""The completions, asked in the shells themselves."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from hpc_elastic.cli.completion import completion
from hpc_elastic.cli.main import main
from hpc_elastic.cli.shells.grammar import all_verbs, spelled
from hpc_elastic.cli.verbs import MODULES
from hpc_elastic.rundir.index import IndexEntry, append_entry, index_path

Capture = pytest.CaptureFixture[str]
Complete = Callable[..., list[str]]
_ASK = """
set -u  # as some people have it in their shells
shopt -s expand_aliases; alias ls='ls --classify' tail=false sed=false
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_hpc_elastic
printf '%s\\n' "${COMPREPLY[@]}"
"""
made = cache(completion)


def environment(folder: Path) -> dict[str, str]:
    """An environment in which the user's own runs, sites and settings of a shell do not count."""
    return {"HOME": str(folder), "PATH": os.environ["PATH"], "LC_ALL": "C", "TERM": "dumb"}


def add_run(folder: Path, name: str, job_id: str) -> None:
    entry = IndexEntry(
        run=f"{name}-1", name=name, job_id=job_id, site="s", scheduler="slurm", run_dir=str(folder), submitted=""
    )
    append_entry(index_path(environment(folder)), entry)


@pytest.fixture
def complete(tmp_path: Path) -> Complete:
    """Ask bash what it offers for the last of some words, in an empty folder."""
    script = tmp_path / "completion.bash"
    script.write_text(made("bash"))
    folder = tmp_path / "here"
    folder.mkdir()

    def ask(*words: str) -> list[str]:
        command = ["bash", "--norc", "-c", _ASK, "bash", str(script), "hpc-elastic", *words]
        done = subprocess.run(
            command, cwd=folder, env=environment(tmp_path), capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stderr == ""
        return done.stdout.split()

    return ask


def test_bash_completes_verbs(complete: Complete) -> None:
    assert complete("su") == ["submit"]
    assert complete("") == [*MODULES, "help", "--help", "--version"]
    assert complete("help", "lo") == ["logs"]


def test_bash_completes_options_of_the_verb(complete: Complete) -> None:
    assert complete("submit", "--s") == ["--site", "--set"]
    assert complete("logs", "--rank", "3", "--fol") == ["--follow"]
    assert complete("list", "--site") == []


@pytest.mark.long
def test_bash_completes_values(complete: Complete) -> None:
    assert complete("nodes", "--problem", "") == ["node", "user"]
    assert complete("sites", "sh") == ["show"]
    assert complete("submit", "--site", "lu") == ["lumi-g"]
    assert complete("submit", "--site", "=", "lu") == ["lumi-g"]
    assert complete("submit", "--site", "=") == complete("submit", "--site", "")
    assert complete("sites", "check", "lumi-g", "mil") == ["mila"]


def test_bash_completes_names_and_job_ids_of_runs(complete: Complete, tmp_path: Path) -> None:
    assert complete("status", "dig") == []
    add_run(tmp_path, "digits", "4711")
    add_run(tmp_path, "other", "4712")
    assert complete("status", "dig") == ["digits"]
    assert complete("cancel", "471") == ["4711", "4712"]
    assert complete("status", "digits", "dig") == []


NAMES = ("हिन्दी", "日本", "entraînement")


def test_bash_completes_names_of_any_script(complete: Complete, tmp_path: Path) -> None:
    for number, name in enumerate(NAMES):
        (tmp_path / "here" / f"{name}.yaml").write_text("")
        add_run(tmp_path, name, f"47{number}")
    assert complete("submit", "हि") == ["हिन्दी.yaml"]
    assert complete("status", "हि") == ["हिन्दी"]
    assert sorted(complete("status", "")) == sorted([*NAMES, "470", "471", "472"])
    add_run(tmp_path, "日本$(touch pwned)", "48")
    assert complete("status", "日") == ["日本"]
    assert not (tmp_path / "here" / "pwned").exists()


def test_bash_completes_files_for_a_script_and_its_arguments(complete: Complete, tmp_path: Path) -> None:
    for name in ("train.py", "job.yaml"):
        (tmp_path / "here" / name).write_text("")
    assert complete("submit", "") == ["job.yaml"]
    assert complete("run", "--nodes", "2", "tra") == ["train.py"]
    assert complete("run", "--nodes", "2", "train.py", "--") == []
    assert complete("run", "--nodes", "2", "train.py", "job") == ["job.yaml"]


def test_bash_runs_nothing_that_a_name_holds(complete: Complete, tmp_path: Path) -> None:
    """compgen expands the words that it is given."""
    sites = tmp_path / "here" / "site-configs"
    sites.mkdir()
    (sites / "$(touch pwned).yaml").write_text("")
    (sites / "mine.yml").write_text("")
    add_run(tmp_path, "$(touch pwned)", "`touch pwned`")
    assert complete("submit", "--site", "min") == ["mine"]
    assert complete("status", "") == ["site-configs"]
    assert not (tmp_path / "here" / "pwned").exists()


def test_every_shell_is_told_every_verb_and_option() -> None:
    assert [verb.name for verb in all_verbs()] == list(MODULES)
    for verb in all_verbs():
        for name in [name for option in verb.options for name in spelled(option)]:
            assert name in made("bash"), name
            assert f"{name}[" in made("zsh") or f"{name}=[" in made("zsh"), name
            assert f"-l {name[2:]} " in made("fish") or f"-s {name[1:]} " in made("fish"), name


@pytest.mark.long
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_verb_prints_a_script_that_the_shell_can_read(shell: str, tmp_path: Path, capsys: Capture) -> None:
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    subprocess.run([shell, "-n", str(script)], check=True, timeout=60)
    if shell == "bash" and shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--shell=bash", str(script)], check=True, timeout=60)


def test_completion_rejects_another_shell(capsys: Capture) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "'tcsh'" in capsys.readouterr().err


@pytest.mark.long
def test_fish_completes(tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish here")
    script = tmp_path / "completion.fish"
    script.write_text(made("fish"))
    add_run(tmp_path, "digits", "4711")
    for number, name in enumerate(NAMES):
        add_run(tmp_path, name, f"48{number}")
    lines = ["su", "submit --se", "submit --site lu", "status ", "sites sh", "nodes --problem u", "run -"]
    asked = "; ".join(f"echo '== {line}'; complete -C 'hpc-elastic {line}'" for line in lines)
    command = ["fish", "--no-config", "-c", f"source {script}; {asked}"]
    environ = environment(tmp_path) | {"LC_ALL": "C.UTF-8"}  # of names in other scripts fish makes escapes elsewhere
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True, timeout=60)
    offered = {part.split("\n")[0]: part.split("\n")[1:-1] for part in done.stdout.split("== ")[1:]}
    names = {line: [offer.partition("\t")[0] for offer in found] for line, found in offered.items()}
    assert offered["su"] == ["submit\tsubmit a job file to Slurm, or start it on this machine"]
    assert names["submit --se"] == ["--set"]
    assert names["submit --site lu"] == ["lumi-g"]
    assert {"digits", "4711", *NAMES} <= set(names["status "])
    assert (names["sites sh"], names["nodes --problem u"]) == (["show"], ["user"])
    assert {"--nodes", "--name", "-m"} <= set(names["run -"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("typed", "becomes"),
    [
        ("hpc-elastic sub", "hpc-elastic submit "),
        ("hpc-elastic submit --fol", "hpc-elastic submit --follow "),
        ("hpc-elastic submit --site lu", "hpc-elastic submit --site lumi-g "),
        ("hpc-elastic status dig", "hpc-elastic status digits "),
        ("hpc-elastic sites sh", "hpc-elastic sites show "),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_tab_completes_on_a_terminal(shell: str, typed: str, becomes: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    script = tmp_path / "completion"
    script.write_text(made(shell))
    add_run(tmp_path, "digits", "4711")
    prepare = "autoload -Uz compinit; compinit -u -D; " if shell == "zsh" else ""
    # The prompt, and not what is typed, has the words together.
    start = f"{prepare}source {script}; PS1='ready''> '\n"
    arguments = {"bash": ["bash", "--norc", "-i"], "zsh": ["zsh", "-f", "-i"]}[shell]
    terminal, inner = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", *arguments],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=inner,
        stdout=inner,
        stderr=inner,
    )
    os.close(inner)
    try:
        os.write(terminal, start.encode())
        read_until(terminal, "ready> ")
        os.write(terminal, f"{typed}\t".encode())
        assert becomes in read_until(terminal, becomes)
    finally:
        os.close(terminal)  # a hangup, which ends the shell
        process.wait(60)


def read_until(terminal: int, text: str) -> str:
    """Read what a terminal shows until a text is there, for 30 s at most."""
    shown, end = "", time.monotonic() + 30
    while text not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return shown
