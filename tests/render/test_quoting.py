from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpc_elastic.errors import TemplateError
from hpc_elastic.render.quoting import checked, literal_path_pattern, sbatch_value, shell_word, shell_words
from tests.slurm_sandbox.cluster import Cluster

HOSTILE = (
    "",
    "-rf",
    "--",
    "a b",
    "it's",
    'say "yes"',
    "$(touch canary)",
    "`touch canary`",
    "${HOME}",
    "a;b&c|d>e<f",
    "# no comment",
    "a#b",
    "\\",
    "a\\b\\\\",
    "'\\''",
    '"\\"',
    "%j %N %%",
    "~",
    "*?[a]",
    "{a,b}",
    "!x",
    "grün 学 🙂",
)
no_control_characters = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=40)


@pytest.mark.parametrize("value", HOSTILE)
def test_a_shell_word_reaches_a_program_unchanged(value: str, tmp_path: Path) -> None:
    script = f"printf '%s\\0' {shell_word(value)} end"
    output = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, check=True).stdout
    assert output.decode().split("\0")[:2] == [value, "end"]
    assert not (tmp_path / "canary").exists()


@given(st.lists(no_control_characters))
def test_shell_words_are_split_as_they_were_joined(values: list[str]) -> None:
    assert shlex.split(shell_words(values)) == values


@pytest.mark.parametrize("character", ["\n", "\r", "\t", "\0", "\x1b", "\x7f", "\x85", "\udcff"])
@pytest.mark.parametrize("quote", [shell_word, sbatch_value, literal_path_pattern])
def test_quoting_rejects_a_control_character(quote: object, character: str) -> None:
    assert callable(quote)
    with pytest.raises(TemplateError, match="cannot stand in a script"):
        quote(f"a{character}b")


def test_checked_names_the_field_and_the_character() -> None:
    with pytest.raises(TemplateError, match=r"^run_dir '/a\\nb' holds the control character U\+000A"):
        checked("/a\nb", field="run_dir")


def test_a_path_pattern_rejects_a_backslash() -> None:
    with pytest.raises(TemplateError, match="backslash"):
        literal_path_pattern("/runs/a\\b")


def test_a_plain_sbatch_value_stays_readable() -> None:
    assert sbatch_value("/home/ada/run-1/slurm-%j.out") == "/home/ada/run-1/slurm-%j.out"


def sbatch_finds(cluster: Cluster, script: Path, lines: Sequence[str]) -> list[str]:
    """The arguments that the real sbatch finds in `#SBATCH` lines."""
    text = "".join(f"#SBATCH {line}\n" for line in lines)
    script.write_text(f"#!/bin/bash\n{text}true\n", encoding="utf-8")
    said = cluster.run("sbatch", "-vvv", "--test-only", str(script), check=False).stderr
    return re.findall(r'^sbatch: debug2: Found in script, argument "(.*)"$', said, re.MULTILINE)


@pytest.mark.every_slurm
@pytest.mark.slurm
def test_sbatch_reads_hostile_values_back(slurm: Cluster, tmp_path: Path) -> None:
    lines = [f"--comment={sbatch_value(value)}" for value in HOSTILE]
    assert sbatch_finds(slurm, tmp_path / "job.sh", lines) == [f"--comment={value}" for value in HOSTILE]


@pytest.mark.slurm
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(no_control_characters, min_size=1, max_size=20))
def test_sbatch_reads_any_value_back(slurm: Cluster, tmp_path: Path, values: list[str]) -> None:
    lines = [f"--comment={sbatch_value(value)}" for value in values]
    assert sbatch_finds(slurm, tmp_path / "job.sh", lines) == [f"--comment={value}" for value in values]
