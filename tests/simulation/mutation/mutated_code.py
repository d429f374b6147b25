"""Which code `mutate` edits: all that decides what happens to a run, and nothing that only people read or nobody plays.

Left out, each class by its rule:

- decorators: how a class is built (frozen, slots, keyword-only) is nothing that a run does;
- words: a call that tells people something (`WORDS`), what is told to the telemetry (`TOLD`), a text, the error that is
  raised; a choice between two texts; a local name that is only read where something is said, and statements that only
  make such a name or say something; a function whose text is only said, and one that makes only log lines and events;
- `strict` of a zip, which only finds out what cannot be;
- the process's own settings (`PROCESS_ONLY`): the simulation has no process to tune;
- a default of a keyword that every call in the code that is played names, also of a class (`_is_always_named`);
- a constant of a module that only words are made of, and what is stored where nothing reads it but to say it;
- a field of such a constant that only code of other hosts reads, as the shortest lease that torchrun's settings allow;
- methods in whose place the simulation has its own (`replaced`);
- functions that no name leads to from what the simulation plays (`reached`): those of other hosts, as torchrun.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
# Who only speaks to people: what is said to them is not checked here.
WORDS = frozenset(
    {
        "Log",
        "Note",
        "say",
        "_say",
        "_tell",
        "_warn",
        "note",
        "best_effort",
        "opening",
        "announcement",
        "tell",
        "met",
        "print",
        "_print",
    }
)
DOES_MORE = frozenset({"best_effort", "tell", "met"})  # when these are called does matter
TOLD = frozenset({"_telemetry"})
PROCESS_ONLY = frozenset({"rest_with"})
PLAYED = ("membership", "agent/drivers", "agent/net", "agent/records", "agent/rendezvous")
UNPLAYED = ("telemetry.py", "textfile.py")  # of these
Function = (ast.FunctionDef, ast.AsyncFunctionDef)
Scope = frozenset[str]  # local names that are only said


def nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """In one order, those that may matter to other things than people's screens."""
    yield from _within(tree, frozenset())


def _within(
    node: ast.AST, said: Scope, owner: str = "", defaults: frozenset[ast.expr] = frozenset()
) -> Iterator[ast.AST]:
    """Those in a node, but for these defaults; `owner` is the class that it is in directly."""
    decorators = set(getattr(node, "decorator_list", ()))
    if isinstance(node, ast.arguments):
        decorators |= defaults
    named: frozenset[ast.expr] = frozenset()
    if isinstance(node, Function):
        named = frozenset(value for name, value in _keyword_defaults(node) if _is_always_named(node, name, owner))
    owner = node.name if isinstance(node, ast.ClassDef) else ""
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.Module) and _is_only_read_to_say(child):
            continue
        if _is_stored_in_vain(child):
            continue
        if isinstance(child, ast.keyword) and child.arg == "strict":
            continue
        if child in decorators or _is_of_words(child, said) or isinstance(child, (ast.AnnAssign, ast.arg)):
            continue
        if isinstance(child, Function):
            if _is_left_out(child):
                continue
            yield child
            yield from _within(child, said | _said_names(child), owner)
        else:
            if not (
                isinstance(child, ast.Return)
                and isinstance(child.value, ast.BoolOp)
                and _is_of_words(child.value, said)
            ):
                yield child
            others = _fields_of_others(child) if isinstance(node, ast.Module) else frozenset()
            yield from (each for each in _within(child, said, defaults=named) if each not in others)


def _fields_of_others(statement: ast.AST) -> frozenset[ast.AST]:
    """All nodes of the fields of a module's constant that nothing reads which is played."""
    if not isinstance(statement, ast.Assign):
        return frozenset()
    read = _read_unsaid() | _named_by_simulation()
    fields = [each for each in ast.walk(statement) if isinstance(each, ast.keyword) and each.arg not in read]
    return frozenset(node for each in fields for node in ast.walk(each))


