"""A batch script as statements, without running it: where each begins, what it assigns, which words it has; pure.

This is no shell. It knows enough of bash's grammar to tell where a statement ends (quotes, continued lines, here
documents, substitutions, compound commands), and gives what it does not understand as it is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_OPENS = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "case": "esac", "{": "}"}
_HEREDOC = re.compile(r"(?<!<)<<(?!<)(-?)\s*(\\?)(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\3")
_FUNCTION = re.compile(r"\s*(function\s+[\w-]+|[\w-]+\s*\(\))")
_ASSIGNMENT = re.compile(
    r"(?:(?:export|declare|typeset|readonly|local)\s+(?:-[A-Za-z]+\s+)*)?([A-Za-z_]\w*)=", re.ASCII
)
_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(\[[@*]\])?\}|([A-Za-z_]\w*))", re.ASCII)
_ANY_NAME = re.compile(r"\$\{?[#!]?([A-Za-z_]\w*|[0-9@*#?])", re.ASCII)
_KEPT = re.compile("\ue001([0-9]+)\ue002", re.ASCII)
DEEPEST = 10
MOST = 1000  # values of variables in one command; a few that name each other twice would be millions
MARKS = re.compile("[\ue000-\ue003]")  # of Unicode's private use: no script has them


@dataclass(frozen=True, slots=True)
class Statement:
    """One top-level statement: the number of its first line, its text as written, and the keyword that it opens with.

    `keyword` is empty for a simple command; `if`, `for` and so on, or `function`, for a compound one.
    """

    line: int
    text: str
    keyword: str = ""

    @property
    def joined(self) -> str:
        """Return the text with continued lines joined."""
        return re.sub(r"\\\n\s*", " ", self.text).strip()

    def assignments(self) -> dict[str, str]:
        """Return what a statement of nothing but assignments assigns, as written; empty for any other."""
        if self.keyword:
            return {}
        found: dict[str, str] = {}
        rest = self.joined
        is_declaration = bool(re.match(r"(export|declare|typeset|readonly|local)\b", rest))
        while rest and not rest.startswith("#"):
            match = _ASSIGNMENT.match(rest)
            if match is None:
                name = re.match(r"(?:export\s+)?[A-Za-z_]\w*(?=\s|;|$)", rest, re.ASCII) if is_declaration else None
                if name is None:
                    return {}
                rest = rest[name.end() :].lstrip(" \t;")
                continue
            end = _word_end(rest, match.end())
            found[match[1]] = rest[match.end() : end]
            rest = rest[end:].lstrip(" \t;")
        return found

    def appended(self) -> tuple[str, str] | None:
        """Return the variable and the value of a statement `NAME+=VALUE`, as written; None for any other."""
        match = re.match(r"(?:export\s+)?([A-Za-z_]\w*)\+=", self.joined, re.ASCII)
        if self.keyword or match is None:
            return None
        end = _word_end(self.joined, match.end())
        rest = self.joined[end:].strip()
        return None if rest and not rest.startswith("#") else (match[1], self.joined[match.end() : end])

    @property
    def names(self) -> frozenset[str]:
        """Return the variables that it refers to."""
        return frozenset(_ANY_NAME.findall(self.text))


def statements(text: str) -> Iterator[Statement]:
    """Yield the statements of a script, without comments and blank lines.

    Args:
        text: the script; lines of `#SBATCH` are comments here.
    """
    lines = text.split("\n")
    place = 0
    while place < len(lines):
        begin = place
        if not lines[place].strip() or lines[place].lstrip().startswith("#"):
            place += 1
            continue
        place = _end_of_line(lines, place)
        taken = "\n".join(lines[begin:place])
        keyword, depth = _depth(taken)
        while depth > 0 and place < len(lines):
            place = _end_of_line(lines, place)
            taken = "\n".join(lines[begin:place])
            keyword, depth = _depth(taken)
        yield from _split(Statement(begin + 1, taken, keyword))


def split_words(text: str) -> list[str] | None:
    """Return the words of a simple command as bash splits them, substitutions as written; None: quotes do not match."""
    kept: list[str] = []
    text = MARKS.sub(lambda match: LITERAL if match[0] == LITERAL else "?", text)
    try:
        words = shlex.split(_keep_substitutions(text, kept), comments=True)
    except ValueError:
        return None
    return [_KEPT.sub(lambda match: kept[int(match[1])], word) for word in words]


def _keep_substitutions(text: str, kept: list[str]) -> str:
    """Return the text with a mark in place of each substitution, whose spaces part no words; `kept` gets them."""
    out, place, quote = [], 0, ""
    while place < len(text):
        character = text[place]
        is_computed = text.startswith(("$(", "${"), place) or character == "`"
        if character == "\\" and quote != "'":
            out.append(text[place : place + 2])
            place += 2
        elif is_computed and quote != "'":
            end = _expansion_end(text, place)
            out.append(f"\ue001{len(kept)}\ue002")
            kept.append(text[place:end])
            place = end
        else:
            if character in "'\"" and quote in ("", character):
                quote = "" if quote else character
            out.append(character)
            place += 1
    return "".join(out)


def in_double_quotes(word: str) -> str:
    """Return a word as it stands in double quotes: its substitutions stay, and nothing else in it means anything."""
    out, place = [], 0
    while place < len(word):
        end = place + 1
        if word.startswith(("$(", "${"), place) or word[place] == "`":
            end = _expansion_end(word, place)
            out.append(word[place:end])
        elif word[place] == LITERAL:
            out.append("\\$")
        else:
            out.append("\\" + word[place] if word[place] in '"\\' else word[place])
        place = end
    return "".join(out)


def part_lists(text: str) -> str:
    """Return a script with a new line in place of each `&&` that parts commands."""
    out, begin = [], 0
    for end in _marks(text, "&&"):
        out.append(text[begin:end])
        begin = end + len("&&")
    return "\n".join([*out, text[begin:]])


def joined_values(value: str, more: str) -> list[str]:
    """Return what a variable's value is after `+=`, as one value as it would be written; both where nobody can say."""
    if value.startswith("(") and more.startswith("("):
        return [f"({value[1:-1]} {more[1:-1]})"]
    inner = [_unquoted(each) for each in (value, more)]
    is_plain = not any(each.startswith("(") or re.search("['\"`\\\\]", each) for each in inner)
    return [f'"{inner[0]}{inner[1]}"'] if is_plain else [value, more]


