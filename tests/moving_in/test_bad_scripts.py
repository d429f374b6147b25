"""Scripts that cannot be moved in, and any other text: one clear message, and never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.errors import JobError
from hpc_elastic.job.parse import parse_job
from hpc_elastic.job.text import job_text
from hpc_elastic.moving_in.moved import Kind
from hpc_elastic.moving_in.script import carried_lines, move_script
from hpc_elastic.moving_in.shell import MARKS, expand, first_pipe, split_words, statements

HEAD = "#!/bin/bash\n#SBATCH --time=10\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "old.sbatch: no command that starts a training was found"),
        (f"{HEAD}echo torchrun\n", "old.sbatch: no command that starts a training was found"),
        (f"{HEAD}torchrun a.py\ntorchrun b.py\n", "old.sbatch: 2 commands start a training, in lines 3, 4"),
        (f"{HEAD}for i in 1 2; do\n  torchrun a.py\ndone\n", "old.sbatch:3: the training is started within `for`"),
        (f"{HEAD}run() {{\n  srun python a.py\n}}\nrun\n", "old.sbatch:3: the training is started within a function"),
        (f"{HEAD}torchrun --nproc-per-node 2\n", "old.sbatch:3: the command names no script"),
        (
            "#!/bin/tcsh\nsetenv LR 1\ntorchrun a.py\n",
            "old.sbatch:1: expected a script of bash or sh, found one of tcsh",
        ),
        (
            "#!/bin/csh -f\nif (1) then\ntorchrun a.py\nendif\n",
            "old.sbatch:1: expected a script of bash or sh, found one",
        ),
        ("#! /usr/bin/env python3\ntorchrun\n", "old.sbatch:1: expected a script of bash or sh, found one of python3"),
        (
            "#!/usr/bin/env -S fish -N\r\ntorchrun a.py\n",
            "old.sbatch:1: expected a script of bash or sh, found one of fish",
        ),
        (
            "#!/usr/bin/env -C /opt -u LANG fish\ntorchrun a.py\n",
            "old.sbatch:1: expected a script of bash or sh, found",
        ),
        ("\ufeff#!/usr/bin/perl\ntorchrun a.py\n", "old.sbatch:1: expected a script of bash or sh, found one of perl"),
        (
            "#!/bin/bash\n#SBATCH -N 1\n#SBATCH hetjob\n#SBATCH -N 2\nsrun python a.py\n",
            "old.sbatch:3: heterogeneous jobs are not supported",
        ),
        (
            f'{HEAD}A="--nnodes 2"\nif true; then A+=" --standalone"; fi\ntorchrun $A a.py\n',
            "old.sbatch:5: what torchrun starts could not be read in $A",
        ),
        (
            f'{HEAD}if true; then A=(--nnodes 2); fi\ntorchrun "${{A[@]}}" a.py\n',
            "old.sbatch:4: what torchrun starts could not be read in ${A[@]}",
        ),
        ("\0", "old.sbatch: expected a batch script of at most 1 MiB of text"),
        ("#" * ((1 << 20) + 1), "old.sbatch: expected a batch script of at most 1 MiB of text"),
    ],
)
def test_a_script_that_cannot_be_moved_in_is_refused(text: str, message: str) -> None:
    with pytest.raises(JobError) as raised:
        move_script(text, file="old.sbatch")
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    "first_line",
    [
        "#!/bin/bash -l",
        "#!/usr/bin/env bash",
        "#!/usr/bin/env -C /opt/python bash",
        "#! /bin/sh",
        "#!/bin/zsh",
        "#!/usr/bin/ksh93",
        "#!/opt/bin/site-shell",
        "#!",
    ],
)
def test_a_script_of_a_shell_like_bash_is_read(first_line: str) -> None:
    moved = move_script(f"{first_line}\ntorchrun a.py\n", file="old.sbatch")
    assert moved.document()["entrypoint"] == {"script": "a.py"}


@pytest.mark.parametrize(
    ("first_line", "kept"),
    [("#!/bin/bash -x", ["set -x"]), ("#!/usr/bin/env -S bash -eu", ["set -eu"]), ("#!/bin/bash", [])],
)
def test_options_in_the_first_line_are_those_of_setup(first_line: str, kept: list[str]) -> None:
    moved = move_script(f"{first_line}\nexport A=1\ntorchrun --max-restarts=1 a.py\n", file="")
    assert (moved.setup, moved.remarks) == ([*kept, "export A=1"], [])


@pytest.mark.parametrize("option", ["-l", "-le", "--login"])
def test_what_a_login_shell_reads_is_read_by_setup(option: str, tmp_path: Path) -> None:
    moved = move_script(f"#!/bin/bash {option}\ntorchrun --max-restarts=1 a.py\n", file="")
    assert [(each.line, each.kind, each.what) for each in moved.remarks] == [(1, Kind.CHANGED, f"#!/bin/bash {option}")]
    (tmp_path / ".bash_profile").write_text("module() { echo loaded; }\n[ -n '' ] && return 1\n")
    (tmp_path / ".profile").write_text("echo too much\n")
    lines = "\n".join(f"{line}\necho status $?" for line in [*moved.setup, "module load x"])
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", "-c", lines], env=environ, capture_output=True, text=True, check=True)
    said = [line for line in done.stdout.splitlines() if line != "status 0"]
    assert (said, done.stderr) == (["loaded"], "")


def test_a_byte_order_mark_hides_no_directive() -> None:
    moved = move_script("\ufeff#!/bin/bash\n#SBATCH --nodes=2\ntorchrun a.py\n", file="old.sbatch")
    assert moved.document()["nodes"] == 2


@pytest.mark.parametrize(
    ("directive", "key", "value"),
    [
        ("--job-name=train_%j", "name", "train"),
        ("--job-name=हिन्दी_रन", "name", "हिन्दी_रन"),
        ("-J my/job", "name", "my-job"),
        ("--nodes=2-4", "nodes", {"min": 2, "max": 4}),
        ("-N3", "nodes", 3),
        ("--nodes 3", "nodes", 3),
        ("-t 90", "time", "1h30m"),
        ("--time=1-12", "time", "1-12"),
        ("--mem=64000", "resources", {"memory_per_node": "64000M"}),
        ("--exclusive", "resources", {"exclusive": True}),
        ("--exclusive=user", "sbatch", {"exclusive": "user"}),
        ("--gres=gpu:2", "resources", {"gpus_per_node": 2}),
        ("--gres=gpu", "resources", {"gpus_per_node": 1}),
        ("--gres=gpu:2,nvme:1", "sbatch", {"gres": "gpu:2,nvme:1"}),
        ("--gpus-per-node=h100:4", "sbatch", {"gpus-per-node": "h100:4"}),
        ("--gpus-per-task=l40s:1 --ntasks-per-node=2", "sbatch", {"gpus-per-node": "l40s:2"}),
        ("--gpus=a100:8 -N 2", "sbatch", {"gpus-per-node": "a100:4"}),
        ("--no-requeue", "requeue", {"max": 0}),
        ("--signal=USR2@60", "signals", {"lead": "60s", "notice": "USR2"}),
        ("-D /scratch/me", "workdir", "/scratch/me"),
        ("-p gpu -A abc", "sbatch", {"partition": "gpu", "account": "abc"}),
        ('--comment="two words"', "sbatch", {"comment": "two words"}),
        ("--nice", "sbatch", {"nice": True}),
    ],
)
def test_a_directive_is_a_key(directive: str, key: str, value: object) -> None:
    moved = move_script(f"#!/bin/bash\n#SBATCH {directive}\ntorchrun a.py\n", file="old.sbatch")
    assert moved.document()[key] == value
    parse_job(job_text(moved.document()), file="")


@pytest.mark.parametrize("directive", ["-v", "-vv", "-vvv", "-Qv", "--verbose", "--quiet"])
def test_what_sbatch_says_of_itself_is_no_option_of_the_job(directive: str) -> None:
    moved = move_script(f"#!/bin/bash\n#SBATCH {directive}\ntorchrun --max-restarts=1 a.py\n", file="old.sbatch")
    assert {(remark.line, remark.kind) for remark in moved.remarks} == {(2, Kind.NOT_NEEDED)}
    assert "sbatch" not in moved.document()


def test_a_role_that_bash_computes_is_not_needed() -> None:
    moved = move_script(f'{HEAD}srun bash -c "torchrun --role \\$SLURMD_NODENAME: a.py"\n', file="")
    assert "role" not in moved.document()
    assert Kind.NOT_NEEDED in [each.kind for each in moved.remarks if each.what == "--role=$SLURMD_NODENAME:"]


@pytest.mark.parametrize(
    ("word", "argument"),
    [
        ("$((SLURM_NTASKS_PER_NODE * SLURM_JOB_NUM_NODES))", "${WORLD_SIZE}"),
        ("$(( $SLURM_NNODES*${SLURM_NTASKS_PER_NODE} ))", "${WORLD_SIZE}"),
        ("$SLURM_NPROCS", "${WORLD_SIZE}"),
        ("$SLURM_NTASKS_PER_NODE", "${LOCAL_WORLD_SIZE}"),
        ("$((SLURM_NTASKS / 2))", "${MOVED_1}"),
    ],
)
def test_the_number_of_tasks_is_that_of_the_ranks_or_named(word: str, argument: str) -> None:
    moved = move_script(f"#SBATCH --ntasks-per-node=2\nsrun python a.py --world {word}\n", file="")
    assert moved.document()["entrypoint"]["args"] == ["--world", argument]
    named = [each.kind for each in moved.remarks if each.what == word]
    assert named == ([Kind.CHANGED] if argument == "${MOVED_1}" else [])


@pytest.mark.parametrize("option", ["--cpus-per-task=$SLURM_CPUS_PER_TASK", "-c ${SLURM_CPUS_PER_TASK:-1}"])
def test_an_option_of_srun_with_the_job_s_own_value_is_not_needed(option: str) -> None:
    text = f"#SBATCH --ntasks-per-node=2 --cpus-per-task=8\nsrun {option} python a.py\n"
    moved = move_script(text, file="")
    assert moved.document()["resources"] == {"cpus_per_worker": 8}
    assert Kind.NOT_CARRIED not in [each.kind for each in moved.remarks]


@pytest.mark.parametrize(
    "directive",
    ["--time=soon", "--nodes=many", "--mem=lots", "--signal=@", "-c x", "--array=1-3", "--wrap=x", "x"],
)
def test_a_directive_that_is_no_key_is_named(directive: str) -> None:
    moved = move_script(f"#!/bin/bash\n#SBATCH {directive}\ntorchrun --max-restarts=1 a.py\n", file="old.sbatch")
    assert [(remark.line, remark.kind) for remark in moved.remarks] == [(2, Kind.NOT_CARRIED)]
    parse_job(job_text(moved.document()), file="")


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("a.py 'x y' \"z\"", ["x y", "z"]),
        ("a.py --lr=$LR", ["--lr=0.1"]),
        ('a.py "${MORE[@]}"', ["--a", "b c"]),
        ("a.py ${MORE[*]}", ["--a", "b c"]),
        ("a.py '$LR' \\$LR", ["$$LR", "$$LR"]),
        ("a.py $HOME/x", ["${HOME}/x"]),
        ("a.py {1..3} *.txt", ["{1..3}", "*.txt"]),
        ("a.py # a comment", []),
        ("a.py --x > out 2>&1", []),
        ("a.py || exit 1", []),
    ],
)
def test_words_are_those_of_bash(command: str, args: list[str]) -> None:
    text = f"{HEAD}LR=0.1\nMORE=(--a 'b c')\ntorchrun {command}\n"
    found = move_script(text, file="").document()["entrypoint"].get("args", [])
    assert found == (["--x"] if "--x" in command else args)


def test_a_pattern_of_files_is_named() -> None:
    moved = move_script(f"{HEAD}torchrun --max-restarts=1 a.py data/*.tar ~/x\n", file="")
    assert [remark.what for remark in moved.remarks] == ["data/*.tar"]
    assert moved.document()["entrypoint"]["args"] == ["data/*.tar", "${HOME}/x"]


def test_what_stands_behind_the_training_is_named() -> None:
    moved = move_script(f"{HEAD}torchrun --max-restarts=1 a.py && python eval.py\npython test.py\n", file="")
    assert [remark.what for remark in moved.remarks] == ["&& python eval.py", "python test.py"]
    assert {remark.kind for remark in moved.remarks} == {Kind.NOT_CARRIED}


def test_a_launcher_that_is_only_named_starts_nothing() -> None:
    text = f"{HEAD}which torchrun\npip install accelerate deepspeed\npython -c 'import torch'\ntorchrun a.py\n"
    moved = move_script(text, file="")
    assert moved.launch_line == 6
    assert len(moved.setup) == 3


def test_a_python_before_the_launcher_is_setup() -> None:
    moved = move_script(f"{HEAD}python prepare.py\nsrun torchrun a.py\n", file="")
    assert (moved.launch_line, moved.setup) == (4, ["python prepare.py"])


def test_windows_line_ends_do_no_harm() -> None:
    moved = move_script("#!/bin/bash\r\n#SBATCH -N 2\r\ntorchrun --nproc-per-node=2 a.py\r\n", file="")
    assert moved.document()["nodes"] == 2
    assert moved.document()["entrypoint"] == {"script": "a.py"}


def test_values_that_name_others_again_and_again_do_not_explode() -> None:
    known = {f"A{n}": " ".join([f"$A{n + 1}"] * 4) for n in range(9)} | {"A9": "x"}
    words = expand("$A0", known).split()
    assert 0 < words.count("x") < 1000
    assert len(words) < 4000


def test_a_variable_within_its_own_value_stays() -> None:
    assert expand("$A", {"A": "$A $A b"}) == "$A $A b"
    assert expand("$A", {"A": "$B 1", "B": "$A 2"}) == "$A 2 1"


PIECES = st.sampled_from(
    [
        *("torchrun ", "srun ", "python ", "a.py", "--nproc-per-node=", "2", " ", "\n", "\\\n", "'", '"', "$(", ")"),
        *("${", "}", "$X", "X=", "export ", "if ", "; then\n", "fi", "for ", "do ", "done", "case ", "esac", "f() {"),
        *("#SBATCH --nodes=", "#SBATCH -", "#", "<<EOF\n", "EOF", "|", "&", ";", ">", "bash -c ", "eval ", "`", "(("),
        *("accelerate launch ", "deepspeed ", "ft_launcher ", "mpirun -np ", "apptainer exec ", "-m ", "--", "-", "="),
        *("[@]", "\ue000", "\ue0010\ue002"),
    ]
)


@given(st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=40).map("".join)))
def test_any_text_is_moved_in_or_refused(text: str) -> None:
    for each in statements(text):
        expand(each.joined, {"X": text})
        first_pipe(each.joined)
        split_words(each.joined)
    try:
        moved = move_script(text, file="old.sbatch")
    except JobError:
        return
    text = MARKS.sub("?", text)
    lost = [line for line, _ in carried_lines(text, moved) if line != moved.launch_line]
    assert not lost
    assert moved.document()["entrypoint"]


@given(st.lists(PIECES, max_size=40).map("".join))
def test_statements_have_every_line_that_is_no_comment(text: str) -> None:
    found = "\n".join(each.text for each in statements(text))
    for line in text.split("\n"):
        if line.strip() and not line.lstrip().startswith("#"):
            assert all(word in found for word in line.replace(";", " ").split())


def test_a_launcher_in_a_loop_is_not_passed_over_for_a_lesser_command() -> None:
    with pytest.raises(JobError, match="within `for`"):
        move_script(f"{HEAD}srun python prepare.py\nfor i in 1 2; do\n  torchrun a.py\ndone\n", file="")


def test_an_address_that_the_training_is_given_is_still_looked_up() -> None:
    text = f"{HEAD}HEAD=$(scontrol show hostnames | head -1)\ntorchrun a.py --server $HEAD\n"
    moved = move_script(text, file="")
    assert moved.setup == ["HEAD=$(scontrol show hostnames | head -1)", "export HEAD"]
    assert moved.document()["entrypoint"]["args"] == ["--server", "${HEAD}"]


def test_an_address_that_a_line_of_setup_uses_is_still_looked_up() -> None:
    look_up = "HOSTNAMES=$(scontrol show hostnames)"
    loop = "for host in $HOSTNAMES; do echo $host slots=8 >> hosts; done"
    moved = move_script(f"{HEAD}{look_up}\nMASTER_ADDR=$(hostname)\n{loop}\ntorchrun a.py\n", file="")
    assert moved.setup == [look_up, loop]


def test_an_address_that_a_condition_changes_is_set_before_it() -> None:
    before = ["set -u", "export MASTER_ADDR=$(hostname)", 'if [ -n "$X" ]; then MASTER_ADDR="${MASTER_ADDR}i"; fi']
    assert move_script("\n".join([*before, "torchrun a.py"]), file="").setup == before


def test_cpus_that_cannot_be_shared_out_evenly_are_those_of_the_node() -> None:
    moved = move_script("#SBATCH -c 10\ntorchrun --nproc-per-node=4 a.py\n", file="")
    assert moved.document()["sbatch"] == {"cpus-per-task": 10}
    assert "resources" not in moved.document()


@pytest.mark.parametrize(
    "command",
    [
        "env -u A B=1 python a.py --x",
        "srun --nodes 2 --ntasks 4 -c 3 python a.py --x",
        "srun -N2 -n4 -l python -u a.py --x",
        "time srun --label bash -lc 'python a.py --x'",
        'srun bash -c "python a.py --x"',
    ],
)
def test_what_stands_around_a_command_is_taken_off(command: str) -> None:
    document = move_script(f"{HEAD}{command}\n", file="").document()
    assert document["entrypoint"] == {"script": "a.py", "args": ["--x"]}
    if "4" in command:
        assert (document["nodes"], document["workers_per_node"]) == (2, 2)


def test_what_a_shell_around_the_training_does_first_is_setup() -> None:
    moved = move_script(f"{HEAD}srun bash -c 'cd x; export A=1 && python a.py'\n", file="")
    assert (moved.setup, moved.document()["workdir"]) == (["export A=1"], "x")
    assert [remark.kind for remark in moved.remarks] == [Kind.CHANGED] * 2  # the export, and the restarts


def test_a_variable_that_a_condition_or_a_loop_sets_reaches_the_workers() -> None:
    before = (
        'if [ -f a.pt ]; then RESUME="--resume a.pt"; fi\n'
        "for each in /fast /data; do DATA=$each; done\nread -r NAME < name.txt\n"
    )
    moved = move_script(f'{HEAD}{before}srun python a.py "$RESUME" "$DATA" "$NAME"\n', file="")
    assert moved.keys["entrypoint"]["args"] == ["${RESUME}", "${DATA}", "${NAME}"]
    exports = [line for line in moved.setup if line.startswith("export ")]
    assert exports == ['export RESUME="${RESUME-}"', 'export DATA="${DATA-}"', 'export NAME="${NAME-}"']


def test_what_bash_alone_knows_is_computed_in_setup() -> None:
    command = 'srun python a.py --seed "$SEED" --user ${UID} --host $HOSTNAME_OF_IT'
    moved = move_script(f"{HEAD}export SEED=$RANDOM\n{command}\n", file="")
    args = moved.keys["entrypoint"]["args"]
    assert args == ["--seed", "${SEED}", "--user", "${MOVED_1}", "--host", "${HOSTNAME_OF_IT}"]
    assert moved.setup == ["export SEED=$RANDOM", 'export MOVED_1="${UID}"']


@pytest.mark.parametrize(
    "options", ["-l", "-u", "-lu", "-K", "-K1", "-K=0", "-X", "-W 60", "-W60", "--wait 60", "--wait=60", "-l -K -n 2"]
)
def test_options_that_only_srun_has_are_not_asked_of_sbatch(options: str) -> None:
    moved = move_script(f"{HEAD}srun {options} python train.py --x\n", file="x")
    assert (moved.keys["entrypoint"], moved.sbatch) == ({"script": "train.py", "args": ["--x"]}, {})


@pytest.mark.parametrize(
    ("line", "is_named"),
    [
        ("CONFIG=$1", True),
        ('CONFIG="${1:-base.yaml}"', True),
        ('if [ -z "$1" ]; then echo usage; exit 1; fi', True),
        ("[ $# -gt 0 ] || exit 1", True),
        ("HOSTS=$(awk '{print $1}' hosts)", False),
        ('log() { echo "[$1] $2"; }', False),
        ("echo '$1' \\$1", False),
    ],
)
def test_an_argument_of_the_script_in_a_line_of_setup_is_named(line: str, is_named: bool) -> None:
    moved = move_script(f"{HEAD}{line}\ntorchrun a.py\n", file="x")
    found = [remark for remark in moved.remarks if "a run has no arguments of a script" in remark.why]
    assert [remark.line for remark in found] == [3] * is_named
    assert not is_named or found[0].kind is Kind.NOT_CARRIED


def test_compound_commands_end_at_their_own_keyword() -> None:
    text = (
        "if true; then\n  for i in 1; do\n    echo fi\n  done\nfi\ncase $X in\na) echo esac ;;\nesac\ntorchrun a.py\n"
    )
    assert [each.keyword for each in statements(text)] == ["if", "case", ""]


@pytest.mark.parametrize(
    "line",
    [
        "rsync -a data /tmp/ || { echo failed; exit 1; }",
        "(cd lib; make) || exit 1",
        "(make; make install)",
        "export X=${Y:-a;b}",
        "srun bash -c 'mkdir -p /tmp/data && cp data/* /tmp/data/'",
    ],
)
def test_a_line_whose_parts_belong_together_stays_one_line_of_setup(line: str) -> None:
    assert move_script(f"{HEAD}{line}\ntorchrun a.py\n", file="").setup == [line]


def test_a_compound_command_behind_another_one_is_a_line_of_setup() -> None:
    text = f"{HEAD}set -e; if [ -f .env ]; then source .env; fi; for f in a b; do touch $f; done\ntorchrun a.py\n"
    setup = ["set -e", "if [ -f .env ]; then source .env; fi", "for f in a b; do touch $f; done"]
    assert move_script(text, file="").setup == setup


@pytest.mark.parametrize(
    ("line", "workdir"),
    [
        ("cd /data", "/data"),
        ('cd "/data/my run"', "/data/my run"),
        ("cd $HOME/x", "${HOME}/x"),
        ("X=/data\ncd $X/y", "/data/y"),
        ("export A=1\ncd sub", "sub"),
        ("cd $SLURM_SUBMIT_DIR", None),
    ],
)
def test_the_folder_that_a_script_goes_to_is_the_workers(line: str, workdir: str | None) -> None:
    moved = move_script(f"{HEAD}{line}\ntorchrun a.py\n", file="")
    assert moved.document().get("workdir") == workdir
    assert not any(each.startswith("cd") for each in moved.setup)


@pytest.mark.parametrize(
    "line", ['cd "$(dirname "$0")"', "cd a && make", "pushd x", "if true; then\n  cd x\nfi", "cd a\ncd b"]
)
def test_a_folder_that_only_bash_knows_is_named(line: str) -> None:
    moved = move_script(f"{HEAD}{line}\ntorchrun a.py\n", file="")
    assert any("workdir" in remark.why for remark in moved.remarks if remark.kind is Kind.NOT_CARRIED)


def test_what_the_outer_shell_computes_in_quotes_of_the_inner_one_is_computed() -> None:
    text = f'{HEAD}L="torchrun"\nsrun bash -c "$L a.py --resume \'$(ls -t ckpt | head -1)\' --rank \\$SLURM_PROCID"\n'
    moved = move_script(text, file="")
    assert moved.document()["entrypoint"]["args"] == ["--resume", "${MOVED_1}", "--rank", "${GROUP_RANK}"]
    assert moved.setup[-1] == 'export MOVED_1="$(ls -t ckpt | head -1)"'


def test_restarts_that_a_script_did_not_have_are_named() -> None:
    assert "set them to 0" in move_script(f"{HEAD}torchrun a.py\n", file="").remarks[-1].why
    assert not move_script(f"{HEAD}torchrun --max-restarts 0 a.py\n", file="").remarks


def test_what_only_bash_computes_keeps_its_quotes() -> None:
    text = f'{HEAD}torchrun a.py --json \'{{"price": "$5", "day": "\'$(date +%F)\'"}}\'\n'
    moved = move_script(text, file="")
    assert moved.setup == ['export MOVED_1="{\\"price\\": \\"\\$5\\", \\"day\\": \\"$(date +%F)\\"}"']


@pytest.mark.parametrize("tail", ["2>&1 | tee out.log", "> out.log", "&& echo done"])
def test_what_follows_within_a_shell_is_no_argument(tail: str) -> None:
    moved = move_script(f"{HEAD}srun bash -c 'python a.py --x {tail}'\n", file="")
    assert moved.document()["entrypoint"] == {"script": "a.py", "args": ["--x"]}
    kind = Kind.NOT_CARRIED if "echo" in tail else Kind.NOT_NEEDED
    assert kind in [each.kind for each in moved.remarks if each.what in (tail, "echo done")]


def test_an_and_within_quotes_parts_no_commands() -> None:
    moved = move_script(f"{HEAD}srun bash -c 'python a.py --x \"b && c\"'\n", file="")
    assert moved.document()["entrypoint"]["args"] == ["--x", "b && c"]


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("srun python a.py --rank $SLURM_PROCID", Kind.CHANGED),
        ("srun bash -c 'python a.py --seed $((SLURM_PROCID + 1))'", Kind.NOT_CARRIED),
    ],
)
def test_what_differs_from_rank_to_rank_is_named(command: str, kind: Kind) -> None:
    moved = move_script(f"{HEAD}{command}\n", file="")
    assert [each.kind for each in moved.remarks if "SLURM_PROCID" in each.what] == [kind]


@pytest.mark.parametrize("words", ['"$@"', "$@", "${@}", '"$*"', "$ARGS", "${ARGS}"])
def test_the_script_s_own_arguments_are_named_and_leave_no_empty_argument(words: str) -> None:
    moved = move_script(f'{HEAD}ARGS="$@"\nsrun torchrun -m titan.train --x {words}\n', file="")
    assert moved.document()["entrypoint"] == {"module": "titan.train", "args": ["--x"]}
    found = [each for each in moved.remarks if each.what == "$@"]
    assert [(each.line, each.kind) for each in found] == [(4, Kind.NOT_CARRIED)]


@pytest.mark.parametrize(
    ("command", "target", "args"),
    [
        ("litgpt pretrain --devices 8", "litgpt", ["pretrain", "--devices", "8"]),
        ("./select_gpu python a.py --x", "./select_gpu", ["python", "a.py", "--x"]),
    ],
)
def test_another_program_under_srun_is_started_once_a_rank(command: str, target: str, args: list[str]) -> None:
    text = f"#SBATCH --ntasks-per-node=4\nsrun nvidia-smi\nsrun --ntasks-per-node=1 mkdir -p /tmp/x\nsrun {command}\n"
    document = move_script(text, file="").document()
    assert document["entrypoint"] == {"command": target, "args": args}
    assert (document["workers_per_node"], document["worker_env"]) == (4, {"slurm": "rank"})
    assert len(document["setup"]) == 2


@pytest.mark.parametrize(
    "lines",
    [
        'A="--nproc_per_node 4"\nA+=" --max_restarts $N"\nN=2',
        "A=--nproc_per_node=4\nexport A+=' --max_restarts 2'",
        "A=(--nproc_per_node 4)\nA+=(--max_restarts 2) # more",
    ],
)
def test_what_is_appended_to_a_variable_is_read(lines: str) -> None:
    words = '"${A[@]}"' if "(" in lines else "$A"
    document = move_script(f"{HEAD}{lines}\ntorchrun {words} a.py --x\n", file="").document()
    assert document["entrypoint"] == {"script": "a.py", "args": ["--x"]}
    assert (document["workers_per_node"], document["restart"]) == (4, {"max_restarts": 2})


def test_an_array_that_an_if_may_make_longer_is_named() -> None:
    text = f'{HEAD}A=(--x)\nif true; then A+=(--y); fi\ntorchrun a.py "${{A[@]}}"\n'
    found = [(each.line, each.kind) for each in move_script(text, file="").remarks if each.what == "${A[@]}"]
    assert found == [(5, Kind.CHANGED)]


@pytest.mark.parametrize(
    ("word", "argument", "is_named"),
    [
        ("tcp://$MASTER_ADDR:3456", "tcp://${MASTER_ADDR}:${MASTER_PORT}", True),
        ("--dist-url=tcp://$(hostname):3456/x", "--dist-url=tcp://${MASTER_ADDR}:${MASTER_PORT}/x", True),
        ("tcp://$MASTER_ADDR:${MASTER_PORT}", "tcp://${MASTER_ADDR}:${MASTER_PORT}", False),
        ("--master_port=3456", "--master_port=${MASTER_PORT}", True),
        ("--master-addr=$HEAD", "--master-addr=${MASTER_ADDR}", True),
        ("--master_port_range=3", "--master_port_range=3", False),
    ],
)
def test_the_ranks_are_told_the_agents_address(word: str, argument: str, is_named: bool) -> None:
    before = "export MASTER_ADDR=$(hostname)\nexport MASTER_PORT=3456\n"
    moved = move_script(f"{HEAD}{before}srun python a.py {word}\n", file="")
    assert moved.document()["entrypoint"]["args"] == [argument]
    assert ([each.kind for each in moved.remarks if each.what == word] == [Kind.CHANGED]) is is_named
    assert moved.setup == []


def test_an_option_of_an_address_takes_the_next_word() -> None:
    moved = move_script(f"{HEAD}srun -- python a.py --master_addr $(hostname) --master_port 29500 --x\n", file="")
    args = ["--master_addr", "${MASTER_ADDR}", "--master_port", "${MASTER_PORT}", "--x"]
    assert moved.document()["entrypoint"]["args"] == args


@pytest.mark.parametrize(
    "text",
    [
        "cat > a <<'X'\ntorchrun b.py\nX",
        'cat > a <<"X" || exit 1\ntorchrun b.py\nX',
        "cat > a <<\\X\ntorchrun b.py\nX",
        "cat > a <<-X\n\ttorchrun b.py\n\tX",
        "cat > a << 'X' > /dev/null\nit's one\nX",
        'read -r A B <<< "$PAIR"',
        "read -r A B <<<$PAIR",
        "read -r A B <<<word",
        "echo 'a <<X b'",
    ],
)
def test_a_here_document_ends_at_its_own_word(text: str) -> None:
    assert [each.text for each in statements(f"{text}\ntorchrun a.py\n")] == [text, "torchrun a.py"]


def test_a_long_name_that_is_exported_is_read_at_once() -> None:
    """A pattern that tries all ways to part a name into words would take minutes for this one."""
    text = f"export {'TORCH_NCCL_ASYNC_ERROR_HANDLING_' * 3}=1\ntorchrun a.py\n"
    code = f"from hpc_elastic.moving_in.script import move_script; move_script({text!r}, file='')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_server_in_the_background_is_not_the_training() -> None:
    text = f"{HEAD}srun -n1 python server.py &\nsrun bash launch.sh\n"
    moved = move_script(text, file="")
    assert (moved.launch_line, moved.setup) == (4, [])
    assert (3, Kind.NOT_CARRIED) in [(each.line, each.kind) for each in moved.remarks]


@pytest.mark.parametrize("behind", ["wait", "wait $!\nsrun python eval.py", "wait\npython eval.py"])
def test_a_training_in_the_background_that_is_waited_for_is_the_training(behind: str) -> None:
    text = f"{HEAD}srun python prepare.py\nsrun torchrun a.py &\n{behind}\n"
    assert move_script(text, file="").launch_line == 4


def test_a_variable_in_front_of_the_training_is_named_and_left_out() -> None:
    profile = 'if [ -n "$PROFILE" ]; then NSYS="nsys profile"; fi'
    moved = move_script(f'{HEAD}{profile}\nsrun bash -c "${{NSYS}} python a.py --x"\n', file="")
    assert moved.document()["entrypoint"] == {"script": "a.py", "args": ["--x"]}
    assert [each.what for each in moved.remarks if each.kind is Kind.NOT_CARRIED] == ["${NSYS}"]


def test_a_shell_s_own_variable_is_not_that_of_the_script_around_it() -> None:
    text = f"{HEAD}LR=1\nexport WD=2\nsrun bash -c 'LR=3; python a.py --lr $LR --wd $WD'\n"
    assert move_script(text, file="").document()["entrypoint"]["args"] == ["--lr", "${LR}", "--wd", "2"]


def test_a_launcher_that_ran_on_one_node_of_several_is_named() -> None:
    text = "#SBATCH -N 2\ntorchrun --max-restarts=1 a.py\n"
    assert ["all 2 nodes" in each.why for each in move_script(text, file="").remarks] == [True]
    assert not move_script(text.replace("torchrun", "srun torchrun"), file="").remarks