def _keyword_defaults(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, ast.expr]]:
    for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if default is not None:
            yield argument.arg, default


@lru_cache(maxsize=1)
def _keywords_of_calls() -> dict[tuple[str, bool], list[frozenset[str | None]]]:
    """By the name of what is called, and whether it is of an object, the keywords of each call; None: a mapping's."""
    found: dict[tuple[str, bool], list[frozenset[str | None]]] = {}
    for tree in _trees():
        for call in ast.walk(tree):
            if isinstance(call, ast.Call):
                key = _name_of(call), isinstance(call.func, ast.Attribute)
                found.setdefault(key, []).append(frozenset(each.arg for each in call.keywords))
    return found


def _is_always_named(function: ast.FunctionDef | ast.AsyncFunctionDef, keyword: str, owner: str) -> bool:
    """Whether each call gives a value for this keyword; of a constructor, whether each call of its class does."""
    if function.name == "__init__":
        calls = [each for is_of_object in (False, True) for each in _keywords_of_calls().get((owner, is_of_object), [])]
        return bool(calls) and all(keyword in each for each in calls) and owner not in _called_by_simulation()
    is_method = bool(function.args.args) and function.args.args[0].arg == "self"
    calls = _keywords_of_calls().get((function.name, is_method), [])
    return bool(calls) and all(keyword in each for each in calls) and function.name not in _named_by_simulation()


@lru_cache(maxsize=1)
def _called_by_simulation() -> frozenset[str]:
    """Names of functions and classes that the simulation calls."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "tests" / "simulation").rglob("*.py")]
    return frozenset(_name_of(each) for tree in trees for each in ast.walk(tree) if isinstance(each, ast.Call))


def _is_only_read_to_say(statement: ast.AST) -> bool:
    """Whether a statement of a module makes a constant that only words are made of."""
    if not isinstance(statement, ast.Assign) or not all(isinstance(each, ast.Name) for each in statement.targets):
        return False
    names = {each.id for each in statement.targets if isinstance(each, ast.Name)}
    return names.isdisjoint(_read_unsaid()) and names.isdisjoint(_named_by_simulation())


def _is_stored_in_vain(statement: ast.AST) -> bool:
    """Whether a statement only stores something in attributes that nothing reads but to say it."""
    if not isinstance(statement, ast.Assign) or any(isinstance(each, ast.Call) for each in ast.walk(statement.value)):
        return False
    names = {each.attr for each in statement.targets if isinstance(each, ast.Attribute)}
    return len(names) == len(statement.targets) and names.isdisjoint(_attributes_read() | _named_by_simulation())


@lru_cache(maxsize=1)
def _attributes_read() -> frozenset[str]:
    """Names of attributes that are read where more than words is made of them."""
    found: set[str] = set()
    for function in _functions():
        if function.name not in replaced():
            inside = _unsaid(function, _said_names(function))
            found |= {
                each.attr for each in inside if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load)
            }
    return frozenset(found)


def _is_left_out(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return (
        function.name in replaced()
        or function.name not in reached()
        or function.name in _only_said()
        or _makes_only_words(function)
    )


# Words.


def _name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_text(node: ast.AST | None) -> bool:
    """Whether it is a text for certain."""
    if isinstance(node, ast.IfExp):
        return _is_text(node.body) and _is_text(node.orelse)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join":
        return _is_text(node.func.value)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_of_words(node: ast.AST, said: Scope) -> bool:
    """Whether a node only says something, in a function that has these names for what it says."""
    if isinstance(node, (ast.JoinedStr, ast.Raise)):
        return True
    if isinstance(node, ast.IfExp):
        return _is_text(node)
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return _is_of_words(node.elt, said)
    if isinstance(node, ast.BoolOp):
        return all(map(_is_text, node.values))
    if isinstance(node, (ast.If, ast.For)):
        return all(_only_says(each, said) for each in (*node.body, *node.orelse))
    return _says(node, said) if isinstance(node, (ast.stmt, ast.Call)) else False


def _says(node: ast.AST, said: Scope) -> bool:
    if isinstance(node, ast.Assign):
        return all(isinstance(each, ast.Name) and each.id in said for each in node.targets)
    if isinstance(node, ast.AugAssign):
        return isinstance(node.target, ast.Name) and node.target.id in said
    call = node.value if isinstance(node, ast.Expr) else node
    if not isinstance(call, ast.Call):
        return False
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(owner, ast.Name) and owner.id in said and _name_of(call) == "append":
        return True
    is_told = isinstance(owner, ast.Attribute) and owner.attr in TOLD
    return is_told or _name_of(call) in WORDS | PROCESS_ONLY


def _only_says(statement: ast.stmt, said: Scope) -> bool:
    """Whether a statement in a branch matters to people alone; an error that is raised there does matter."""
    call = statement.value if isinstance(statement, ast.Expr) else statement
    does_more = isinstance(call, ast.Call) and _name_of(call) in DOES_MORE
    return not isinstance(statement, ast.Raise) and not does_more and _is_of_words(statement, said)


@cache
def _said_names(function: ast.AST) -> Scope:
    """Names that the function gives to something and reads only where it says something."""
    stored = {each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    said: Scope = frozenset(stored)
    while True:  # a list of lines is only read where lines are added to it
        outside = {each.id for each in _unsaid(function, said) if isinstance(each, ast.Name)}
        left = frozenset(said - outside)
        if left == said:
            return said
        said = left


def _is_text_function(node: ast.AST) -> bool:
    return isinstance(node, Function) and node.returns is not None and _text(node.returns) == "str"


def _unsaid(node: ast.AST, said: Scope) -> Iterator[ast.AST]:
    """The names that are read where nothing is said."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name) and not isinstance(child.ctx, ast.Load):
            continue
        if isinstance(child, ast.Return) and isinstance(child.value, ast.JoinedStr) and _is_text_function(node):
            yield from ast.walk(child.value)  # a caller may compare it
        elif isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call):  # which error it is does matter
            yield child.exc.func
        elif not _is_of_words(child, said):
            yield child
            yield from _unsaid(child, said)


