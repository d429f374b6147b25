"""What NVIDIA's driver writes into the kernel's log about a GPU: Xid errors, and whether the GPU itself is at fault.

Source: "XID Errors" in NVIDIA's documentation of GPU deployment and management. A number that is not in the table is
told as it is, and says nothing about whose fault it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]{4,20})\): (\d{1,4})\b")
MOST_TOLD = 3
_OF_PROGRAM = {
    13: "a kernel failed on the GPU, most likely by what the program did",
    31: "the GPU's memory was accessed at a wrong address, most likely by the program",
    32: "a corrupted command buffer",
    43: "the GPU stopped one program's work, by an error of that program",
    45: "the GPU's work was cleaned up after a program ended or another error",
    69: "a wrong command for the GPU's graphics engine",
    109: "a context switch on the GPU timed out",
}
_OF_GPU = {
    48: "a double bit error of the GPU's memory (ECC)",
    61: "the GPU's internal controller failed",
    62: "the GPU's internal controller halted",
    63: "a page or row of the GPU's memory is taken out of use (ECC)",
    64: "a page or row of the GPU's memory cannot be taken out of use (ECC)",
    74: "an error of NVLink",
    79: "the GPU has fallen off the bus",
    92: "many single bit errors of the GPU's memory (ECC)",
    94: "a contained error of the GPU's memory (ECC)",
    95: "an uncontained error of the GPU's memory (ECC)",
    119: "the GPU's system processor (GSP) does not answer",
    120: "the GPU's system processor (GSP) failed",
    140: "an error of the GPU's memory that was not recovered (ECC)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """An error of a GPU in the kernel's log; `device` is its PCI address as the driver names it."""

    number: int
    device: str

    @property
    def is_of_gpu(self) -> bool:
        """Whether the GPU or its connections failed, whatever program used it."""
        return self.number in _OF_GPU

    def describe(self) -> str:
        """Return it for people."""
        meaning = _OF_GPU.get(self.number) or _OF_PROGRAM.get(self.number)
        return f"Xid {self.number} of GPU {self.device}{f': {meaning}' if meaning else ''}"


def parse_xid(record: str) -> Xid | None:
    """Return the error that a record of the kernel's log tells, None if it tells of none."""
    found = _XID.search(record)
    return Xid(number=int(found[2]), device=found[1]) if found else None


def describe_xids(xids: Iterable[Xid]) -> str:
    """Return the errors in one line, those of the GPU itself first; empty for none."""
    ordered = sorted(dict.fromkeys(xids), key=lambda each: not each.is_of_gpu)
    more = f"; and {len(ordered) - MOST_TOLD} more" if len(ordered) > MOST_TOLD else ""
    return "; ".join(each.describe() for each in ordered[:MOST_TOLD]) + more
