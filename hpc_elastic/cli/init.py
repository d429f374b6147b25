"""`hpc-elastic init`: writes a commented job file, of answers to a few questions or of an old batch script."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hpc_elastic.cli.arguments import VerbParser
from hpc_elastic.errors import JobError, RunDirectoryError, UsageError
from hpc_elastic.job.names import name_of_file

_EXAMPLES = """\
  hpc-elastic init train.py --nodes 2 --time 4h
  hpc-elastic init --from train.sbatch
  hpc-elastic init --from train.sbatch -o - | less
"""
_MOST_BYTES = 1 << 20  # of a batch script
_HEAD = "look at it with `hpc-elastic check`, start it with `hpc-elastic submit`"
_QUESTIONS = (
    ("script", "script that each rank runs", "train.py"),
    ("nodes", "nodes", "1"),
    ("workers_per_node", "ranks a node (auto: one for each GPU)", "auto"),
    ("time", "time limit, such as 4h or 30m", "1h"),
    ("account", "account (empty: none)", ""),
    ("partition", "partition (empty: the default)", ""),
)


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "init",
        usage="[SCRIPT | --from OLD] [options]",
        description="Write a job file. With --from it does what an old batch script does, which\n"
        "starts its training by torchrun, srun python, accelerate, deepspeed or\n"
        "ft_launcher; every line is named that could not be carried over. The script is\n"
        "not run.",
        examples=_EXAMPLES,
    )
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help="what each rank runs; without it you are asked")
    parser.add_argument("--from", metavar="OLD", dest="old", help="a batch script; `-` is standard input")
    parser.add_argument("--nodes", metavar="N", help="how many nodes")
    parser.add_argument("--workers-per-node", metavar="N", help="ranks a node, or auto: one for each GPU")
    parser.add_argument("--time", metavar="TIME", help="the time limit, such as 4h")
    parser.add_argument("--account", metavar="NAME", help="the account that Slurm charges")
    parser.add_argument("--partition", metavar="NAME", help="the partition")
    parser.add_argument("-o", "--output", metavar="FILE", default="job.yaml", help="default: job.yaml; `-` prints it")
    parser.add_argument("--force", action="store_true", help="write over a file that is there")
    parser.add_argument("--all", action="store_true", help="also name the lines of OLD that are not needed any more")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_intermixed_args(argv)
    is_print = arguments.output == "-"
    if not is_print and not arguments.force and os.path.lexists(arguments.output):
        raise UsageError(
            f"{arguments.output} is there already", tip="-o names another file, --force writes over this one"
        )
    given = {name: getattr(arguments, name) for name, _, _ in _QUESTIONS if getattr(arguments, name) is not None}
    if arguments.old is not None:
        if given:
            raise UsageError(f"--from takes all of the job from the script; found {', '.join(given)} beside it")
        text = _move(arguments.old, is_all=arguments.all)
    else:
        text = _write_new(_ask(given) if "script" not in given else given)
    if is_print:
        print(text, end="")
        return 0
    _save(arguments.output, text)
    print(f"wrote {arguments.output}: {_HEAD}", file=sys.stderr)
    return 0


def _ask(given: Mapping[str, str]) -> dict[str, str]:
    """Return the answers of a person at a terminal to what was not given."""
    if not sys.stdin.isatty():
        tip = "`hpc-elastic init train.py --nodes 2`, or `hpc-elastic init --from OLD` for a batch script"
        raise UsageError("there is no script, and no terminal to ask for it", tip=tip)
    answers = dict(given)
    for name, question, default in _QUESTIONS:
        if name not in answers:
            shown = f" [{default}]" if default else ""
            print(f"{question}{shown}: ", end="", file=sys.stderr, flush=True)
            answers[name] = sys.stdin.readline().strip() or default
    return answers


def _write_new(answers: Mapping[str, str]) -> str:
    from hpc_elastic.job.schema import default_of

    path = answers["script"]
    keys: dict[str, Any] = {
        "name": name_of_file(path),
        "entrypoint": {"script": path},
        "nodes": _number(answers.get("nodes") or "1"),
        "workers_per_node": _number(answers.get("workers_per_node") or "auto"),
    }
    if answers.get("time"):
        keys["time"] = answers["time"]
    sbatch = {name: answers[name] for name in ("account", "partition") if answers.get(name)}
    if sbatch:
        keys["sbatch"] = sbatch
    keys["restart"] = {"max_restarts": default_of("restart.max_restarts")}
    keys["requeue"] = {"max": default_of("requeue.max")}
    return _checked(keys, ["A job for hpc-elastic: " + _HEAD + "."], [], "")


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else text


def _move(path: str, *, is_all: bool) -> str:
    from hpc_elastic.moving_in.moved import Kind
    from hpc_elastic.moving_in.script import move_script

    file = "standard input" if path == "-" else path
    moved = move_script(_read(path), file=file)
    remarks = sorted(moved.remarks, key=lambda remark: remark.line)
    head = [f"What {os.path.basename(file)} does, for hpc-elastic: {_HEAD}."]
    keys = dict(moved.document())
    if moved.setup and not any(line.startswith(("set -e", "set -o errexit")) for line in moved.setup):
        head.append("A line of setup that fails ends the job, with exit code 3.")
    keys.setdefault("name", name_of_file(path) if path != "-" else "job")
    text = _checked({"name": keys.pop("name"), **keys}, head, remarks, os.path.basename(file))
    shown = [remark for remark in remarks if is_all or remark.kind is not Kind.NOT_NEEDED]
    for remark in shown:
        print(remark.describe(file), file=sys.stderr)
    if left := len(remarks) - len(shown):
        print(
            f"{left} {'line is' if left == 1 else 'lines are'} not needed any more; --all names them", file=sys.stderr
        )
    return text


def _read(path: str) -> str:
    try:
        if path == "-":
            content = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with open(path, "rb") as file:
                content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise JobError([f"{path}: expected a batch script of at most 1 MiB of text"])
        return content.decode()
    except UnicodeDecodeError:
        raise JobError([f"{path}: expected a batch script, found bytes that are no UTF-8 text"]) from None
    except OSError as error:
        raise JobError([f"{path}: {error.strerror}"], tip="--from takes the path of a batch script") from error


def _checked(keys: Mapping[str, Any], head: Sequence[str], remarks: Sequence[Any], file: str) -> str:
    """Return the text of a job file that `check` accepts.

    Raises:
        JobError: a value of it makes no sense.
    """
    from hpc_elastic.job.parse import parse_job
    from hpc_elastic.job.spec import JobSpec
    from hpc_elastic.moving_in.job_file import commented

    meanings = {name: str(each.description) for name, each in JobSpec.model_fields.items() if each.description}
    text = commented(keys, meanings, head=head, remarks=remarks, file=file)
    parse_job(text, file="the job file to be written")
    return text


def _save(path: str, text: str) -> None:
    """Write the file, whole or not at all."""
    from hpc_elastic.rundir.store import write_bytes

    try:
        write_bytes(os.path.abspath(path), text.encode())
    except RunDirectoryError as error:
        raise JobError([error.message]) from error