def _makes_only_words(function: ast.AST) -> bool:
    """Whether its results are log lines and events, and it does nothing else."""
    returns = [each for each in ast.walk(function) if isinstance(each, ast.Return)]
    said = _said_names(function)
    return bool(returns) and all(_is_list_of_words(each.value, said) for each in returns) and not _has_effect(function)


def _is_list_of_words(node: ast.AST | None, said: Scope) -> bool:
    if isinstance(node, ast.List):
        return all(
            _is_of_words(each.value if isinstance(each, ast.Starred) else each, said)
            or (isinstance(each, (ast.Starred, ast.Name)) and _is_said_value(each, said))
            for each in node.elts
        ) and bool(node.elts)
    return isinstance(node, ast.ListComp) and _is_of_words(node, said)


def _is_said_value(node: ast.expr, said: Scope) -> bool:
    value = node.value if isinstance(node, ast.Starred) else node
    return isinstance(value, ast.Name) and value.id in said


def _has_effect(function: ast.AST) -> bool:
    said = _said_names(function)
    for each in ast.walk(function):
        if isinstance(each, (ast.Assign, ast.AugAssign)):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            if any(isinstance(target, ast.Attribute) for target in targets):
                return True
        elif isinstance(each, ast.Expr) and isinstance(each.value, (ast.Call, ast.Await)) and not _says(each, said):
            return True
    return False


# Functions.


