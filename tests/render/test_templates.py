from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import TemplateError
from hpc_elastic.render.lint import ShellQuotes, find_quoted_substitutions
from hpc_elastic.render.script import load_template, render_script
from hpc_elastic.render.template import ScriptEnvironment, load_array_template
from hpc_elastic.render.values import template_values
from hpc_elastic.shipped import shipped_directory
from tests.another_user import another_user, folder_of_everybody
from tests.plans import make_local_plan, make_plan

SHIPPED = sorted(Path(shipped_directory("templates")).rglob("*.j2"))
EXTENDS = '{% extends "slurm/job.sh.j2" %}\n'

BROKEN = {
    "syntax": (EXTENDS + "{% block before %}\n{% if x %}\n{% endblock %}", 4, "unknown tag 'endblock'"),
    "unclosed": (EXTENDS + "{% block before %}\necho {{ name\n", 3, "end of template"),
    "unknown variable": (
        EXTENDS + "{% block before %}\n\necho {{ acount }}\n{% endblock %}",
        4,
        "'acount' is undefined",
    ),
    "unknown parent": ('{# ours #}\n{% extends "slurm/jobs.sh.j2" %}', 2, "no template slurm/jobs.sh.j2"),
    "unknown include": (EXTENDS + '{% block before %}\n{% include "x.sh" %}{% endblock %}', 3, "no template x.sh"),
    "no launch line": (
        EXTENDS + "\n{% block launch %}\n# hpc_elastic.agent.main\ntrue\n{% endblock %}",
        3,
        "the block launch starts no agent",
    ),
    "missing block": ("#!/bin/bash\n{% block launch %}{% endblock %}", 1, "no block header"),
    "misspelled block": (EXTENDS + "{% block lunch %}{% endblock %}", 2, "unknown block lunch; did you mean launch?"),
    "text outside": (EXTENDS + "\n\nexport A=b\n{% block before %}{% endblock %}", 4, "outside of the blocks"),
    "double quotes": (EXTENDS + '{% block before %}\n# it\'s\necho "{{ name }}"\n{% endblock %}', 4, "inside double"),
    "single quotes": (EXTENDS + "{% block before %}\necho 'x\n{{ name }}'\n{% endblock %}", 4, "inside single quotes"),
    "here-document": (EXTENDS + "{% block before %}\ncat <<-EOF\n{{ name }}\nEOF\n{% endblock %}", 4, "here-document"),
    "backticks": (EXTENDS + "{% block before %}\nx=`echo {{ name }}`\n{% endblock %}", 3, "inside backticks"),
    "absent value": (EXTENDS + "{% block before %}\necho {{ gpus_per_node }}\n{% endblock %}", 3, "None cannot stand"),
    "an object": (EXTENDS + "{% block before %}\necho {{ range }}\n{% endblock %}", 3, "cannot stand in a script"),
    "unknown filter": (EXTENDS + "{% block before %}\necho {{ name | quoted }}\n{% endblock %}", 3, "No filter named"),
    "computed name": (EXTENDS + "{% block before %}{% include name %}{% endblock %}", 1, "must be a constant"),
    "division": (EXTENDS + "{% block before %}\n{{ 1 // (max_nodes - 2) }}\n{% endblock %}", 3, "division"),
    "endless": ('{% extends "job.sh.j2" %}', 1, "extends itself"),
}


def render(text: str, folder: Path) -> str:
    (folder / "job.sh.j2").write_text(text, encoding="utf-8")
    template = load_template("job.sh.j2", job_dir=str(folder))
    return render_script(make_plan(name="it's"), template)


@pytest.mark.parametrize("case", BROKEN)
def test_a_template_rejects_what_breaks_its_contract(case: str, tmp_path: Path) -> None:
    text, line, message = BROKEN[case]
    with pytest.raises(TemplateError) as raised:
        render(text, tmp_path)
    assert raised.value.message.startswith(f"{tmp_path / 'job.sh.j2'}:{line}: ")
    assert message in raised.value.message
    assert "\n" not in raised.value.message
    assert raised.value.tip


def test_the_broken_file_is_named_if_a_parent_is_at_fault(tmp_path: Path) -> None:
    (tmp_path / "site.sh.j2").write_text(EXTENDS + "{% block after %}\n{{ oops }}\n{% endblock %}")
    with pytest.raises(TemplateError, match=r"site\.sh\.j2:3: 'oops' is undefined"):
        render('{% extends "site.sh.j2" %}', tmp_path)


def test_load_template_rejects_a_name_that_is_nowhere(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=r"no template nope\.j2: neither .*templates/nope\.j2 nor .*/nope\.j2"):
        load_template("nope.j2", job_dir=str(tmp_path))


def test_load_template_rejects_what_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "x.j2").write_bytes(b"\xff\xfe")
    with pytest.raises(TemplateError, match="cannot read the template"):
        load_template("x.j2", job_dir=str(tmp_path))


