"""Finds a template with all that it extends or includes, and refuses one that breaks the contract.

A template is named, below the shipped `templates/`, or a path, relative to the job file. What it
refers to is looked up below the shipped folder and beside the template itself, so that an admin's
file can say `{% extends "slurm/job.sh.j2" %}`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from jinja2 import BaseLoader, Environment, FunctionLoader, StrictUndefined, TemplateSyntaxError, meta, nodes

from hpc_elastic.errors import TemplateError, UnknownTemplateError
from hpc_elastic.render.contract import why_refused
from hpc_elastic.render.lint import (
    BLOCKS,
    find_blocks,
    find_parent,
    find_quoted_substitutions,
    find_stray_text,
    find_unknown_block,
)
from hpc_elastic.render.quoting import ShellText, shell_word, shell_words
from hpc_elastic.shipped import shipped_directory

CONTRACT = "templates/README.md has the contract"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file of a template. `path` is for messages."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A template in memory: its own name, and the files by the names they refer to each other with."""

    name: str
    sources: Mapping[str, Source]


class ScriptEnvironment(Environment):
    """Jinja2 with one rule: `{{ x }}` writes `x` as a shell word, whatever it is.

    A list becomes several words. Text that came from a template, as `{{ super() }}` gives it, is
    shell already and stays as it is; `concat`, with which Jinja2 joins such text, marks it so.
    """

    concat = staticmethod(lambda parts: ShellText("".join(parts)))

    def __init__(self, loader: BaseLoader | None = None) -> None:
        super().__init__(
            loader=loader,
            undefined=StrictUndefined,
            finalize=_as_shell,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
        )


def script_environment(template: Template) -> ScriptEnvironment:
    """Jinja2 for one template; it reads no files, all is in memory."""

    def find(name: str) -> tuple[str, str, Callable[[], bool]] | None:
        source = template.sources.get(name)
        return (source.text, source.path, lambda: True) if source else None

    return ScriptEnvironment(FunctionLoader(find))


def load_template(name: str, *, job_dir: str) -> Template:
    """Read a template and its parents, and check them.

    Args:
        name: a name below the shipped templates, as `slurm/job.sh.j2`, or a path.
        job_dir: what a relative path is relative to.

    Raises:
        TemplateError: it is missing, or one of its files breaks the contract; file and line are named.
    """
    path = _find(name, job_dir)
    folders = (shipped_directory("templates"), os.path.dirname(path))
    sources = {name: Source(path=path, text=_read(path))}
    environment = ScriptEnvironment()
    waiting = [name]
    while waiting:
        source = sources[waiting.pop()]
        tree = parse_source(environment, source)
        for reference, line in _references(tree, source):
            if reference not in sources:
                sources[reference] = _read_reference(reference, folders, source, line)
                waiting.append(reference)
    template = Template(name=name, sources=sources)
    check_template(template)
    return template


def read_template(name: str, *, job_dir: str) -> Source:
    """Read one file of a template, without what it refers to and without checking it.

    Raises:
        TemplateError: it is missing or cannot be read.
    """
    path = _find(name, job_dir)
    return Source(path=path, text=_read(path))


class Templates:
    """Templates by name, each read, checked and compiled once for however many scripts.

    Args:
        job_dir: what a relative path is relative to.
    """

    def __init__(self, job_dir: str) -> None:
        self._job_dir = job_dir
        self._loaded: dict[str, tuple[Template, ScriptEnvironment]] = {}

    def load(self, name: str) -> tuple[Template, ScriptEnvironment]:
        """Return the template and the Jinja2 that has it.

        Raises:
            TemplateError: as `load_template`.
        """
        if name not in self._loaded:
            template = load_template(name, job_dir=self._job_dir)
            self._loaded[name] = template, script_environment(template)
        return self._loaded[name]


def load_array_template(scheduler: str) -> Template:
    """Read the template of the script of an array of runs; it has no blocks, and no site one of its own.

    Raises:
        TemplateError: it is missing or cannot be read.
    """
    name = f"{scheduler}/array.sh.j2"
    path = os.path.join(shipped_directory("templates"), name)
    return Template(name=name, sources={name: Source(path=path, text=_read(path))})


