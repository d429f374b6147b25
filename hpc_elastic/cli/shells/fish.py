"""Writes the completion of fish, with the lines of the help beside what is offered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpc_elastic.cli.shells.grammar import Argument, Option, Takes, Verb, spelled

_HEAD = """\
# fish completion of hpc-elastic. Made by `hpc-elastic completion fish`.
function __hpc_elastic_runs
    set -l index $HOME/.local/state
    string match -q '/*' -- "$XDG_STATE_HOME"; and set index $XDG_STATE_HOME
    set index $index/hpc_elastic/runs.jsonl
    test -r $index; or return
    command tail -n 100 $index 2>/dev/null |
        string replace -rf '^.*"name": "([A-Za-z0-9._\\x{{a1}}-\\x{{ffff}}-]*)", "job_id": "([A-Za-z0-9._-]*)".*$' \\
            '$1\\n$2' |
        string split '\\n' | sort -u
    __fish_complete_directories
end

function __hpc_elastic_sites
    set -l configuration $HOME/.config
    test -n "$XDG_CONFIG_HOME"; and set configuration $XDG_CONFIG_HOME
    set -l folders (string split : -- "$HPC_ELASTIC_SITE_PATH") site-configs /etc/hpc-elastic/sites
    for folder in $folders $configuration/hpc-elastic/sites
        command ls -- "$folder" 2>/dev/null | string replace -rf '^([A-Za-z0-9._-]*)\\.ya?ml$' '$1'
    end
    string split ' ' '{sites}'
end

function __hpc_elastic_verb
    set -l words (commandline -opc)
    test (count $words) -ge 2; and contains -- $words[2] $argv
end

function __hpc_elastic_first
    test (count (commandline -opc)) -eq 1
end

complete -c hpc-elastic -f
complete -c hpc-elastic -n __hpc_elastic_first -s h -l help -d 'show the help'
complete -c hpc-elastic -n __hpc_elastic_first -l version -d 'show the version'
complete -c hpc-elastic -n __hpc_elastic_first -a help -d 'show the help of a verb'
complete -c hpc-elastic -n '__hpc_elastic_verb help' -a '{names}'
"""
_ACTIONS = {
    Takes.RUN: "-x -a '(__hpc_elastic_runs)'",
    Takes.SITE: "-x -a '(__hpc_elastic_sites) (__fish_complete_suffix .yaml)'",
    Takes.JOB: "-k -x -a '(__fish_complete_suffix .yaml)'",
    Takes.FILE: "-r -F",
    Takes.FOLDER: "-x -a '(__fish_complete_directories)'",
    Takes.TEXT: "-x",
}


def fish_completion(verbs: Sequence[Verb], sites: Sequence[str]) -> str:
    """Return the script; `sites` are the names of the site files that come with the package."""
    lines = [_HEAD.format(sites=" ".join(sites), names=" ".join(verb.name for verb in verbs)).rstrip()]
    for verb in verbs:
        lines += ["", f"complete -c hpc-elastic -n __hpc_elastic_first -a {verb.name} -d {_quoted(verb.line)}"]
        lines += [f"complete -c hpc-elastic -n '__hpc_elastic_verb {verb.name}' {words}" for words in _words(verb)]
    return "\n".join(lines) + "\n"


def _words(verb: Verb) -> Iterator[str]:
    for option in verb.options:
        names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in spelled(option)]
        value = f" {_action(option)}" if option.metavar else ""
        yield f"{' '.join(names)}{value} -d {_quoted(option.help)}"
    # fish has no places: all that an argument of the verb can be is offered at each of them.
    offered = {_action(argument) for argument in verb.arguments if argument.takes is not Takes.TEXT or argument.choices}
    yield from sorted(words.replace("-r ", "").replace("-x ", "") for words in offered)


def _action(what: Option | Argument) -> str:
    return f"-x -a {_quoted(' '.join(what.choices))}" if what.choices else _ACTIONS[what.takes]


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
