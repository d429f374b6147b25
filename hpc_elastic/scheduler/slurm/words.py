"""Extracts Slurm's message from its error output, and finds a tip for it."""

from __future__ import annotations

import re

from hpc_elastic.printable import printable_line

_PREFIX = re.compile(r"^(?:s[a-z]+|slurm_\w+)(?:: | )(?:error|fatal): ", re.MULTILINE)

_MOST_CHARACTERS = 1000

# The first pattern that matches decides; they are from slurm_errno.c of 22.05 to 26.05 and from sbatch itself.
_FULL = "AssocMaxSubmitJobLimit|AssocGrpSubmitJobsLimit|QOSMaxSubmitJob|QOSGrpSubmitJobs"
_FOR_NOW = re.compile(
    f"{_FULL}|Required (?:partition|node) not available|not available now|not usable now|currently unavailable"
    "|temporarily un"
)
_TIPS = (
    ("Unable to contact slurm controller", "the controller is down or cannot be reached from here: try again later"),
    ("Socket timed out", "the controller is busy; the job may have been accepted: look with `squeue --me` first"),
    ("account has expired|Invalid user id", "your user or account is not, or no longer, known here: ask the admins"),
    ("account or account/partition", "name an account of yours: `sbatch: {account: ...}`; `sacctmgr show assoc` lists"),
    ("[Ii]nvalid wckey", "name a workload key of yours: `sbatch: {wckey: ...}`; `sacctmgr show wckey` lists them"),
    ("Invalid qos", "name a QOS of yours: `sbatch: {qos: ...}`; `sacctmgr show assoc` lists them"),
    ("nvalid partition", "`sinfo --summarize` lists the partitions; name one: `sbatch: {partition: ...}`"),
    (
        _FULL,
        "as many jobs in the queue as your account or QOS allows, each run of an array is one: wait, or cancel some",
    ),
    ("Assoc(?:Max|Grp)|QOSM|QOSGrp|QOS/|accounting/QOS", "over a limit of your account or QOS: ask for less"),
    ("time limit", "`sinfo --format='%P %l'` lists the limits; ask for less `time`, or another partition"),
    ("Node count", "ask for fewer `nodes`; `sinfo --summarize` says how many there are"),
    ("More processors", "ask for fewer `nodes`, `workers_per_node` or `cpus_per_worker`"),
    ("generic resource", "`sinfo --format='%P %G'` lists what the nodes have; the site says how GPUs are spelled"),
    ("Memory", "ask for less `memory_per_node`; `sinfo --format='%P %m'` lists it in MB"),
    ("job array", "it is too large for this Slurm: `scontrol show config` has MaxArraySize; submit several arrays"),
    ("unrecognized option|nvalid option", "a key of `sbatch:` is no option of this sbatch: see `man sbatch`"),
    (
        "feature specification",
        "no node has this feature; `sinfo --format='%P %f'` lists them: `sbatch: {constraint: ...}`",
    ),
    ("[Rr]eservation", "`scontrol show reservation` lists those you may use, and when: `sbatch: {reservation: ...}`"),
    (
        "dependency",
        "that job must be known to this Slurm, pending or running, and the form is `afterok:JOBID`: see `squeue`",
    ),
    ("[Ii]nvalid node name|Requested nodes not in", "`sinfo --Node` lists the nodes of each partition by name"),
    ("--begin|time specif", "write a time as `2030-01-31T08:00`, `16:00`, `tomorrow` or `now+1hour`: see `man sbatch`"),
    ("[Ll]icense", "`scontrol show licenses` lists them with their numbers: `sbatch: {licenses: ...}`"),
    (
        "--clusters?\\b|--cluster\\.",
        "`sacctmgr show clusters` lists those that SLURM_CLUSTERS can name",
    ),
    (
        "partition configuration not available|[Rr]equired partition",
        "`sinfo --summarize` shows whether it is up; name another",
    ),
    (
        "[Rr]equired node not available|nodes are busy",
        "those nodes are down, drained or reserved: `sinfo --list-reasons`",
    ),
    ("configuration is not available", "no node has all of it: see `sinfo --format='%P %c %m %G'`; lower `resources`"),
    ("[Pp]ermission denied", "it belongs to somebody else"),
)


def slurm_words(stderr: str) -> str:
    """Return Slurm's message on one printable line, without the names of its programs and functions."""
    lines = [_PREFIX.sub("", line.strip()) for line in stderr.splitlines()]
    words = "; ".join(dict.fromkeys(line for line in lines if line))
    return printable(words, _MOST_CHARACTERS) or "it does not say why"


def printable(text: str, most: int) -> str:
    """Return the text with unprintable characters escaped, cut after `most` characters."""
    shown = printable_line(text[:most])
    return shown if len(text) <= most else f"{shown}..."


def is_for_now(words: str) -> bool:
    """Return whether Slurm may accept later what it refuses: a partition is drained or inactive, or the queue is full.

    It is full for a user, an account or a QOS that has as many jobs there as it may have, or for all (MaxJobCount).
    """
    return _FOR_NOW.search(words) is not None


def is_about_lost_reservation(words: str) -> bool:
    """Return whether Slurm refuses a job because the reservation that it asks for is not there, or not any more."""
    return "Requested reservation is invalid" in words


def is_about_disabled(words: str) -> bool:
    """Return whether Slurm refuses to requeue a job that is submitted with `--no-requeue`, or was made one of those."""
    return "Requested operation is presently disabled" in words


def is_set_up(stderr: str) -> bool:
    """Return whether a command that failed knew a Slurm to ask: it had a slurm.conf, or a controller to get it from.

    The words are of slurm_conf_init() in 22.05 to 26.05: Debian's slurm-client on a laptop prints the first.
    """
    is_unknown = "Could not establish a configuration source" in stderr
    return not is_unknown or re.search("remote config|Unable to contact", stderr) is not None


def is_refused(stderr: str) -> bool:
    """Return whether the controller did answer, and refused: `sinfo` to users where `PrivateData` has nodes."""
    return "Access/permission denied" in stderr


def find_tip(words: str) -> str | None:
    """Return a tip about Slurm's message; None if there is none."""
    return next((tip for pattern, tip in _TIPS if re.search(pattern, words)), None)