def check_template(template: Template) -> None:
    """Check quoting and blocks of a template and of all that it refers to.

    Raises:
        TemplateError: with the file and the line.
    """
    environment = ScriptEnvironment()
    for source in template.sources.values():
        if refused := why_refused(source.text):
            _fail(source, 1, refused)
        for line, place in find_quoted_substitutions(environment, source.text):
            _fail(source, line, f"a substitution stands inside {place}", "write {{ }} bare: it brings its own quotes")
    (root, root_tree), *children = reversed(list(_chain(environment, template)))
    known = set(find_blocks(root_tree))
    missing = [block for block in BLOCKS if block not in known]
    if missing == list(BLOCKS):
        _fail(
            root,
            1,
            "it has no blocks; a part is tried with the template that includes it",
            'extend "slurm/job.sh.j2" or "base/job.sh.j2"',
        )
    if missing:
        _fail(root, 1, f"no block {missing[0]}", f'define {", ".join(missing)}, or extend "base/job.sh.j2"')
    for source, tree in children:
        _check_child(source, tree, known)
        known |= set(find_blocks(tree))


def _check_child(source: Source, tree: nodes.Template, known: set[str]) -> None:
    """Refuse what Jinja2 would drop in silence: a misspelled block, and text outside of the blocks."""
    if unknown := find_unknown_block(tree, known):
        line, block = unknown
        close = difflib.get_close_matches(block, known, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        _fail(source, line, f"unknown block {block}{hint}", f"the blocks are {', '.join(BLOCKS)}")
    if stray := find_stray_text(tree):
        _fail(source, stray, "text outside of the blocks would be lost", "move it into a block, with {{ super() }}")


def parse_source(environment: Environment, source: Source) -> nodes.Template:
    """Return the syntax tree of one file.

    Raises:
        TemplateError: it does not parse.
    """
    try:
        return environment.parse(source.text)
    except TemplateSyntaxError as error:
        _fail(source, error.lineno, error.message or "syntax error", cause=error)


def find_launch_block(template: Template) -> tuple[Source, int]:
    """Return the file and the line of the launch block that is in force."""
    for source, tree in _chain(ScriptEnvironment(), template):
        line = find_blocks(tree).get("launch")
        if line is not None:
            return source, line
    return template.sources[template.name], 1


def _chain(environment: Environment, template: Template) -> Iterator[tuple[Source, nodes.Template]]:
    """Return the template, its parent, and so on; the last one is the root."""
    name: str | None = template.name
    seen: set[str] = set()
    while name is not None:
        source = template.sources[name]
        if name in seen:
            _fail(source, 1, "the template extends itself")
        seen.add(name)
        tree = parse_source(environment, source)
        parent = find_parent(tree)
        yield source, tree
        name = parent[1] if parent else None


def _references(tree: nodes.Template, source: Source) -> Iterator[tuple[str, int]]:
    lines = {
        constant.value: node.lineno
        for node in tree.find_all((nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport))
        for constant in node.find_all(nodes.Const)
    }
    for reference in meta.find_referenced_templates(tree):
        if reference is None:
            _fail(source, 1, "the name of a template must be a constant", "write its name in quotes")
        yield reference, lines.get(reference, 1)


def _find(name: str, job_dir: str) -> str:
    candidates = (os.path.join(shipped_directory("templates"), name), os.path.join(job_dir, os.path.expanduser(name)))
    for candidate in candidates:
        if os.path.isfile(candidate):
            return os.path.abspath(candidate)
    where = "there is no such file" if candidates[0] == candidates[1] else "neither {} nor {} is a file"
    raise UnknownTemplateError(
        f"no template {name}: {where.format(*candidates)}",
        tip="`template` is a name such as slurm/job.sh.j2, or a path relative to the job file",
    )


def _read_reference(name: str, folders: tuple[str, ...], source: Source, line: int) -> Source:
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return Source(path=path, text=_read(path))
    return _fail(source, line, f"no template {name}", f"it is looked up in {' and '.join(folders)}")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise TemplateError(f"cannot read the template {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TemplateError(f"cannot read the template {path}: {error}", tip="it must be a UTF-8 text file") from error


def _fail(source: Source, line: int, message: str, tip: str = CONTRACT, *, cause: Exception | None = None) -> NoReturn:
    raise TemplateError(f"{source.path}:{line}: {message}", tip=tip) from cause


def _as_shell(value: object) -> str:
    """Write the value of `{{ }}`."""
    if isinstance(value, ShellText):
        return value
    if isinstance(value, str):
        return shell_word(str.__str__(value))  # a plain str: Jinja2's Markup would escape for HTML
    if isinstance(value, (list, tuple)):
        return shell_words(value)
    if type(value) is int:
        return ShellText(value)
    if isinstance(value, StrictUndefined):
        return str(value)  # raises what is wrong
    raise TypeError(f"{value!r} cannot stand in a script; guard it with {{% if %}}")