def test_a_template_that_this_user_may_not_read_is_told_so() -> None:
    with folder_of_everybody() as place:
        (place / "x.j2").touch()
        (place / "x.j2").chmod(0o600)
        with another_user(), pytest.raises(TemplateError) as caught:
            load_template("x.j2", job_dir=str(place))
    assert str(caught.value) == f"cannot read the template {place}/x.j2: Permission denied"
    assert not caught.value.tip


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_shipped_template_has_no_substitution_inside_quotes(path: Path) -> None:
    assert list(find_quoted_substitutions(ScriptEnvironment(), path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_shipped_template_loads_by_its_name(path: Path) -> None:
    name = os.path.relpath(path, shipped_directory("templates"))
    if path.name == "container.sh.j2":  # a part of job.sh.j2, and no template by itself
        name = f"{path.parent.name}/job.sh.j2"
        assert load_template(name, job_dir="/").sources[f"{path.parent.name}/{path.name}"].path == str(path)
        return
    is_array = path.name == "array.sh.j2"
    template = load_array_template(path.parent.name) if is_array else load_template(name, job_dir="/")
    assert template.sources[name].path == str(path)


def test_a_substitution_is_a_word_wherever_its_text_comes_from(tmp_path: Path) -> None:
    text = (
        EXTENDS
        + "{% macro say(x) %}echo {{ x }}{% endmacro %}\n{% block before %}\n{% set y %}a {{ name }}{% endset %}\n"
        "1 {{ name }} {{ name | upper }} {{ name ~ '!' }} {{ 'a b' }} {{ ['a', 'b c'] }} {{ 3 }}\n"
        "2 {{ y }} {{ name | safe }} {{ name | e }}\n{{ say(name) }}\n{% endblock %}"
    )
    with pytest.raises(TemplateError, match="outside of the blocks"):
        render(text.replace("{% endmacro %}\n", "{% endmacro %} stray\n"), tmp_path)
    lines = render(text, tmp_path).splitlines()
    quoted = "'it'\"'\"'s'"
    assert f"1 {quoted} 'IT'\"'\"'S' 'it'\"'\"'s!' 'a b' a 'b c' 3" in lines
    assert f"2 a {quoted} {quoted} 'it&#39;s'" in lines


def test_a_template_adds_to_a_block_of_its_parents_if_it_says_super(tmp_path: Path) -> None:
    (tmp_path / "site.sh.j2").write_text(
        EXTENDS + "{% block before %}\nexport SITE=1\n{% block mine %}\n{% endblock %}\n{% endblock %}"
    )
    script = render(
        '{% extends "site.sh.j2" %}\n{% block mine %}export MINE={{ name }}\n{% endblock %}\n'
        "{% block launch %}\n{{ super() }}\nsleep 1\n{% endblock %}",
        tmp_path,
    )
    assert "export SITE=1\nexport MINE='it'\"'\"'s'\n" in script
    assert script.index(" srun --nodes") < script.index("\nsleep 1\n") < script.index("hpc_elastic_started=yes")


def test_a_name_of_a_shipped_template_is_not_taken_from_the_job_folder(tmp_path: Path) -> None:
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "job.sh.j2").write_text("other")
    template = load_template("slurm/job.sh.j2", job_dir=str(tmp_path))
    assert template.sources["slurm/job.sh.j2"].text != "other"


@pytest.mark.parametrize(
    "field", ["run", "name", "run_dir", "workdir", "python", "package_dir", "site", "created", "package_version"]
)
def test_a_script_rejects_a_control_character_and_names_the_key(field: str) -> None:
    with pytest.raises(TemplateError, match=rf"^{field} '/a\\nb' holds the control character U\+000A"):
        template_values(make_local_plan(**{field: "/a\nb"}))


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("setup", ("echo a\r",), "setup"),
        ("srun", ("--x\n",), "srun"),
        ("sbatch", {"account": "a\nb"}, r"sbatch\.account"),
    ],
)
def test_a_script_rejects_a_control_character_in_lists(field: str, value: Any, named: str) -> None:
    with pytest.raises(TemplateError, match=rf"^{named} .* control character"):
        template_values(make_plan(**{field: value}))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("echo ", None),
        ('echo "', "double quotes"),
        ("echo '", "single quotes"),
        ("echo \\'", None),
        ('echo "\\"', "double quotes"),
        ("echo 'a'\"b\"", None),
        ("# it's\n", None),
        ("echo a#'", "single quotes"),
        ("${#name[@]} '", "single quotes"),
        ("cat <<EOF\n", "a here-document"),
        ("cat <<'EOF'\nit's\nEOF\n", None),
        ("cat <<-EOF\n\tEOF\n'", "single quotes"),
        ("read <<<word\n", None),
        ("x=$((1<<n))\n", None),
        ('x="$(cat ', "double quotes"),
    ],
)
def test_shell_quotes_know_their_place(text: str, place: str | None) -> None:
    quotes = ShellQuotes()
    quotes.feed(text)
    assert quotes.place == place
