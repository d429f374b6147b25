"""The functions of bash and zsh that list a user's runs and sites, by reading the same files as the program."""

from __future__ import annotations

# The index has a line for each run, the newest last, as Python's json writes it: `"name": "digits", "job_id": "4711"`.
# Names with other characters of ASCII are left out: bash expands the words that it is offered, and a file may have any
# name. Letters of other scripts are bytes above it, which mean nothing to a shell; sort would take some of them for the
# same in some locales.
FUNCTIONS = """\
_hpc_elastic_runs() {{
    local index=$HOME/.local/state
    case ${{XDG_STATE_HOME-}} in /*) index=$XDG_STATE_HOME ;; esac
    index=$index/hpc_elastic/runs.jsonl
    [ -r "$index" ] || return
    command tail -n 100 "$index" 2>/dev/null | LC_ALL=C command sed -n \\
        's/^.*"name": "\\([^[:cntrl:] -,/:-@[-^`{{-~]*\\)", "job_id": "\\([A-Za-z0-9._-]*\\)".*$/\\1 \\2/p' |
        tr ' ' '\\n' | LC_ALL=C sort -u
}}

_hpc_elastic_sites() {{
    local folder
    {{
        printf '%s\\n' "${{HPC_ELASTIC_SITE_PATH-}}" | tr ':' '\\n'
        printf '%s\\n' site-configs /etc/hpc-elastic/sites "${{XDG_CONFIG_HOME:-$HOME/.config}}/hpc-elastic/sites"
    }} | while read -r folder; do
        command ls -- "$folder" 2>/dev/null | command sed -n 's/^\\([A-Za-z0-9._-]*\\)\\.ya\\{{0,1\\}}ml$/\\1/p'
    done | sort -u - <(printf '%s\\n' {sites})
}}
"""
