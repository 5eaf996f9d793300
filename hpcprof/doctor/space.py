"""Free space of a file system, in steps: nodes with nearly the same free space say the same."""

from __future__ import annotations

import os
from pathlib import Path

from hpcprof import units

_STEPS = (1, 2, 5)


def free_text(folder: Path) -> str:
    """ "more than 20 GB free"."""
    step = rounded_down(free_bytes(folder))
    return f"more than {units.nbytes(step)} free" if step else "no space free"


def is_scarce(folder: Path, wanted_bytes: int) -> bool:
    """Whether less than ``wanted_bytes`` are free."""
    return free_bytes(folder) < wanted_bytes


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write. Raises OSError."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def rounded_down(count: int) -> int:
    """The largest of 1, 2, 5, 10, 20, 50, … up to ``count``; 0 for 0."""
    power = 10 ** (len(str(count)) - 1)
    return max((step * power for step in _STEPS if step * power <= count), default=0)