def is_and_list(text: str) -> bool:
    """Return whether a statement is commands that an `&&` parts; one in quotes or in a substitution parts nothing."""
    return next(_marks(text, "&&"), None) is not None


def first_pipe(text: str) -> tuple[str, str]:
    """Return a command up to its first pipe, redirection, `&&`, `||`, `;` or `&`, and what follows from there."""
    place, quote = 0, ""
    while place < len(text):
        character = text[place]
        if quote:
            if character == "\\" and quote == '"':
                place += 1
            elif character == quote:
                quote = ""
        elif character == "\\":
            place += 1
        elif character in "'\"":
            quote = character
        elif text.startswith("$(", place) or character == "`":
            place = _substitution_end(text, place) - 1
        elif character in "|<>;&" and text[place : place + 2] != "<(":
            start = place
            while character in "<>&" and start and (text[start - 1].isdigit() or text[start - 1] == "&"):
                start -= 1  # the descriptor of 2>&1
            return text[:start].rstrip(), text[start:].strip()
        place += 1
    return text.rstrip(), ""


def expand(text: str, known: Mapping[str, str]) -> str:
    """Return a command with the variables of `known` put in as they were written; others stay.

    A value in quotes that stands in quotes loses its own. What stands within single quotes is left alone. So is a
    variable within its own value, and all that is left when `MOST` values have been put in.
    """
    return _expand(text, known, iter(range(MOST)), depth=0)


