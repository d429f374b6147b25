"""Slurm's own words in its error output, and what a person can do about them."""

from __future__ import annotations

import re

_PREFIX = re.compile(r"^(?:s[a-z]+|slurm_\w+)(?:: | )(?:error|fatal): ", re.MULTILINE)

_MOST_CHARACTERS = 1000

# The first pattern that is found decides; they are from slurm_errno.c of 22.05 and 24.05.
_TIPS = (
    ("Unable to contact slurm controller", "the controller is down or cannot be reached from here: try again later"),
    ("Socket timed out", "the controller is busy; the job may have been accepted: look with `squeue --me` first"),
    ("account or account/partition", "name an account of yours: `sbatch: {account: ...}`; `sacctmgr show assoc` lists"),
    ("Invalid qos", "name a QOS of yours: `sbatch: {qos: ...}`; `sacctmgr show assoc` lists them"),
    ("nvalid partition", "`sinfo --summarize` lists the partitions; name one: `sbatch: {partition: ...}`"),
    ("time limit", "`sinfo --format='%P %l'` lists the limits; ask for less `time`, or another partition"),
    ("Node count", "ask for fewer `nodes`; `sinfo --summarize` says how many there are"),
    ("More processors", "ask for fewer `nodes`, `workers_per_node` or `cpus_per_worker`"),
    ("generic resource", "`sinfo --format='%P %G'` lists what the nodes have; the site says how GPUs are spelled"),
    ("Memory", "ask for less `memory_per_node`; `sinfo --format='%P %m'` lists it in MB"),
    ("QOSM|QOS/|accounting/QOS", "the request is over a limit of your account or QOS: ask for less"),
    ("job array", "it is too large for this Slurm: `scontrol show config` has MaxArraySize; submit several arrays"),
    ("unrecognized option|nvalid option", "a key of `sbatch:` is no option of this sbatch: see `man sbatch`"),
    ("configuration is not available", "no node has all of it: see `sinfo --format='%P %c %m %G'`; lower `resources`"),
    ("[Pp]ermission denied", "it belongs to somebody else"),
)


def slurm_words(stderr: str) -> str:
    """What Slurm says, on one printable line, without the names of its programs and functions."""
    lines = [_PREFIX.sub("", line.strip()) for line in stderr.splitlines()]
    words = "; ".join(dict.fromkeys(line for line in lines if line))
    return printable(words, _MOST_CHARACTERS) or "it does not say why"


def printable(text: str, most: int) -> str:
    """Return the text with what is not printable escaped, and cut after so many characters."""
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[:most])
    return shown if len(text) <= most else f"{shown}..."


def find_tip(words: str) -> str | None:
    """What to do about it, where that is known."""
    return next((tip for pattern, tip in _TIPS if re.search(pattern, words)), None)
