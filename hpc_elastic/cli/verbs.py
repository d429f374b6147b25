"""The table of verbs and the text of `hpc-elastic --help`; this module imports no verb."""

from __future__ import annotations

PROGRAM = "hpc-elastic"

# verb -> (module, one line); the groups are in the order of a run's life
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Start a run": {
        "submit": ("submit", "submit a job file to Slurm, or start it on this machine"),
        "run": ("run", "run a job file or a script here, inside salloc or sbatch too"),
    },
    "Look before": {
        "init": ("init", "write a job file, also of an old batch script"),
        "check": ("check", "read a job file and say what it would do"),
        "render": ("render", "print the script that would be submitted"),
        "schema": ("schema", "print the JSON Schema of job files, or of a run's records"),
        "sites": ("sites", "list, show and check site files; say which one is used here"),
        "templates": ("templates", "list and show templates; try one before it is used"),
        "doctor": ("doctor", "try what runs need of this cluster; draft a site file"),
    },
    "Look after": {
        "status": ("status", "show one run: state, cause, attempts, where to look"),
        "explain": ("explain", "say why a run failed or restarted, and what to do"),
        "watch": ("watch", "follow a run's state, steps and events on the terminal"),
        "list": ("list_runs", "show the latest runs"),
        "logs": ("logs", "print what a rank, an agent or the script wrote"),
        "stacks": ("stacks", "show where the ranks of a run are, equal stacks together"),
        "save": ("save", "write the training state of a run that goes on to its directory"),
        "report": ("report", "write a page about a run: timeline, useful time, failures"),
        "binding": ("binding", "show which CPUs and GPU each worker has"),
        "nodes": ("nodes", "show on which nodes failures had their cause"),
        "restart": ("restart", "start the workers of a run again, from their checkpoint"),
        "drain": ("drain", "let a run go on without one of its nodes"),
        "stop": ("stop", "tell a run's workers, let them save, and end it"),
        "cancel": ("cancel", "stop a run gracefully"),
    },
    "For your shell": {
        "completion": ("completion", "print the completion of bash, zsh or fish"),
    },
}
MODULES = {verb: module for verbs in GROUPS.values() for verb, (module, _) in verbs.items()}

_EXAMPLES = """\
Examples:
  hpc-elastic submit job.yaml --follow
  hpc-elastic submit job.yaml --set nodes=8 --set time=12h
  hpc-elastic run --nodes 2 --workers-per-node 4 train.py --epochs 20
  hpc-elastic status
  hpc-elastic logs digits --rank 5

RUN is a run directory, a name, a job id, or nothing for the latest run that
was submitted in this folder; of an array of runs 1234 is all, and 1234_5 one
of them.
`hpc-elastic VERB --help` says more.
"""

EXIT_CODES = """\
Exit codes of `submit --wait`, `run` and the job:
  0 success             1 workers failed      2 usage
  3 job, site, template or setup wrong        4 Slurm refused
  5 run directory unusable, busy or over      6 nodes missing
  7 node or agent lost  8 no progress         9 stalled, or does not stop
 10 stopped by a person                      75 stopped to be requeued
"""


def help_text() -> str:
    """Return the text of `hpc-elastic --help`, at most 80 columns wide."""
    lines = [f"usage: {PROGRAM} VERB ...", "", "Run PyTorch on Slurm so that it survives what clusters do.", ""]
    for title, verbs in GROUPS.items():
        lines.append(f"{title}:")
        lines += [f"  {verb:<10}  {line}" for verb, (_, line) in verbs.items()]
        lines.append("")
    lines += ["Options:", "  -h, --help   show this", "  --version    show the version", "", _EXAMPLES, EXIT_CODES]
    return "\n".join(lines)
