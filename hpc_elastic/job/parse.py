"""The text of job.yaml, and `--set` overrides, as a checked JobSpec."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from hpc_elastic.errors import JobError
from hpc_elastic.job.check import check_document, note_double_options
from hpc_elastic.job.conflicts import Conflict, find_conflicts
from hpc_elastic.job.document import ITEM, Document
from hpc_elastic.job.names import name_of_file
from hpc_elastic.job.parameters import find_references, put_in
from hpc_elastic.job.problems import KeyPath, Problem, format_problems
from hpc_elastic.job.roles import check_no_function, check_work
from hpc_elastic.job.spec import JobSpec

# At and below these keys a scalar is what its author typed.
TEXT_PATHS: Sequence[KeyPath] = (
    ("entrypoint",),
    ("env",),
    ("logs", "duplicate_stderr_filters"),
    ("logs", "duplicate_stdout_filters"),
    ("logs", "prefix"),
    ("name",),
    ("preload",),
    ("progress",),
    ("python",),
    ("role",),
    *(("roles", ITEM, key) for key in ("name", "entrypoint", "env")),
    ("sbatch",),
    ("setup",),
    ("site",),
    ("stage",),
    ("template",),
    ("workdir",),
)
_PART = re.compile(r"(?P<key>[^\[\]]+)(?P<items>(\[[0-9]{1,6}\])*)", re.ASCII)


def parse_job(
    text: str,
    *,
    file: str,
    overrides: Sequence[str] = (),
    has_function: bool = False,
    parameters: Mapping[str, str] | None = None,
) -> JobSpec:
    """Read a job file.

    Args:
        text: what is in the file.
        file: its name, for messages and for the job's default name; empty if a program wrote the text.
        overrides: `key.path=value`, of `--set`; the value is YAML, and the last one of a key counts. An item
            of a list is `key[0]`.
        has_function: whether the job comes with a function, for `entrypoint.function`.
        parameters: values of names that stand as `${NAME}` where variables may; on the node they are no variables.

    Raises:
        JobError: something is wrong; the error holds all problems, a line each.
    """
    document = _read(text, file, overrides)
    put_in(document.data, parameters or {})
    note_double_options(document, ("sbatch",))
    spec = check_document(document, JobSpec, partial(_find_conflicts, has_function=has_function))
    if spec is None or document.problems:
        raise JobError(format_problems(document.problems))
    return spec if spec.name else spec.model_copy(update={"name": name_of_file(file)})


def names_in_job(text: str, *, file: str, overrides: Sequence[str] = ()) -> frozenset[str]:
    """Return the names that stand as `${NAME}` in a job file with overrides, without checking the job.

    Raises:
        JobError: the text is not YAML.
    """
    return find_references(_read(text, file, overrides).data)


def locate_problems(
    text: str, *, file: str, overrides: Sequence[str], problems: Sequence[tuple[KeyPath, str]]
) -> list[str]:
    """Return a line for each problem with a value of a valid job, with the value's place in the file.

    Args:
        text: what is in the file.
        file: its name.
        overrides: `key.path=value`, of `--set`.
        problems: paths of keys, and what is wrong with their values.
    """
    document = _read(text, file, overrides)
    for path, message in problems:
        document.add_problem(path, message)
    return format_problems(document.problems)


def find_places(text: str, *, file: str, overrides: Sequence[str]) -> Callable[[KeyPath], str]:
    """Return a function that tells where the value of a key of a valid job came from: `job.yaml:3` or `--set`.

    A key that the file spells otherwise, as `-A` for `account`, has the place of the map that it is in.
    """
    document = _read(text, file, overrides)

    def place(path: KeyPath) -> str:
        for length in range(len(path), 0, -1):
            if path[:length] in document.overrides:
                return "--set"
            if path[:length] in document.lines:
                return f"{file}:{document.lines[path[:length]]}"
        return file

    return place


def _read(text: str, file: str, overrides: Sequence[str]) -> Document:
    document = Document(file=file, text_paths=TEXT_PATHS)
    document.read(text)
    if document.problems and not document.data:  # not YAML at all: problems of single keys would be noise
        raise JobError(format_problems(document.problems))
    for override in overrides:
        _override(document, override)
    return document


def _override(document: Document, override: str) -> None:
    name, equals, text = override.partition("=")
    path = _read_path(name)
    if not equals or path is None:
        message = "expected key.path=value, such as restart.max_restarts=5"
        document.problems.append(Problem(file=document.file, line=None, path=(override,), message=message))
    else:
        document.override(path, text)


def _read_path(name: str) -> KeyPath | None:
    """Return the parts of a path such as `roles[0].nodes`; None if the text is not a path."""
    path: list[str | int] = []
    for part in name.split("."):
        match = _PART.fullmatch(part.strip())
        if match is None:
            return None
        path += [match["key"], *map(int, re.findall("[0-9]+", match["items"]))]
    return tuple(path)


def _find_conflicts(spec: JobSpec, *, has_function: bool) -> Iterator[Conflict]:
    yield from check_work(spec)
    if not has_function:
        yield from check_no_function(spec)
    yield from find_conflicts(spec)
