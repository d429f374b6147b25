"""Templates from the command line: listed, shown, compared and tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from hpc_elastic.render.contract import contract_line, declared_contract, why_refused
from hpc_elastic.shipped import shipped_directory
from tests.tiers import each_third, variants

Capture = pytest.CaptureFixture[str]
SHIPPED = Path(shipped_directory("templates"))
EXTENDS = '{# contract: 1 #}\n{% extends "slurm/job.sh.j2" %}\n'
LAUNCH = (SHIPPED / "slurm" / "job.sh.j2").read_text()


def write_template(workplace: Path, text: str) -> str:
    (workplace / "mine.sh.j2").write_text(text)
    return "./mine.sh.j2"


def block(name: str, *lines: str, above: bool = True) -> str:
    return "\n".join(
        [f"{EXTENDS}{{% block {name} %}}", *(["{{ super() }}"] if above else []), *lines, "{% endblock %}\n"]
    )


def test_list_and_show_name_what_is_shipped(capsys: Capture) -> None:
    assert main(["templates", "list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed == sorted(str(path.relative_to(SHIPPED)) for path in SHIPPED.rglob("*.j2"))
    assert main(["templates", "show", "slurm/job.sh.j2"]) == 0
    assert capsys.readouterr().out == LAUNCH


@pytest.mark.long
@pytest.mark.parametrize("name", ["slurm/job.sh.j2", "local/job.sh.j2"])
def test_lint_finds_nothing_wrong_with_ours(name: str, workplace: Path, capsys: Capture) -> None:
    assert main(["templates", "lint", name]) == 0
    assert capsys.readouterr().out == f"{name} is fine\n"


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        block("before", "ulimit -c 0", "scratch={{ run_dir }}", ': "$scratch" {{ name }}'),
        *variants(
            block("header", "#SBATCH --comment=x"),
            block("after", "rm -f nothing"),
            block("environment", "export NCCL_DEBUG=WARN"),
            of="test_lint_finds_nothing_wrong_with_an_override_of_a_block",
        ),
        block("before", "srun --ntasks=1 true"),
    ],
)
def test_lint_finds_nothing_wrong_with_an_override_of_a_block(text: str, workplace: Path, capsys: Capture) -> None:
    assert main(["templates", "lint", write_template(workplace, text)]) == 0, capsys.readouterr().err


LOSES_THE_STATUS = LAUNCH.replace('hpc_elastic_launched+=("$hpc_elastic_step")', ":")
WRONG = {
    "exit": (block("before", "exit 0"), ["ends with 0 where the agents end with 42", "started no agent by srun"]),
    "status lost": (LOSES_THE_STATUS, ["ends with 0 where the agents end with 42"]),
    "no setup": (block("setup", "hpc_elastic_python=python3", above=False), ["the setup lines did not run"]),
    "no #!": (block("header", above=False), ["expected #! and a shell"]),
    "bash": (block("before", "if true; then"), ["bash cannot read the script"]),
    "no-kill": (LAUNCH.replace("    --no-kill ", "    "), ["srun is called without --no-kill, so a lost node"]),
    "over": (block("environment", "true", above=False), ["the script of a run that is over ends with 42, expected 5"]),
    "value": (block("before", "eval echo {{ name }}"), ["a part of a value was run as a command"]),
    "quotes": (block("before", 'echo "{{ name }}"'), ["a substitution stands inside double quotes"]),
    "undeclared": (EXTENDS.split("\n", 1)[1], ["it does not say for which contract it is written"]),
    "newer": (EXTENDS.replace("1", "7", 1), ["written for contract 7, and this hpc_elastic has 1"]),
}


@pytest.mark.long
@pytest.mark.parametrize("case", each_third(WRONG, of="test_lint_tells_what_breaks_the_contract"))
def test_lint_tells_what_breaks_the_contract(case: str, workplace: Path, capsys: Capture) -> None:
    text, messages = WRONG[case]
    assert main(["templates", "lint", write_template(workplace, text)]) == 3
    error = capsys.readouterr().err
    for message in messages:
        assert message in error
    assert not list(workplace.rglob("canary"))


@pytest.mark.long
def test_lint_says_that_a_part_is_no_template_of_a_job(capsys: Capture) -> None:
    assert main(["templates", "lint", "slurm/container.sh.j2"]) == 3
    assert (
        "container.sh.j2:1: it has no blocks; a part is tried with the template that includes it"
        in capsys.readouterr().err
    )


@pytest.mark.long
def test_lint_runs_nothing_if_it_is_told_so(workplace: Path, capsys: Capture) -> None:
    mark = workplace / "ran"
    template = write_template(workplace, block("before", f"touch {mark}"))
    assert main(["templates", "lint", "--no-run", template]) == 0
    assert "the script was not run" in capsys.readouterr().out
    assert not mark.exists()
    assert main(["templates", "lint", template]) == 0
    assert mark.exists()


@pytest.mark.long
def test_lint_takes_another_launcher_than_srun(workplace: Path, capsys: Capture) -> None:
    launch = [
        'hpc_elastic_stop() { kill -TERM "${hpc_elastic_launched[@]}"; }',
        'our-launcher --nodes={{ max_nodes }} "$hpc_elastic_python" {{ agent }} &',
        'hpc_elastic_launched+=("$!")',
    ]
    template = write_template(workplace, block("launch", *launch, above=False))
    assert main(["templates", "lint", template]) == 3
    assert "the script started no agent by srun (--launcher" in capsys.readouterr().err
    assert main(["templates", "lint", "--launcher", "our-launcher", template]) == 0


@pytest.mark.long
def test_diff_shows_what_a_site_changes_in_the_script(workplace: Path, capsys: Capture) -> None:
    write_template(workplace, block("before", "ulimit -l unlimited"))
    head = "contact: me\nlast_checked: never\nscheduler: slurm\n"
    (workplace / "own.yaml").write_text(f"name: own\n{head}template: ./mine.sh.j2\n")
    assert main(["templates", "diff", "./own.yaml"]) == 0
    changed = [line for line in capsys.readouterr().out.splitlines() if line[0] in "+-" and line[1:2] not in "+-"]
    assert "+ulimit -l unlimited" in changed
    assert main(["templates", "diff", "generic-slurm"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, "no template of its own" in captured.err) == ("", True)


def test_a_template_of_an_older_contract_is_refused_with_what_changed(workplace: Path, capsys: Capture) -> None:
    changes = {1: "the first", 2: "the block launch fills a list", 3: "the variable agent is a list"}
    assert why_refused("{# contract: 3 #}", changes) is None
    assert why_refused("no word of it", changes) is None
    assert why_refused("{# ours #}\n{#- contract: 1 -#}", changes) == (
        "it is written for contract 1, and 3 is in force; what changed: 2: the block launch fills a list;"
        " 3: the variable agent is a list"
    )
    (workplace / "job.yaml").write_text("entrypoint: {script: train.py}\ntemplate: ./mine.sh.j2\n")
    write_template(workplace, EXTENDS.replace("1", "0", 1))
    assert main(["check", "job.yaml", "--site", "generic-slurm"]) == 3
    assert "mine.sh.j2:1: it is written for contract 0, and 1 is in force" in capsys.readouterr().err


def test_our_templates_declare_todays_contract() -> None:
    for path in SHIPPED.rglob("job.sh.j2"):
        assert contract_line() in path.read_text()
        assert declared_contract(path.read_text()) == 1


@pytest.mark.parametrize("arguments", [["show"], ["diff"], ["lint"], ["list", "x"]])
def test_templates_rejects_other_arguments(arguments: list[str], capsys: Capture) -> None:
    assert main(["templates", *arguments]) == 2
    assert f"templates {arguments[0]} takes" in capsys.readouterr().err
