"""Whether the disks have room for what nsys still has to write.

nsys on a full disk loses the whole recording, and the training may need the space itself.
"""

from __future__ import annotations

import os
from pathlib import Path

INTERVAL_SECONDS = 5.0

# twice what nsys needs to start (state_folder); a trace of CUDA grows by 10 to 50 MB a second, so
# that this is seen in time
MIN_SCRATCH_BYTES = 256 * 2**20
# the importer writes its report beside the recording before it moves it, and may need as much
# again for its own temporary files
_SCRATCH_FACTOR = 2
# the report is never larger than the recording; beside it stay manifests, spans and logs
RUN_FOLDER_MARGIN_BYTES = 64 * 2**20


def shortage(scratch: Path, run_folder: Path, written_bytes: int) -> str | None:
    """Which disk is nearly full, in words; None as long as both have room.

    ``written_bytes``: what this recording has written so far.
    """
    wanted = max(MIN_SCRATCH_BYTES, _SCRATCH_FACTOR * written_bytes)
    for folder, least in (
        (scratch, wanted),
        (run_folder, written_bytes + RUN_FOLDER_MARGIN_BYTES),
    ):
        free = _free_bytes(folder)
        if free is not None and free < least:
            return f"{folder} has {free >> 20} MiB left, nsys may need {least >> 20} MiB"
    return None


def _free_bytes(folder: Path) -> int | None:
    """What we may still write; None when nobody can tell, which is no reason to stop."""
    try:
        space = os.statvfs(folder)
    except OSError:
        return None
    return space.f_bavail * space.f_frsize
