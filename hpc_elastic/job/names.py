"""Which names a run may have, and the name of a run that nobody has named: made out of what it runs."""

from __future__ import annotations

import os
import sys
import unicodedata

LONGEST_NAME = 64
LONGEST_BYTES = 192  # a folder's name may have 255, and a run's has its time and array task after the name
_HIGHEST = "\uffff"  # of what the data base of Slurm's accounting can hold: MySQL's utf8 has three bytes for each
RUN_NAME_PATTERN = rf"^[A-Za-z0-9\u0080-\uffff][A-Za-z0-9._\u0080-\uffff-]{{0,{LONGEST_NAME - 1}}}$"


def name_of_file(file: str) -> str:
    """Return a name made of a file's, without its suffix: `my-job` for `my job.yaml`, `日本` for `日本.yaml`."""
    return fit_name(os.path.splitext(os.path.basename(file))[0])


def fit_name(text: str, *, otherwise: str = "job") -> str:
    """Return a text as a name that a directory and a Slurm job can have; `otherwise` if nothing of it is left.

    The name is ASCII where files have names of another encoding than UTF-8, which is that of batch scripts.
    """
    composed = unicodedata.normalize("NFC", text)  # macOS names files with accents apart from their letters
    words = "".join(char if _may_stand(char) and not needs_utf8(char) else " " for char in composed).split()
    name = "-".join(words)
    while name and not _may_begin(name[0]):
        name = name[1:]
    short = name[:LONGEST_NAME].encode()[:LONGEST_BYTES].decode(errors="ignore")
    return short.rstrip(".-_") or otherwise


def needs_utf8(text: str) -> bool:
    """Return whether a text has letters for which the names of files have other bytes in this locale, or none."""
    is_other = sys.getfilesystemencoding() != "utf-8"
    return is_other and any("\x7f" < char < "\ud800" or char > "\udfff" for char in text)  # between: of no letter


def is_run_name(text: str) -> bool:
    """Return whether a run may have this name: letters and digits of any script, dots, dashes and underscores."""
    is_short = len(text) <= LONGEST_NAME and len(text.encode(errors="replace")) <= LONGEST_BYTES
    return bool(text) and is_short and _may_begin(text[0]) and all(map(_may_stand, text))


def _may_begin(char: str) -> bool:
    return char.isalnum() and char <= _HIGHEST


def _may_stand(char: str) -> bool:
    """Return whether a name may have this character: vowel signs and accents are marks, and belong to letters."""
    return char in "._-" or _may_begin(char) or (unicodedata.category(char) in ("Mn", "Mc") and char <= _HIGHEST)
