"""Writes the completion of zsh, with the lines of the help beside what is offered."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_elastic.cli.shells.grammar import Argument, Option, Takes, Verb, spelled
from hpc_elastic.cli.shells.posix import FUNCTIONS

_BODY = """\
#compdef hpc-elastic
# zsh completion of hpc-elastic. Made by `hpc-elastic completion zsh`.
{functions}
_hpc_elastic_run() {{
    local -a runs
    runs=(${{(f)"$(_hpc_elastic_runs)"}})
    compadd -a runs
    _files -/
}}

_hpc_elastic_site() {{
    local -a sites
    sites=(${{(f)"$(_hpc_elastic_sites)"}})
    compadd -a sites
    _files -g '*.y(a|)ml'
}}

_hpc_elastic_verbs() {{
    local -a verbs
    verbs=(
{verbs}
    )
    _describe verb verbs
}}

_hpc_elastic() {{
    local curcontext=$curcontext state line
    _arguments -C '(-)'{{-h,--help}}'[show the help]' '(-)--version[show the version]' \\
        '1:verb:_hpc_elastic_verbs' '*:: :->verb' && return
    [[ $state == verb ]] || return
    case $words[1] in
    help) _arguments '1:verb:_hpc_elastic_verbs' ;;
{cases}
    esac
}}

if [[ $funcstack[1] == _hpc_elastic ]]; then
    _hpc_elastic "$@"
else
    compdef _hpc_elastic hpc-elastic
fi
"""
_ACTIONS = {
    Takes.RUN: "_hpc_elastic_run",
    Takes.SITE: "_hpc_elastic_site",
    Takes.JOB: '_files -g "*.y(a|)ml"',
    Takes.FILE: "_files",
    Takes.FOLDER: "_files -/",
    Takes.TEXT: " ",
}


def zsh_completion(verbs: Sequence[Verb], sites: Sequence[str]) -> str:
    """Return the script; `sites` are the names of the site files that come with the package."""
    return _BODY.format(
        functions=FUNCTIONS.format(sites=" ".join(sites)),
        verbs="\n".join(f"        {_quoted(f'{verb.name}:{_escaped(verb.line)}')}" for verb in verbs),
        cases="\n".join(_case(verb) for verb in verbs),
    )


def _case(verb: Verb) -> str:
    specs = [spec for option in verb.options for spec in _option_specs(option)]
    specs += [_argument_spec(number, argument) for number, argument in enumerate(verb.arguments, start=1)]
    return f"    {verb.name})\n        _arguments -S \\\n            " + " \\\n            ".join(specs) + " ;;"


def _option_specs(option: Option) -> list[str]:
    """Return a word of `_arguments` for each spelling of an option; one of them excludes the others."""
    names = spelled(option)
    before = "*" if option.is_repeated else f"({' '.join(names)})" if len(names) > 1 else ""
    value = f":{_escaped(option.metavar)}:{_action(option)}" if option.metavar else ""
    equals = "=" if option.metavar else ""
    return [
        _quoted(f"{before}{name}{equals if name.startswith('--') else ''}[{_escaped(option.help)}]{value}")
        for name in names
    ]


def _argument_spec(number: int, argument: Argument) -> str:
    if argument.is_rest:
        return _quoted("*::script arguments:_files")
    place = "*" if argument.is_repeated else str(number)
    return _quoted(f"{place}:{_escaped(argument.metavar)}:{_action(argument)}")


def _action(what: Option | Argument) -> str:
    return f"({' '.join(what.choices)})" if what.choices else _ACTIONS[what.takes]


def _escaped(text: str) -> str:
    for character in "\\[]:":
        text = text.replace(character, f"\\{character}")
    return text


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