def _expand(text: str, known: Mapping[str, str], left: Iterator[int], *, depth: int) -> str:
    if depth > DEEPEST:
        return text
    out, place, quote = [], 0, ""
    while place < len(text):
        character = text[place]
        if character == "\\" and quote != "'":
            out.append(text[place : place + 2])
            place += 2
            continue
        if character in "'\"" and quote in ("", character):
            quote = "" if quote else character
        match = _REFERENCE.match(text, place) if quote != "'" else None
        name = (match[1] or match[3]) if match else ""
        if match is not None and name in known and next(left, None) is not None:
            value = known[name].strip()
            others = {each: known[each] for each in known if each != name}
            if value.startswith("(") and value.endswith(")"):
                inner = _expand(value[1:-1], others, left, depth=depth + 1)
                if quote and out and out[-1] == '"':
                    out.pop()  # "${ARGS[@]}" is each word by itself
                    out.append(inner)
                    quote = ""
                    place = match.end() + (text[match.end() : match.end() + 1] == '"')
                    continue
                out.append(inner)
            else:
                inner = _expand(value, others, left, depth=depth + 1)
                out.append(_unquoted(inner) if quote or _is_one_word(inner) else _unquoted(inner, keep_inner=True))
            place = match.end()
            continue
        out.append(character)
        place += 1
    return "".join(out)


def _unquoted(value: str, *, keep_inner: bool = False) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        inner = value[1:-1]
        if keep_inner or value[0] not in inner:
            return inner.replace('\\"', '"') if value[0] == '"' else inner
    return value


def _is_one_word(value: str) -> bool:
    words = split_words(_unquoted(value))
    return words is not None and len(words) <= 1


def _split(statement: Statement) -> Iterator[Statement]:
    """Yield the parts of `A=1; B=2` and `cd x; torchrun ...`, which are statements of their own.

    What stands within `{ a; b; }`, `(a; b)` or `if a; then b; fi` behind another command is no part of its own.
    """
    if statement.keyword or "<<" in statement.text or ";" not in statement.text:
        yield statement
        return
    line, begin = statement.line, 0
    for end in [*_marks(statement.text, ";"), len(statement.text)]:
        part = statement.text[begin:end]
        keyword, depth = _depth(part)
        if depth > 0 and end < len(statement.text):
            continue
        if part.strip():
            yield Statement(line + part[: len(part) - len(part.lstrip())].count("\n"), part.strip(), keyword)
        line += part.count("\n")
        begin = end + 1


def _marks(text: str, mark: str) -> Iterator[int]:
    """Yield where a mark parts commands: neither in quotes, nor in a substitution, a subshell or a comment."""
    place, quote = 0, ""
    while place < len(text):
        character = text[place]
        if character == "\\" and quote != "'":
            place += 1
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif text.startswith(("$(", "${"), place) or character == "`":
            place = _expansion_end(text, place) - 1
        elif character == "(":
            place = _closing(text, place)
        elif character == "#" and (place == 0 or text[place - 1] in " \t\n;"):
            newline = text.find("\n", place)
            place = len(text) if newline < 0 else newline
        elif text.startswith(mark, place):
            yield place
            place += len(mark) - 1
        place += 1


def _end_of_line(lines: list[str], place: int) -> int:
    """Return the number of the line after the logical line that begins at `place`."""
    text = lines[place]
    end = place + 1
    while end < len(lines) and _is_open(text):
        text += "\n" + lines[end]
        end += 1
    bare = _without_quotes(_HEREDOC.sub(r"<<\1\4", text))  # the end's own quotes are none of those
    for match in _HEREDOC.finditer(bare):
        while end < len(lines) and (lines[end].lstrip("\t") if match[1] else lines[end]) != match[4]:
            end += 1
        end = min(end + 1, len(lines))
    return end


def _is_open(text: str) -> bool:
    """Return whether quotes, a substitution or a continuation are open at the end of the text."""
    quote, depth, place = "", 0, 0
    while place < len(text):
        character = text[place]
        if quote == "'":
            quote = "" if character == "'" else quote
        elif character == "\\":
            if text[place + 1 : place + 2] == "":
                return True
            place += 1
        elif quote == '"':
            quote = "" if character == '"' else quote
        elif character in "'\"":
            quote = character
        elif character == "#" and (place == 0 or text[place - 1] in " \t\n;"):
            newline = text.find("\n", place)
            place = len(text) if newline < 0 else newline
        elif character == "(":
            depth += 1
        elif character == ")":
            depth = max(0, depth - 1)
        place += 1
    return bool(quote) or depth > 0


