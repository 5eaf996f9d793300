"""Why a recording has to end before its time: somebody asks for it, a disk is full, a hang."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from hpcprof.launch import disk_guard
from hpcprof.launch.rank_messages import RankMessages

HUNG = "stopped: the training hung"
DISK_FULL = "stopped: disk nearly full"


class Reason(NamedTuple):
    """``text`` for the state of the rank; ``warning`` says more, "" when there is no more."""

    text: str
    warning: str = ""


class EarlyEnd:
    """What speaks against going on recording. Does not end anything."""

    def __init__(self, messages: RankMessages, scratch: Path, run_folder: Path) -> None:
        """``scratch`` is where nsys records to, ``run_folder`` where its report goes."""
        self._is_asked = False
        self._messages = messages
        self._folders = (scratch, run_folder)
        self._hangs_before = 0
        self._guard_at = 0.0

    def recording_begins(self) -> None:
        """From here on disks are watched, and a hang counts: one before costs no recording."""
        self._hangs_before = self._messages.hang_count
        self._guard_at = time.monotonic() + disk_guard.INTERVAL_SECONDS

    def asked(self) -> Reason | None:
        """The wish of whoever has left STOP, at the first look that finds it."""
        if self._is_asked:
            return None
        text = self._messages.stop_wanted()
        if text is None:
            return None
        self._is_asked = True
        return Reason(f"stopped {text.strip()}")

    def needed(self, written_bytes: int) -> Reason | None:
        """Why what is being recorded, ``written_bytes`` so far, must end now."""
        if self._messages.hang_count > self._hangs_before:
            return Reason(HUNG)
        now = time.monotonic()
        if now < self._guard_at:
            return None
        self._guard_at = now + disk_guard.INTERVAL_SECONDS
        shortage = disk_guard.shortage(*self._folders, written_bytes)
        return None if shortage is None else Reason(DISK_FULL, f"recording stopped: {shortage}")