@lru_cache(maxsize=1)
def _trees() -> Sequence[ast.Module]:
    """Of the modules that the simulation plays."""
    paths = [path for folder in PLAYED for path in sorted((ROOT / "hpc_elastic" / folder).glob("*.py"))]
    paths.append(ROOT / "hpc_elastic" / "agent" / "policy.py")
    paths += [ROOT / "hpc_elastic" / "failures" / f"{name}.py" for name in ("describe", "root_cause")]
    return [ast.parse(path.read_text()) for path in paths if path.name not in UNPLAYED]


def _functions() -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for tree in _trees():
        yield from (each for each in ast.walk(tree) if isinstance(each, Function))


@lru_cache(maxsize=1)
def replaced() -> frozenset[str]:
    """Methods of the journal that the simulation has instead of the shipped ones.

    They are read and not loaded: no module of the package may be, before one of them is edited.
    """
    records = ROOT / "hpc_elastic" / "agent" / "records"
    parts = {"journal": "Journal", "allocation_claims": "AllocationClaims", "event_log": "EventLog"}  # its bases, too
    shipped = {name for module, part in parts.items() for name in _methods(records / f"{module}.py", part)}
    own = _methods(ROOT / "tests" / "simulation" / "wiring.py", "SimulatedJournal")
    return frozenset(name for name, text in own.items() if name in shipped and "super()" not in text)


def _methods(path: Path, name: str) -> dict[str, str]:
    classes = [each for each in ast.parse(path.read_text()).body if isinstance(each, ast.ClassDef)]
    (found,) = [each for each in classes if each.name == name]
    return {each.name: _text(each) for each in found.body if isinstance(each, Function)}


def _text(node: ast.AST) -> str:
    return ast.unparse(node)


def _names_in(node: ast.AST) -> set[str]:
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


@lru_cache(maxsize=1)
def _named_by_simulation() -> frozenset[str]:
    names: set[str] = set()
    for path in (ROOT / "tests" / "simulation").rglob("*.py"):
        is_of_run = path.parent.name != "mutation" and path.name != "mutate.py" and not path.name.startswith("test_")
        if is_of_run:
            tree = ast.parse(path.read_text())
            names |= {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
            imports = (each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom))
            names |= {alias.name for each in imports for alias in each.names}
    return frozenset(names)


@lru_cache(maxsize=1)
def reached() -> frozenset[str]:
    """Functions that some name leads to, from the simulation on, and those that Python calls by itself."""
    names = set(_named_by_simulation())
    bodies: dict[str, set[str]] = {}
    for function in _functions():
        bodies.setdefault(function.name, set()).update(_names_in(function) - {function.name})
    for tree in _trees():
        for statement in ast.walk(tree):
            if isinstance(statement, (ast.Module, ast.ClassDef)):
                for each in statement.body:
                    if not isinstance(each, (*Function, ast.ClassDef)):
                        names |= _names_in(each)
    new = [name for name in bodies if name in names or name.startswith("__")]
    found = set(new)
    while new:
        name = new.pop()
        if name not in replaced():
            more = (bodies[name] & bodies.keys()) - found
            found |= more
            new += more
    return frozenset(found)


@lru_cache(maxsize=1)
def _only_said() -> frozenset[str]:
    """Functions whose result is only said: a text, or a number in one."""
    texts = {each.name for each in _functions() if not _has_effect(each) and each.returns is not None}
    texts -= {each.name for each in _functions() if _text(each.returns or ast.Constant(None)) == "None"}
    called = {name for tree in _trees() for name in _names_in(tree)}  # by the package, and by nobody else
    return frozenset((texts & called) - _read_unsaid() - _named_by_simulation())


@lru_cache(maxsize=1)
def _read_unsaid() -> frozenset[str]:
    """Names that are read where nothing is said."""
    used: set[str] = set()
    for tree in _trees():
        for function in ast.walk(tree):
            if isinstance(function, Function):
                for each in _unsaid(function, _said_names(function)):
                    used |= {each.id} if isinstance(each, ast.Name) else set()
                    used |= {each.attr} if isinstance(each, ast.Attribute) else set()
    return frozenset(used)