def _depth(text: str) -> tuple[str, int]:
    """Return the keyword of a compound command that the text begins with, and how many are open at its end."""
    bare = _without_quotes(text)
    keyword = ""
    open_ends: list[str] = []
    if _FUNCTION.match(bare):
        keyword = "function"
        if "{" not in bare:
            return keyword, 1
    for number, segment in enumerate(re.split(r"\n|;;|;|&&|\|\||\|", bare)):
        words = segment.split()
        while words:
            word = words.pop(0)
            if keyword == "function" and not open_ends and word.endswith("{"):
                open_ends.append("}")
            elif word in _OPENS:
                keyword = keyword or (word if number == 0 else "")
                open_ends.append(_OPENS[word])
                if word in ("for", "case", "select"):
                    break
            elif open_ends and word == open_ends[-1]:
                open_ends.pop()
            elif word not in ("then", "else", "do", "elif", "!", "time", "function") and not word.endswith("()"):
                break
    return keyword, len(open_ends)


def _without_quotes(text: str) -> str:
    """Return the text with what stands in quotes, substitutions and comments replaced by `_`."""
    text = re.sub(r"(^|\s)#[^\n]*", r"\1", text)
    text = re.sub(r"'[^']*'", "_", text)
    text = re.sub(r'"(?:\\.|[^"\\])*"', "_", text, flags=re.DOTALL)
    return re.sub(r"\$?\([^()]*\)", lambda match: "()" if match[0] == "()" else "_", text)


def _word_end(text: str, place: int) -> int:
    """Return where the word that begins at `place` ends."""
    if text[place : place + 1] == "(":
        return _closing(text, place) + 1
    quote = ""
    while place < len(text):
        character = text[place]
        if quote == "'":
            quote = "" if character == "'" else quote
        elif character == "\\":
            place += 1
        elif text.startswith("$(", place) or character == "`":
            place = _substitution_end(text, place) - 1
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in " \t\n;&|<>":
            break
        place += 1
    return min(place, len(text))


def _expansion_end(text: str, place: int) -> int:
    """Return where the substitution or the `${...}` that begins at `place` ends."""
    if text.startswith("${", place):
        closing = text.find("}", place)
        return len(text) if closing < 0 else closing + 1
    return _substitution_end(text, place)


def _substitution_end(text: str, place: int) -> int:
    if text[place] == "`":
        end = text.find("`", place + 1)
        return len(text) if end < 0 else end + 1
    return _closing(text, place + 1) + 1


def _closing(text: str, place: int) -> int:
    """Return where the parenthesis that opens at `place` closes."""
    depth, quote = 0, ""
    for at in range(place, len(text)):
        character = text[at]
        if quote:
            quote = "" if character == quote and text[at - 1] != "\\" else quote
        elif character in "'\"":
            quote = character
        elif character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
            if depth == 0:
                return at
    return len(text) - 1


OUTER = "\ue003"  # stands for a dollar sign that the shell around a `bash -c "..."` expands, also in '...'
LITERAL = "\ue000"  # stands for a dollar sign that bash does not expand


def mark_literals(text: str) -> str:
    """Return a command with `LITERAL` for each dollar sign that bash leaves alone: in '...', or behind a backslash."""
    out, place, quote = [], 0, ""
    while place < len(text):
        character = text[place]
        if character == "\\" and quote != "'":
            following = text[place + 1 : place + 2]
            out.append(LITERAL if following == "$" else text[place : place + 2])
            place += 2
            continue
        if character in "'\"" and quote in ("", character):
            quote = "" if quote else character
        out.append(LITERAL if character == "$" and quote == "'" else character)
        place += 1
    return "".join(out)


def unmark_literals(text: str) -> str:
    """Return the text with each `LITERAL` as the dollar sign that it stands for."""
    return text.replace(LITERAL, "$")
