"""Writes the completion of bash; it calls no Python: a press of Tab on a slow file system must cost nothing."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_elastic.cli.shells.grammar import Argument, Option, Verb, spelled
from hpc_elastic.cli.shells.posix import FUNCTIONS

_BODY = """\
# shellcheck disable=SC2207,SC2086,SC2012  # what is offered has no space in it
# bash completion of hpc-elastic. Made by `hpc-elastic completion bash`.
{functions}
# What the words before the cursor are: _verb, _options, _valued (option=what it takes), _arguments (what each takes).
_hpc_elastic_verb() {{
    case $1 in
{verbs}
    *) return 1 ;;
    esac
}}

_hpc_elastic_values() {{
    local IFS=$'\\n'
    case $1 in
    run) COMPREPLY=($(compgen -W "$(_hpc_elastic_runs)" -- "$2") $(compgen -d -- "$2")) ;;
    site) COMPREPLY=($(compgen -W "$(_hpc_elastic_sites)" -- "$2") $(compgen -f -X '!*.y*ml' -- "$2")) ;;
    job) COMPREPLY=($(compgen -f -X '!*.y*ml' -- "$2") $(compgen -d -- "$2")) ;;
    folder) COMPREPLY=($(compgen -d -- "$2")) ;;
    file) COMPREPLY=($(compgen -f -- "$2")) ;;
    text) ;;
    *) COMPREPLY=($(compgen -W "${{1//,/$'\\n'}}" -- "$2")) ;;
    esac
    case $1 in run | site | job | folder | file) compopt -o filenames 2>/dev/null ;; esac
}}

_hpc_elastic() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} verb=${{COMP_WORDS[1]}} _options _valued _arguments _rest
    local number=2 seen=0 word name takes=
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W '{names} help --help --version' -- "$current"))
        return
    fi
    if [ "$verb" = help ]; then
        [ "$COMP_CWORD" -eq 2 ] && COMPREPLY=($(compgen -W '{names}' -- "$current"))
        return
    fi
    _hpc_elastic_verb "$verb" || return
    while [ "$number" -lt "$COMP_CWORD" ]; do
        word=${{COMP_WORDS[number]}}
        if [[ $word == -?* ]]; then
            name=" $word=" takes=
            if [[ " $_valued" == *"$name"* ]]; then
                takes=${{_valued#*"${{name# }}"}} takes=${{takes%% *}}
                # bash gives `--site=x` as three words.
                [[ ${{COMP_WORDS[number + 1]-}} == = ]] && number=$((number + 1))
                number=$((number + 1))
            fi
        else
            seen=$((seen + 1)) takes=
        fi
        number=$((number + 1))
    done
    if [[ -n $_rest && $seen -ge $_rest ]]; then
        _hpc_elastic_values file "$current"
    elif [ "$number" -gt "$COMP_CWORD" ]; then
        [[ $current == = ]] && current=
        _hpc_elastic_values "$takes" "$current"
    elif [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$_options" -- "$current"))
    else
        set -- $_arguments
        [ "$seen" -ge "$#" ] && [[ ${{!#}} == *+ ]] && seen=$(($# - 1))
        [ "$seen" -lt "$#" ] && shift "$seen" && _hpc_elastic_values "${{1%+}}" "$current"
    fi
}}

complete -F _hpc_elastic hpc-elastic
"""


def bash_completion(verbs: Sequence[Verb], sites: Sequence[str]) -> str:
    """Return the script; `sites` are the names of the site files that come with the package."""
    names = " ".join(verb.name for verb in verbs)
    cases = "\n".join(_case(verb) for verb in verbs)
    return _BODY.format(functions=FUNCTIONS.format(sites=" ".join(sites)), verbs=cases, names=names)


def _case(verb: Verb) -> str:
    options = " ".join(name for option in verb.options for name in spelled(option))
    valued = " ".join(f"{name}={_takes(option)}" for option in verb.options if option.metavar for name in option.names)
    rest = [str(number) for number, argument in enumerate(verb.arguments) if argument.is_rest]
    arguments = " ".join(_takes(argument) + "+" * argument.is_repeated for argument in verb.arguments)
    return (
        f"    {verb.name})\n"
        f"        _options='{options}'\n"
        f"        _valued='{valued} '\n"
        f"        _arguments='{arguments}'\n"
        f"        _rest='{''.join(rest)}' ;;"
    )


def _takes(what: Option | Argument) -> str:
    return ",".join(what.choices) or what.takes.value
